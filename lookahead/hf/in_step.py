"""A batch as plain decoding shows it: all rows in step, one token of each at a time.

Rows of ours advance at different speeds. What is shown outside waits until every row has got there,
and a row that has ended goes on with padding until the last one has: plain decoding does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lookahead.engine import Target
from lookahead.sequence import Sequence as Row
from lookahead.tree import DraftTree

__all__ = ["BatchStream", "fill_up"]

#: Padding tokens that a row reads in one pass.
PADS_AT_A_TIME = 64


class BatchStream:
    """Feeds a streamer with one token of every row at a time, as soon as all rows have theirs.

    Parameters
    ----------
    streamer
        Has ``put`` and ``end``.
    pad : Tensor or None
        The padding token, which rows that have ended are shown with.
    """

    def __init__(self, streamer: Any, pad: Tensor | None) -> None:
        self._streamer = streamer
        self._pad = pad
        self._rows: Sequence[Row] = ()
        self._tokens: list[list[int]] = []
        self._shown = 0

    def watch(self, rows: Sequence[Row]) -> None:
        """Name the rows; they tell when they have ended."""
        self._rows = rows
        self._tokens = [[] for _ in rows]

    def emitter(self, slot: int) -> Callable[[int], None]:
        """Return what takes the tokens of one row."""

        def emit(token: int) -> None:
            self._tokens[slot].append(token)
            while (step := self._step(self._shown)) is not None:
                self._shown += 1
                self._streamer.put(step)

        return emit

    def _step(self, place: int) -> Tensor | None:
        """Return the tokens of all rows at a place, int64, [batch]; None if one is to come."""
        there = [place < len(tokens) for tokens in self._tokens]
        if not any(there):
            return None
        if not all(has or row.finished for has, row in zip(there, self._rows, strict=True)):
            return None
        pad = 0 if self._pad is None else int(self._pad)
        return torch.tensor(
            [t[place] if has else pad for t, has in zip(self._tokens, there, strict=True)]
        )


def fill_up(target: Target, rows: Sequence[Row], pad: Tensor | None) -> int:
    """Let rows that ended early go on with padding until the longest has ended.

    Their scores, hidden states and K/V are then what plain decoding leaves, which goes on with all
    rows as long as one is unfinished.

    Parameters
    ----------
    target : Target
        Holds the K/V of all but the last token of every row.
    rows : sequence of Sequence
        All of the call. Changed.
    pad : Tensor or None
        The padding token; None only where no row can end before the others.

    Returns
    -------
    int
        Passes of the target.
    """
    longest, passes = max(len(row.seen) for row in rows), 0
    while short := [row for row in rows if len(row.seen) < longest]:
        assert pad is not None
        trees = [_padding(row, int(pad), longest) for row in short]
        seen = target.verify([row.slot for row in short], trees)
        passes += 1
        for row, tree, passed in zip(short, trees, seen, strict=True):
            row.chooser.begin(passed.logits)
            for node in range(len(tree) + 1):
                if row.scores is not None or row.logits is not None:
                    row.chooser.scores_at(node, row.seen.ids)
                row.context.append(int(pad))
                row.seen.append(int(pad))
            target.keep(row.slot, range(len(tree) + 1))
    return passes


def _padding(row: Row, pad: int, longest: int) -> DraftTree:
    """Return a chain of padding under the last token, one token shorter than what is missing."""
    nodes = min(longest - len(row.seen), PADS_AT_A_TIME) - 1
    return DraftTree.from_parents([row.context[-1], *[pad] * nodes], [0, *range(nodes)])
