"""All guesses in one tree: the n-gram pool's own and those of any number of drafters.

The pool grows the tree best first; other drafters' guesses are walked along while it grows, so
that a token several of them name becomes one node with their joint calibration. Learns from every
row the target computed, rejected ones included.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lookahead.budget import Plan
from lookahead.config import Config
from lookahead.drafters.answers import Answers
from lookahead.drafters.base import NodeDrafter
from lookahead.drafters.offers import as_offer
from lookahead.drafters.rows import top_rows
from lookahead.drafters.window import WindowDrafter
from lookahead.drafters.window_choice import NGRAM_SIZE, WIDTHS, WindowChooser
from lookahead.errors import LookaheadWarning
from lookahead.outcome import Outcome, PromptRows
from lookahead.stats import DecodeStats, SourceStats
from lookahead.tree import DraftTree
from lookahead.window import WindowRows
from ngram_pool import Offer, Pool, Proposal
from ngram_pool.layout import HEAD_OFFER, WINDOW_OFFER

__all__ = ["MergedDrafter"]

R = TypeVar("R")

#: Nodes whose path is less probable than this cost more than they return on any machine.
MIN_PROBABILITY = 0.001

#: Nodes that a node drafter is asked about in each of its rounds. A few at first: their answers
#: change which nodes are worth asking about next.
ROUNDS = (1, 4, 6, 6)
#: Last positions of the prompt that are read out where there is no head: it makes as good guesses
#: behind a prompt that was not, see docs/log.md.
PROMPT_POSITIONS = 512
#: Parts of the prompt (of 32 positions) that are read out at once, and with each step that paid.
PARTS_AT_ONCE, PARTS_MORE = 1, 2
#: What the answers of a round win, in tokens, for each unit of probability that leaves the tree at
#: the nodes asked about; chosen with the head and trees of 16 nodes (docs/log.md).
WON = (1.2, 0.8, 0.5, 0.4)
#: In a batch as a share of that: its small trees hold little more than the best guess, which the
#: answer changes now and then, and a token more of one sequence brings the others nothing.
IN_BATCH = 0.125


class MergedDrafter:
    """Drafts one tree for one sequence.

    Parameters
    ----------
    config : Config
    pool : Pool
        Empty; its calibration may be shared with other sequences of the model.
    stats : DecodeStats
        Is told what each source offered and got accepted.
    vocab_size : int
        Tokens from this on are never drafted.
    node_drafters : mapping of int to NodeDrafter, optional
        Built-in drafters that are asked about nodes, by source number, in the order in which they
        are asked.
    window_chooser : WindowChooser, optional
        Chooses the width of the lookahead window where the settings leave it open.
    alone : bool
        Whether no other sequence is decoded in the same passes.
    """

    def __init__(
        self,
        config: Config,
        pool: Pool,
        stats: DecodeStats,
        vocab_size: int,
        node_drafters: Mapping[int, NodeDrafter] | None = None,
        window_chooser: WindowChooser | None = None,
        *,
        alone: bool = True,
    ) -> None:
        self._config = config
        self._alone = alone
        self._pool = pool
        self._stats = stats
        self._vocab_size = vocab_size
        self._recycles = "recycled" in config.sources
        self._names = {1: "ngrams", 2: "recycled"}
        self._window = _window_drafter(config, window_chooser)
        self._drafters: dict[int, Any] = dict(enumerate(config.drafters))
        if self._window is not None:
            self._drafters[WINDOW_OFFER] = self._window
        self._node_drafters: dict[int, NodeDrafter] = dict(node_drafters or {})
        for source, drafter in [*self._drafters.items(), *self._node_drafters.items()]:
            kind = drafter if isinstance(drafter, type) else type(drafter)
            self._names[4 << source] = str(getattr(drafter, "name", kind.__name__))
        for source, drafter in enumerate(config.drafters):
            if isinstance(drafter, type) or not hasattr(drafter, "draft"):
                self._guard(source, functools.partial(self._make, source, drafter))
        for bit, name in self._names.items():
            if bit > 2 or name in config.sources:
                stats.by_source.setdefault(name, SourceStats())
        self._proposal: Proposal | None = None
        self._grow: Callable[..., Proposal] = pool.propose  # the tree of this step again
        self._prompt_rows: Iterator[PromptRows] = iter(())
        self._round_s: dict[tuple[int, int], float] = {}  # seconds, by source and round

    def begin(self, context: list[int], hidden: Tensor | None = None) -> None:
        """Take in the committed tokens of a new sequence, and the hidden states of its prompt."""
        self._pool.extend(context)
        for source in list(self._node_drafters):
            self._call(source, "begin", context, hidden)
        for source in list(self._drafters):
            self._call(source, "begin", list(context))

    def recycle(self, rows_of: Callable[[int], Iterator[PromptRows]]) -> None:
        """Take in the target's candidates after the last so many positions, newest first.

        Where the number of nodes is fixed, all at once; else a few, and more with each step in
        which a guess was right: reading out a long prompt takes longer than some answers. In a
        batch, where a guess is worth less and all others wait, none.
        """
        limit = self._config.recycle_prompt
        if limit == "auto":
            limit = 0 if HEAD_OFFER in self._node_drafters else PROMPT_POSITIONS
        if not self._recycles or not limit or not (self._alone or self._config.nodes != "auto"):
            return
        self._prompt_rows = rows_of(limit)
        self._recycle_prompt(PARTS_AT_ONCE if self._config.nodes == "auto" else None)

    def _recycle_prompt(self, parts: int | None) -> None:
        for part in islice(self._prompt_rows, parts):
            tokens, probabilities = top_rows(part.logits)
            self._pool.recycle(part.previous, part.tokens, tokens, probabilities, renew=False)
            self._show(tokens)

    def draft(
        self,
        context: list[int],
        plan: Plan,
        max_depth: int,
        noise: NDArray[np.float32] | None = None,
    ) -> DraftTree:
        """Guess what comes after ``context``.

        Parameters
        ----------
        context : list of int
            Committed tokens; the pool has seen all of them.
        plan : Plan
            Most nodes; where they have costs, the tree is cut where one more node would return
            less than it costs.
        max_depth : int
            Deepest node.
        noise : ndarray, float32, [draws, vocab], optional
            What the next tokens will be drawn with.

        Returns
        -------
        DraftTree
        """
        self._proposal = None
        max_nodes = plan.max_nodes
        if max_nodes < 1 or max_depth < 1 or not context:
            return DraftTree.only_root(context[-1] if context else 0)
        grow = functools.partial(
            self._pool.propose,
            max_nodes=max_nodes,
            max_depth=max_depth,
            min_probability=MIN_PROBABILITY,
            ngrams="ngrams" in self._config.sources,
            recycled=self._recycles,
            noise=noise,
            chain=plan.is_chain,
        )
        offers = self._offers(context, max_nodes)
        for source in list(self._node_drafters):
            offers += self._answers(
                source, context, grow, offers, Answers(source, max_depth), plan, noise
            )
        costs = None if plan.is_shared else plan.costs
        self._grow = functools.partial(grow, costs=costs, trust=plan.trust, offers=offers)
        self._proposal = self._grow()
        return as_tree(self._proposal)

    def cut(self, max_nodes: int) -> DraftTree:
        """Return the tree that was drafted last with so many nodes at most, the best ones."""
        assert self._proposal is not None
        self._proposal = self._grow(max_nodes=max_nodes)
        return as_tree(self._proposal)

    def _answers(
        self,
        source: int,
        context: list[int],
        grow: Callable[..., Proposal],
        offers: list[Offer],
        answers: Answers,
        plan: Plan,
        noise: NDArray[np.float32] | None,
    ) -> list[Offer]:
        """Ask a node drafter in rounds, each about the tree that the answers so far give.

        Where time counts, a round is left out if what it may win is worth less than it takes.
        """
        known: list[Offer] = []
        for number, (width, won) in enumerate(zip(ROUNDS, WON, strict=True)):
            tree = as_tree(grow(offers=[*offers, *known]))
            nodes, lost = answers.worth_asking(tree, width)
            drafter = self._node_drafters.get(source)
            if not nodes or drafter is None:
                break
            if plan.token_s is not None:
                share = IN_BATCH if plan.is_shared else 1.0
                gain = plan.trust * share * won * lost * plan.token_s
                if gain < self._round_s.get((source, number), 0.0):
                    break
            start = time.perf_counter()
            ask = functools.partial(answers.ask, drafter, context, tree, nodes, noise)
            found = self._guard(source, ask)
            self._learn_round((source, number), time.perf_counter() - start)
            if found is None:
                break
            known = found
        return known

    def _learn_round(self, which: tuple[int, int], seconds: float) -> None:
        """Keep what a round takes; one that took much longer than usual was disturbed."""
        usual = self._round_s.get(which)
        self._round_s[which] = (
            seconds if usual is None else usual + 0.2 * (min(seconds, 3 * usual) - usual)
        )

    def window(
        self, context: list[int], max_offset: int | None, costs: NDArray[np.float64] | None
    ) -> WindowRows | None:
        """Return the rows of the lookahead window for the next pass, if there is one."""
        if self._window is None or WINDOW_OFFER not in self._drafters:
            return None
        rows = functools.partial(self._window.rows, context, max_offset, costs)
        return self._guard(WINDOW_OFFER, rows)

    def learn(self, outcome: Outcome) -> None:
        """See what became of the tree that was drafted last."""
        if self._proposal is not None:
            self._pool.learn(self._proposal, outcome.path, outcome.chosen)
            self._count(self._proposal, outcome.path)
        if WINDOW_OFFER in self._drafters:
            gained = self._window_gain(outcome.path)
            self._call(WINDOW_OFFER, "earned", gained, len(outcome.chosen))
        if self._recycles:
            self._recycle_nodes(outcome)
            self._recycle_prompt(PARTS_MORE if len(outcome.path) > 1 else 0)
        self._pool.extend(outcome.chosen)
        for source in list(self._node_drafters):
            self._call(source, "learn", outcome)
        for source in list(self._drafters):
            # Lists of its own: a drafter that writes into what it is shown harms nobody.
            shown = replace(
                outcome,
                path=list(outcome.path),
                chosen=list(outcome.chosen),
                context=list(outcome.context),
            )
            self._call(source, "learn", shown)

    def _offers(self, context: list[int], max_nodes: int) -> list[Offer]:
        offers = []
        for source in list(self._drafters):
            offer = self._guard(source, functools.partial(self._offer, source, context, max_nodes))
            if offer is not None:
                offers.append(offer)
        return offers

    def _offer(self, source: int, context: list[int], max_nodes: int) -> Offer | None:
        guesses = self._drafters[source].draft(list(context), max_nodes)
        offer, fault = as_offer(guesses, source, context[-1], max_nodes, self._vocab_size)
        if fault is not None:
            self._report(source, fault)
        return offer

    def _recycle_nodes(self, outcome: Outcome) -> None:
        """Keep the candidates after every node. Accepted nodes come last: the newest row wins."""
        tree = outcome.tree
        tokens, probabilities = top_rows(outcome.logits)
        accepted = set(outcome.path)
        order = [n for n in range(len(tree.tokens)) if n not in accepted] + outcome.path
        previous = tree.tokens[tree.parents]
        before = len(outcome.context) - len(outcome.chosen)
        previous[0] = outcome.context[before - 2] if before >= 2 else -1
        self._pool.recycle(previous[order], tree.tokens[order], tokens[order], probabilities[order])
        self._show(tokens)

    def _show(self, candidates: NDArray[np.int32]) -> None:
        """Show the target's own candidates to drafters that want to see them."""
        for source in list(self._node_drafters):
            self._call(source, "see", candidates)

    def _count(self, proposal: Proposal, path: list[int]) -> None:
        sources = proposal.sources.tolist()
        accepted = set(path[1:])
        for bit, name in self._names.items():
            if name not in self._stats.by_source:
                continue
            mine = [node for node in range(1, len(sources)) if sources[node] & bit]
            self._stats.by_source[name].offered += len(mine)
            self._stats.by_source[name].accepted += len(accepted.intersection(mine))

    def _window_gain(self, path: list[int]) -> int:
        """Count accepted nodes from the first one on that only the window named."""
        if self._proposal is None:
            return 0
        alone = 4 << WINDOW_OFFER
        own = [i for i, node in enumerate(path) if self._proposal.sources[node] == alone]
        return len(path) - own[0] if own else 0

    def _make(self, source: int, factory: Callable[[], Any]) -> None:
        drafter = factory()
        if not callable(getattr(drafter, "draft", None)):
            raise TypeError(f"its factory made a {type(drafter).__name__}, which has no draft()")
        self._drafters[source] = drafter

    def _call(self, source: int, method: str, *args: Any) -> None:
        drafter = self._node_drafters.get(source) or self._drafters[source]
        function = getattr(drafter, method, None)
        if function is not None:
            self._guard(source, functools.partial(function, *args))

    def _guard(self, source: int, function: Callable[[], R]) -> R | None:
        """Run a stranger's code; whatever it raises, the drafter is dropped and the run goes on."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything
            self._report(source, f"raised {type(error).__name__}: {error}; it was dropped")
            self._drafters.pop(source, None)
            self._node_drafters.pop(source, None)
            return None

    def _report(self, source: int, fault: str) -> None:
        name = self._names[4 << source]
        text = f"drafter {name!r} {fault}"
        if text in self._stats.notes:
            return
        self._stats.note(text)
        # Where warnings are errors, this one still must not end a run that is otherwise sound.
        with contextlib.suppress(LookaheadWarning):
            warnings.warn(f"{text}. The output is not affected.", LookaheadWarning, stacklevel=2)


def as_tree(proposal: Proposal) -> DraftTree:
    """Return the tree of a proposal."""
    return DraftTree(proposal.tokens, proposal.parents, proposal.depths, proposal.probabilities)


def _window_drafter(config: Config, chooser: WindowChooser | None) -> WindowDrafter | None:
    if config.window == "auto":
        return WindowDrafter(chooser or WindowChooser(), NGRAM_SIZE, max(WIDTHS))
    return WindowDrafter(*config.window) if isinstance(config.window, tuple) else None
