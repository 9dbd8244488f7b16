"""What a pass costs by its number of rows, followed while a machine's speed and shape change.

How busy a machine is changes from second to second and moves all passes up or down together; how
many rows are free changes hardly ever. So the curve is a smooth function that drifts, quickly as a
whole and slowly in its shape, and every pass says something about all of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KNOTS", "TYPICAL", "CostCurve"]

#: Rows at which the curve is kept; costs in between are interpolated.
KNOTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 257)

#: Time of a pass relative to one row, measured with a 135M model on 2 CPU cores (docs/log.md).
#: On a GPU of any size so few rows hide behind the weights.
TYPICAL = {
    "cpu-16bit": (1.0, 1.03, 1.08, 1.18, 1.3, 1.45, 1.7, 2.05, 2.5, 2.9, 4.0, 5.0, 7.0, 9.0),
    "cpu": (1.0, 1.6, 1.7, 1.8, 1.95, 2.1, 2.5, 2.85, 3.5, 4.1, 5.7, 7.3, 10.5, 13.7),
    "cpu-prepacked": (1.0, 1.1, 1.1, 1.12, 1.25, 1.4, 1.7, 2.0, 2.6, 3.3, 4.8, 6.2, 9.0, 11.8),
    "cpu-16bit-prepacked": (
        *(1.0, 1.0, 1.0, 1.02, 1.1, 1.18, 1.35),
        *(1.5, 1.75, 2.0, 2.7, 3.4, 4.8, 6.2),
    ),
    "cpu-quantised": (1.0, 1.03, 1.1, 1.5, 1.8, 2.1, 2.3, 2.4, 2.7, 3.0, 4.0, 5.0, 7.0, 9.0),
    "other": (1.0, 1.0, 1.01, 1.02, 1.03, 1.04, 1.06, 1.08, 1.12, 1.15, 1.25, 1.35, 1.6, 1.9),
}

#: Standard deviations of the logarithm of a pass's seconds: of one pass around the curve, of the
#: whole curve and of its shape from pass to pass, and of both before the first pass. The shape of
#: an earlier process is known better than that of a typical machine.
OF_A_PASS = 0.2
LEVEL_STEP, SHAPE_STEP = 0.04, 0.004
LEVEL_AT_FIRST, TYPICAL_SHAPE, STORED_SHAPE = 30.0, 0.15, 0.12
#: Distance, in doublings of the rows, at which shapes have little to say about each other.
REACH = 1.5
#: A pass that is farther from the curve than this, as a factor of about 1.6, counts as that far.
FARTHEST = 0.5


def _alike() -> NDArray[np.float64]:
    """Return how much the shape at one knot says about that at another, [knots, knots]."""
    doublings = np.log2(np.array(KNOTS, dtype=np.float64))
    alike: NDArray[np.float64] = np.exp(-np.abs(doublings[:, None] - doublings) / REACH)
    return alike


ALIKE = _alike()


@dataclass
class CostCurve:
    """Seconds of a target pass by number of rows.

    Parameters
    ----------
    kind : str
        Key of :data:`TYPICAL`: the shape that is assumed where nothing was measured.

    Notes
    -----
    The logarithm of a pass's seconds, less that of the typical curve, is a Gaussian process over
    the logarithm of rows that walks at random, read by a Kalman filter with clipped innovations.
    Source: Rasmussen and Williams 2006, section 2.2; Kalman 1960.
    """

    kind: str = "other"
    _ratio: NDArray[np.float64] = field(init=False, repr=False)  # log to the typical one, [knots]
    _covariance: NDArray[np.float64] = field(init=False, repr=False)  # of it, [knots, knots]
    _counts: NDArray[np.int64] = field(init=False, repr=False)  # passes by knot
    _stored: NDArray[np.bool_] = field(init=False, repr=False)  # known from an earlier process
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self._ratio = np.zeros(len(KNOTS))
        self._covariance = LEVEL_AT_FIRST**2 + TYPICAL_SHAPE**2 * ALIKE
        self._counts = np.zeros(len(KNOTS), dtype=np.int64)
        self._stored = np.zeros(len(KNOTS), dtype=np.bool_)

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
        return int(self._counts.sum())

    def state(self, stored: Mapping[str, NDArray[Any]] | None = None) -> dict[str, NDArray[Any]]:
        """Return the curve as arrays: ``rows``, int64, and ``seconds``, float64, both [knots].

        Parameters
        ----------
        stored : mapping of str to ndarray, optional
            Another state, which says what this process has not measured itself: what was stored
            in the meantime. One that cannot be used is left out.
        """
        theirs = np.full(len(KNOTS), np.nan)
        if stored is not None:
            with contextlib.suppress(ValueError):
                theirs = self._ratios(stored)
        with self._lock:
            measured = self._counts > 0
            known = measured | self._stored | np.isfinite(theirs)
            both = measured & np.isfinite(theirs)
            # They may have been measured on a busy day.
            slower = np.mean(theirs[both] - self._ratio[both]) if both.any() else 0.0
            ratio = np.where(measured | np.isnan(theirs), self._ratio, theirs - slower)
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
        ratio = curve._ratios(state)
        curve._stored = np.isfinite(ratio)
        known = np.flatnonzero(curve._stored)
        curve._ratio = np.interp(np.arange(len(KNOTS)), known, ratio[known])
        curve._covariance = LEVEL_AT_FIRST**2 + STORED_SHAPE**2 * ALIKE
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

    def learn(self, rows: int, seconds: float) -> None:
        """Take in the time of one pass.

        It moves the whole curve, and a little its shape; a slow pass of a busy machine moves it by
        a tenth and no more.
        """
        if rows < 1 or rows > KNOTS[-1] or seconds <= 0:
            return
        knot = int(np.searchsorted(KNOTS, rows))
        here = np.zeros(len(KNOTS))
        here[knot] = 1.0
        if KNOTS[knot] != rows:
            above = (rows - KNOTS[knot - 1]) / (KNOTS[knot] - KNOTS[knot - 1])
            here[knot - 1], here[knot] = 1.0 - above, above
        measured = np.log(seconds / self._typical(rows))
        with self._lock:
            if self.measurements:
                self._covariance += LEVEL_STEP**2 + SHAPE_STEP**2 * ALIKE
            spread = self._covariance @ here
            variance = float(here @ spread) + OF_A_PASS**2
            farthest = max(FARTHEST, 2 * np.sqrt(variance))
            surprise = np.clip(measured - here @ self._ratio, -farthest, farthest)
            gain = spread / variance
            self._ratio += gain * surprise
            self._covariance -= np.outer(gain, spread)
            self._counts[knot] += 1

    def seconds(self, max_rows: int) -> NDArray[np.float64] | None:
        """Return the expected seconds for 1 to ``max_rows`` rows, or None if nothing is known.

        The result never falls with more rows, since a dip would be noise.
        """
        with self._lock:
            if not (self._stored.any() or self._counts.any()):
                return None
            costs = np.exp(self._ratio) * np.array(TYPICAL[self.kind])
        curve = np.interp(np.arange(1, max_rows + 1), KNOTS, costs)
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
            "measured": self._counts.tolist(),
            "stored": bool(self._stored.any()),
        }
