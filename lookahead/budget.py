"""How many nodes a tree may have, from what a pass with that many rows costs here.

The cost curve is data: seconds by rows, measured on the passes of the run itself, with the shape
that was measured in an earlier process until then, or that of a typical machine.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookahead.config import Config
from lookahead.pace import Pace, Trust
from lookahead.tree import DraftTree

__all__ = ["Budget", "CostCurve", "Plan"]

#: Rows at which the curve is kept; costs in between are interpolated.
KNOTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 257)

#: Time of a pass relative to one row, measured with a 135M model on 2 CPU cores (docs/log.md).
#: On a GPU of any size so few rows hide behind the weights.
TYPICAL = {
    "cpu-16bit": (1.0, 1.03, 1.08, 1.18, 1.3, 1.45, 1.7, 2.05, 2.5, 2.9, 4.0, 5.0, 7.0, 9.0),
    "cpu": (1.0, 1.6, 1.7, 1.8, 1.95, 2.1, 2.5, 2.85, 3.5, 4.1, 5.7, 7.3, 10.5, 13.7),
    "cpu-prepacked": (1.0, 1.1, 1.1, 1.12, 1.25, 1.4, 1.7, 2.0, 2.6, 3.3, 4.8, 6.2, 9.0, 11.8),
    "other": (1.0, 1.0, 1.01, 1.02, 1.03, 1.04, 1.06, 1.08, 1.12, 1.15, 1.25, 1.35, 1.6, 1.9),
}

#: Weight of a new measurement; about the last twenty passes count.
RATE = 0.1

#: How many measurements the curve of an earlier process is worth at a number of rows.
STORED_WEIGHT = 3.0

#: Measurements behind this many say no more about how busy the machine is now.
ENOUGH = 20.0

#: Weight of the newest pass in how far passes are from the curve: about the last five count.
DRIFT_RATE = 0.2


@dataclass
class CostCurve:
    """Seconds of a target pass by number of rows.

    Parameters
    ----------
    kind : str
        Key of :data:`TYPICAL`: the shape that is assumed where nothing was measured.
    """

    kind: str = "other"
    _log_ratio: NDArray[np.float64] = field(init=False, repr=False)
    _weight: NDArray[np.float64] = field(init=False, repr=False)
    _stored: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _shape: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self._log_ratio = np.zeros(len(KNOTS))
        self._weight = np.zeros(len(KNOTS))

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def measurements(self) -> int:
        """Passes taken in by this object, those of an earlier process not counted."""
        return int(self._weight.sum())

    def state(self, stored: Mapping[str, NDArray[Any]] | None = None) -> dict[str, NDArray[Any]]:
        """Return the curve as arrays: ``rows``, int64, and ``seconds``, float64, both [knots].

        Parameters
        ----------
        stored : mapping of str to ndarray, optional
            Another state to begin from in place of the one that this curve began with: what
            was stored in the meantime. One that cannot be used is left out.
        """
        base = self._stored
        if stored is not None:
            with contextlib.suppress(ValueError):
                base = self._ratios(stored)
        with self._lock:
            known = self._weight > 0
            if base is not None:
                known |= np.isfinite(base)
            ratio = self._log_ratio if base is None else self._blended(_filled(base))
            seconds = np.exp(ratio) * np.array(TYPICAL[self.kind])
        return {"rows": np.array(KNOTS, dtype=np.int64)[known], "seconds": seconds[known]}

    @classmethod
    def from_state(cls, kind: str, state: Mapping[str, NDArray[Any]]) -> CostCurve:
        """Make a curve that believes in the shape of a stored one until it measures its own.

        How busy the machine is today is not how busy it was then: the first measurement already
        moves the whole stored curve up or down, and a few more at one number of rows outweigh it.

        Parameters
        ----------
        kind : str
            Key of :data:`TYPICAL`.
        state : mapping of str to ndarray
            As :meth:`state` returned it, perhaps in an earlier release.

        Raises
        ------
        ValueError
            If it is no such state.
        """
        curve = cls(kind)
        curve._stored = curve._ratios(state)
        curve._shape = _filled(curve._stored)
        return curve

    def _ratios(self, state: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Return a state as log ratios to the typical curve, [knots], NaN where it has nothing."""
        ratio = np.full(len(KNOTS), np.nan)
        rows, seconds = state.get("rows"), state.get("seconds")
        if rows is None or seconds is None or rows.ndim != 1 or rows.shape != seconds.shape:
            raise ValueError("a cost curve has as many seconds as rows")
        if not np.isfinite(seconds).all() or not (seconds > 0).all():
            raise ValueError("seconds of a cost curve are positive")
        for number, cost in zip(rows.tolist(), seconds.tolist(), strict=True):
            if number in KNOTS:
                ratio[KNOTS.index(number)] = np.log(cost / self._typical(number))
        if not np.isfinite(ratio).any():
            raise ValueError("a cost curve has seconds for some number of rows")
        return ratio

    def _blended(self, shape: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log ratios by a stored shape and what was measured since, [knots]."""
        weight = np.minimum(self._weight, ENOUGH)
        total = weight.sum()
        if total:
            shape = shape + weight @ (self._log_ratio - shape) / total
        blended: NDArray[np.float64] = STORED_WEIGHT * shape + self._weight * self._log_ratio
        return blended / (STORED_WEIGHT + self._weight)

    def learn(self, rows: int, seconds: float) -> None:
        """Take in the time of one pass.

        The measured ratio to the typical curve is kept per knot in the logarithm, so that one
        slow pass of a busy machine moves the curve by a tenth of its excess and no more.
        """
        if rows < 1 or rows > KNOTS[-1] or seconds <= 0:
            return
        knot = int(np.searchsorted(KNOTS, rows))
        ratio = np.log(seconds / self._typical(rows))
        with self._lock:
            if self._weight[knot] == 0:
                self._log_ratio[knot] = ratio
            else:
                self._log_ratio[knot] += RATE * np.clip(ratio - self._log_ratio[knot], -1, 1)
            self._weight[knot] = min(self._weight[knot] + 1, 1e6)

    def seconds(self, max_rows: int) -> NDArray[np.float64] | None:
        """Return the expected seconds for 1 to ``max_rows`` rows, or None if nothing is known.

        A knot without a measurement takes the mean ratio of its measured neighbours; the result
        never falls with more rows, since a dip would be noise.
        """
        with self._lock:
            if self._shape is not None:
                ratio = self._blended(self._shape)
            else:
                known = np.flatnonzero(self._weight)
                if not len(known):
                    return None
                ratio = np.interp(np.arange(len(KNOTS)), known, self._log_ratio[known])
        knots = np.array(KNOTS, dtype=np.float64)
        rows = np.arange(1, max_rows + 1)
        curve = np.interp(rows, knots, np.exp(ratio) * np.array(TYPICAL[self.kind]))
        result: NDArray[np.float64] = np.maximum.accumulate(curve)
        return result

    def relative(self, max_rows: int) -> NDArray[np.float64]:
        """Return the time of 1 to ``max_rows`` rows relative to one row, [max_rows]."""
        curve = self.seconds(max_rows)
        if curve is None:
            curve = np.array([self._typical(rows) for rows in range(1, max_rows + 1)])
        relative: NDArray[np.float64] = curve / curve[0]
        return relative

    def _typical(self, rows: int) -> float:
        return float(np.interp(rows, KNOTS, TYPICAL[self.kind]))

    def as_dict(self) -> dict[str, object]:
        """Return knots, seconds and the number of measurements, for reports."""
        seconds = self.seconds(KNOTS[-1])
        return {
            "kind": self.kind,
            "rows": list(KNOTS),
            "seconds": None if seconds is None else [float(seconds[r - 1]) for r in KNOTS],
            "measured": [int(w) for w in self._weight],
            "stored": self._stored is not None,
        }


def _filled(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give knots without a value, NaN, that of their neighbours."""
    known = np.flatnonzero(np.isfinite(ratio))
    filled: NDArray[np.float64] = np.interp(np.arange(len(KNOTS)), known, ratio[known])
    return filled


@dataclass(frozen=True, eq=False)
class Plan:
    """What a step may spend on guesses.

    Parameters
    ----------
    max_nodes : int
        Most nodes of a tree; 0 is a plain step.
    costs : ndarray, float32, [max_nodes + 1], or None
        Relative time of a pass by nodes of each tree; None where their number is fixed.
    trust : float
        Share of what probabilities promise that is believed when a tree is cut.
    token_s : float or None
        What one more token of a sequence is worth in seconds; None where time is no matter.
    is_chain : bool
        One branch only.
    is_shared : bool
        The trees of several sequences are cut to one size afterwards, by :meth:`Budget.size`.
    """

    max_nodes: int
    costs: NDArray[np.float32] | None = None
    trust: float = 1.0
    token_s: float | None = None
    is_chain: bool = False
    is_shared: bool = False


class Budget:
    """Decides what each step may spend: the size of its trees, or none at all.

    Parameters
    ----------
    config : Config
    curve : CostCurve
        Shared by all calls on one model.
    is_chain : bool
        A pass can verify one branch only.
    shares : bool
        Trees of several sequences are cut to one size.
    spare : float
        Share of all time that drafting may lose because something else saves it.
    """

    def __init__(
        self,
        config: Config,
        curve: CostCurve,
        *,
        is_chain: bool = False,
        shares: bool = True,
        spare: float = 0.0,
    ) -> None:
        self._config = config
        self._curve = curve
        self._is_chain = is_chain
        self._shares = shares
        self._pace = Pace(spare)
        self._trust = Trust()
        self._drift = 0.0  # log of what passes take now by what the curve expects of them

    def begin(self, live: int, prefill_s: float, tokens_left: int | None) -> None:
        """Start on a call whose prompts are read: its longest answer may have so many tokens."""
        self._pace.begin(prefill_s, tokens_left, self._plain_s(live))

    def plan(self, live: int) -> Plan:
        """Return what a step of ``live`` sequences may spend."""
        max_nodes = self._config.draft_budget // live
        if self._config.nodes != "auto":
            return Plan(max_nodes, is_chain=self._is_chain)
        if self._pace.is_resting:
            return Plan(0)
        costs = self.costs(max_nodes, live)
        seconds = self._curve.seconds(live)
        shared = self._shares and live > 1
        # A plain pass brings one token to each of them.
        token_s = None if seconds is None else float(seconds[-1]) / live
        return Plan(max_nodes, costs, self._trust.share, token_s, self._is_chain, shared)

    def size(self, trees: Sequence[DraftTree], plan: Plan) -> int:
        """Return the nodes that each tree of a pass should have.

        All sequences of a pass have as many rows as the longest, so what one tree gains from a
        node more is paid for by all of them.
        """
        assert plan.costs is not None
        gains = np.zeros(plan.max_nodes + 1)
        for tree in trees:
            # Most probable first: the order in which trees are grown.
            nodes = np.sort(tree.probabilities[1:])[::-1]
            gains[1 : len(nodes) + 1] += nodes
        tokens = len(trees) + plan.trust * np.cumsum(gains)
        return int(np.argmax(tokens / plan.costs))

    def costs(self, max_nodes: int, live: int) -> NDArray[np.float32]:
        """Return the relative time of a pass with 0 to ``max_nodes`` nodes a sequence."""
        curve = self._curve.relative((max_nodes + 1) * live)
        costs: NDArray[np.float32] = (curve[live - 1 :: live] / curve[live - 1]).astype(np.float32)
        return costs

    def window_costs(self, rows: int, live: int) -> NDArray[np.float64] | None:
        """Return the relative time of a pass with more rows for each of ``live`` sequences.

        Parameters
        ----------
        rows : int
            Rows of the longest sequence without the ones in question.
        live : int
            Sequences in the pass.

        Returns
        -------
        ndarray, float64, [more rows + 1], or None
            None where the width of the window is fixed by the settings.
        """
        if self._config.window != "auto":
            return None
        most = max(rows, KNOTS[-1] // live)
        curve = self._curve.relative(most * live)
        costs: NDArray[np.float64] = curve[rows * live - 1 :: live] / curve[rows * live - 1]
        return costs

    def learn_pass(self, rows: int, seconds: float) -> None:
        """Take in the time of one pass over ``rows`` rows, all sequences together."""
        expected = self._curve.seconds(rows)
        if expected is not None and seconds > 0:
            drift = np.clip(np.log(seconds / expected[-1]), -1, 1)
            self._drift += DRIFT_RATE * (float(drift) - self._drift)
        self._curve.learn(rows, seconds)

    def learn_step(self, live: int, emitted: int, seconds: float) -> None:
        """Take in a whole step of ``live`` sequences: tokens of all of them, and its time."""
        self._pace.learn(emitted / live, seconds, self._plain_s(live))

    def _plain_s(self, live: int) -> float | None:
        """Return the expected time of a plain pass now, or None if nothing is known.

        The curve is that of all calls. Behind a long text, or next to a busy neighbour, all
        passes take longer, and plain ones would, too.
        """
        plain = self._curve.seconds(live)
        return None if plain is None else float(plain[-1] * np.exp(self._drift))

    def learn_tree(self, tree: DraftTree, accepted: int) -> None:
        """Take in what became of one tree."""
        self._trust.learn(float(tree.probabilities[1:].sum()), accepted)
