"""The loop: draft, verify, accept, commit, learn.

Knows sequences, not batches, and no model: a :class:`Target` computes logits for the rows it is
given. An empty tree is plain decoding; there is no other loop.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Protocol

from torch import Tensor

from lookahead.accept import Walk, accept
from lookahead.budget import Budget, Plan
from lookahead.config import Config
from lookahead.outcome import Outcome, PassRows, PromptRows
from lookahead.sequence import Sequence
from lookahead.stats import DecodeStats, StepRecord
from lookahead.tree import DraftTree
from lookahead.window import WindowRows

__all__ = ["Engine", "Target"]


class Target(Protocol):
    """The model whose output is preserved, with the K/V of the sequences being decoded."""

    def prefill(self) -> Tensor:
        """Run the prompts; return the logits after each, float, [sequences, vocab]."""

    def prompt_rows(self, slot: int, limit: int) -> Iterator[PromptRows]:
        """Yield logits after the last ``limit`` prompt positions, in parts, newest first."""

    def prompt_hidden(self, slot: int) -> Tensor | None:
        """Return what the output layer would be given for the last prompt positions, or None.

        Float, [positions, width]; the last row is that of the last prompt token.
        """

    def verify(
        self,
        slots: Seq[int],
        trees: Seq[DraftTree],
        windows: Seq[WindowRows | None] | None = None,
    ) -> list[PassRows]:
        """Run all trees in one pass; return for each what it computed, [nodes + 1] rows.

        The K/V of a node is written behind those of its sequence, and counts from
        :meth:`keep` on. That of a window, written behind the nodes, is never kept.
        """

    @property
    def seconds_aside(self) -> float:
        """Seconds of the last pass in which something was tried that is not part of a pass."""

    def may_draft(self, slot: int) -> bool:
        """Say whether the next pass can verify guesses of a sequence."""

    def keep(self, slot: int, path: Seq[int]) -> None:
        """Keep the K/V of these nodes of the last pass, in this order, and drop the others."""


class Engine:
    """Decodes a list of sequences with one target.

    Parameters
    ----------
    target : Target
    budget : Budget
    config : Config
    stats : DecodeStats
        Filled while decoding.
    """

    def __init__(self, target: Target, budget: Budget, config: Config, stats: DecodeStats) -> None:
        self._target = target
        self._budget = budget
        self._config = config
        self._stats = stats

    def run(self, sequences: Seq[Sequence]) -> None:
        """Decode until every sequence has finished.

        Holds before and after every step: for each live sequence the cache has K/V for
        ``context[:-1]``; the last committed token is not cached and is the root of the next tree.
        """
        start = time.perf_counter()
        with self._stats.timed("prefill"):
            logits = self._target.prefill()
        self._stats.prefill_s = time.perf_counter() - start
        # The prefill is a pass over an empty tree: its last row is the root's.
        for sequence in sequences:
            with self._stats.timed("accept"):
                self._accept(sequence, sequence.only_root(), logits[sequence.slot][None])
            if not sequence.finished:
                self._begin(sequence)
        del logits
        left = [sequence.max_depth for sequence in sequences]
        most = None if any(n is None for n in left) else max(n for n in left if n is not None)
        self._budget.begin(len(sequences), self._stats.prefill_s, most)
        while live := [s for s in sequences if not s.finished]:
            self.step(live)

    def step(self, live: Seq[Sequence]) -> None:
        """Advance every live sequence by at least one token, in one target pass."""
        stats, target = self._stats, self._target
        begun, emitted = time.perf_counter(), 0

        # Draft: guess continuations of the last committed token.
        with stats.timed("draft"):
            plan = self._budget.plan(len(live))
            trees = self._trees(live, plan)
            windows = self._windows(live, trees) if plan.max_nodes else [None] * len(live)

        # Verify: one target pass scores every node of every tree.
        start = time.perf_counter()
        with stats.timed("verify"):
            seen = target.verify([s.slot for s in live], trees, windows)
        aside = target.seconds_aside
        seconds = time.perf_counter() - start - aside
        # A window may be left out: its rows count where its tokens came back.
        ran = [
            0 if window is None or rows.window_tokens is None else len(window)
            for window, rows in zip(windows, seen, strict=True)
        ]
        most_rows = max(
            1 + len(tree) + more + rows.num_again
            for tree, more, rows in zip(trees, ran, seen, strict=True)
        )
        self._budget.learn_pass(len(live) * most_rows, seconds)
        stats.passes += 1
        stats.window_rows += sum(ran)
        stats.rows_again += sum(rows.num_again for rows in seen)

        for sequence, tree, seen_rows in zip(live, trees, seen, strict=True):
            # Accept: plain decoding, replayed down the tree.
            with stats.timed("accept"):
                walk = self._accept(sequence, tree, seen_rows.logits)
            stats.record(StepRecord(len(tree), walk.accepted, len(walk.chosen)))
            stats.count_depths(walk.accepted)
            self._budget.learn_tree(tree, walk.accepted)
            emitted += len(walk.chosen)

            # Commit: the K/V of root and accepted nodes stay, the rest is dropped.
            with stats.timed("commit"):
                target.keep(sequence.slot, walk.path)

            # Learn: the drafter sees what happened, rejected nodes included.
            with stats.timed("learn"):
                sequence.drafter.learn(
                    Outcome(
                        tree,
                        walk.path,
                        walk.chosen,
                        sequence.context,
                        seen_rows.logits,
                        seen_rows.hidden,
                        seen_rows.window_tokens,
                    )
                )
        self._budget.learn_step(len(live), emitted, time.perf_counter() - begun - aside)

    def _trees(self, live: Seq[Sequence], plan: Plan) -> list[DraftTree]:
        """Draft a tree for each sequence; in a batch all of them have the size that pays."""
        trees = [self._draft(sequence, plan) for sequence in live]
        if not plan.is_shared:
            return trees
        size = self._budget.size(trees, plan)
        return [
            s.drafter.cut(size) if len(tree) > size else tree
            for s, tree in zip(live, trees, strict=True)
        ]

    def _draft(self, sequence: Sequence, plan: Plan) -> DraftTree:
        depth = self._max_depth(sequence) if self._target.may_draft(sequence.slot) else 0
        noise = sequence.chooser.noise(depth) if plan.max_nodes else None
        return sequence.drafter.draft(sequence.context, plan, depth, noise)

    def _accept(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> Walk:
        sequence.chooser.begin(logits)
        walk = accept(tree, sequence)
        self._stats.new_tokens += len(walk.chosen)
        if sequence.finished:
            sequence.chooser.finish()
        return walk

    def _begin(self, sequence: Sequence) -> None:
        """Show the drafter the prompt, after the first token is out: nobody waits for it."""
        with self._stats.timed("learn"):
            hidden = self._target.prompt_hidden(sequence.slot)
            sequence.drafter.begin(sequence.context, hidden)
            if self._config.draft_budget:
                rows = functools.partial(self._target.prompt_rows, sequence.slot)
                sequence.drafter.recycle(rows)

    def _windows(self, live: Seq[Sequence], trees: Seq[DraftTree]) -> list[WindowRows | None]:
        """Ask for windows; none where no guess can be of use any more."""
        if self._config.window is None or not self._config.draft_budget:
            return [None] * len(live)
        costs = self._budget.window_costs(1 + max(map(len, trees)), len(live))
        return [
            s.drafter.window(s.context, s.max_offset, costs) if self._max_depth(s) else None
            for s in live
        ]

    def _max_depth(self, sequence: Sequence) -> int:
        left = sequence.max_depth
        return self._config.max_depth if left is None else min(self._config.max_depth, left)
