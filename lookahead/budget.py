"""How many nodes a tree may have, from what a pass with that many rows costs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lookahead.config import Config
from lookahead.cost_curve import KNOTS, CostCurve
from lookahead.pace import MEMORY, Pace, Trust
from lookahead.tree import DraftTree

__all__ = ["Budget", "Plan"]

#: After so many passes over about as many rows each, where the largest number is less than so many
#: times the smallest, one step tries another size: whether other sizes have become cheaper or
#: dearer than this one cannot be seen otherwise.
PASSES_ALIKE, ALIKE = 48, 1.5

#: Weight of a new measurement of what a step takes besides its pass.
RATE = 0.1


@dataclass(frozen=True, eq=False)
class Plan:
    """What a step may spend on guesses.

    Parameters
    ----------
    max_nodes : int
        Most nodes of a tree; 0 is a plain step.
    costs : ndarray, float32, [max_nodes + 1], or None
        Relative time of a step by nodes of each tree; None where their number is fixed.
    trust : float
        Share of what probabilities promise that is believed when a tree is cut.
    token_s : float or None
        What one more token of a sequence is worth in seconds: what it would take to get it
        otherwise. None where time is no matter.
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
        self._pass_s = 0.0  # of the last pass
        self._alike = (1, 1, 0)  # fewest and most rows of the last passes, and their number
        self._around_s: float | None = None  # of a step with guesses, besides its pass
        self._has_drafted = False
        self._seconds = self._tokens = 0.0  # of the last steps with guesses

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
        # A plain pass brings one token to each of them; passes over trees bring more.
        token_s = None if seconds is None else float(seconds[-1]) / live
        if token_s is not None and self._tokens:
            token_s = min(token_s, self._seconds / self._tokens)
        plan = Plan(max_nodes, costs, self._trust.share, token_s, self._is_chain, shared)
        return plan if live > 1 else self._varied(plan)

    def _varied(self, plan: Plan) -> Plan:
        """Return a plan, or that of a small tree after many large ones, or the other way round."""
        fewest, most, number = self._alike
        if number < PASSES_ALIKE or plan.max_nodes < 4:
            return plan
        self._alike = (1, 1, 0)
        is_large = 2 * fewest > plan.max_nodes
        nodes = plan.max_nodes // 4 if is_large else min(plan.max_nodes, 2 * most - 1)
        return replace(plan, max_nodes=nodes, costs=None)

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
        """Return the relative time of a step with 0 to ``max_nodes`` nodes a sequence.

        What a step takes besides its pass is the same for all of them: the tree is drafted before
        it is cut.
        """
        most = (max_nodes + 1) * live
        curve = self._curve.seconds(most)
        curve = self._curve.relative(most) if curve is None else curve + (self._around_s or 0.0)
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
        self._pass_s = seconds
        self._curve.learn(rows, seconds)
        fewest, most, number = self._alike
        low, high = min(fewest, rows), max(most, rows)
        is_alike = number > 0 and high < ALIKE * low
        self._alike = (low, high, number + 1) if is_alike else (rows, rows, 1)

    def learn_step(self, live: int, emitted: int, seconds: float) -> None:
        """Take in a whole step of ``live`` sequences: tokens of all of them, and its time."""
        if not self._pace.is_resting:
            self._learn_around(seconds - self._pass_s)
            self._seconds = MEMORY * self._seconds + seconds
            self._tokens = MEMORY * self._tokens + emitted
        self._pace.learn(emitted / live, seconds, self._plain_s(live))

    def _learn_around(self, seconds: float) -> None:
        """Take in what a step with guesses took besides its pass.

        The first one reads the prompt, too; what took much longer than usual was disturbed.
        """
        usual = self._around_s
        if usual is not None:
            self._around_s = usual + RATE * (min(seconds, 3 * usual) - usual)
        elif self._has_drafted:
            self._around_s = seconds
        self._has_drafted = True

    def _plain_s(self, live: int) -> float | None:
        """Return the expected time of a plain pass now, or None if nothing is known."""
        plain = self._curve.seconds(live)
        return None if plain is None else float(plain[-1])

    def learn_tree(self, tree: DraftTree, accepted: int) -> None:
        """Take in what became of one tree."""
        self._trust.learn(float(tree.probabilities[1:].sum()), accepted)
