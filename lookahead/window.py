"""The Jacobi lookahead window: tokens guessed at many places ahead of the text at once.

A data structure of plain integers. Which token stands where, who may see whom, and what a pass
turns it into; it knows no model, and not what becomes of its n-grams.

The window has columns and levels. The token of column c at level l stands c + l places behind the
root; the root itself is column 0 of level 0, so that level 0 is one row shorter than the others.
With the root at place 0, the places of 5 columns and n-grams of 4 tokens (3 levels) are

    =======  =======================
    level 0  (0)   1    2    3    4
    level 1    1   2    3    4    5
    level 2    2   3    4    5    6
    =======  =======================

A column is one trajectory: level 1 is what the target said after level 0, level 2 what it said
after both. The pass adds a last token to every column: an n-gram a column.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["LookaheadWindow", "WindowRows", "most_rows", "window_visibility"]


@dataclass(frozen=True, eq=False)
class WindowRows:
    """The rows of a window in one pass, level by level.

    Every row sees the committed text and the root besides, and no node of the draft tree; no node
    sees a row of the window.

    Parameters
    ----------
    tokens : ndarray, int64, [rows]
    offsets : ndarray, int64, [rows]
        Places behind the root.
    may_see : ndarray, bool, [rows, rows]
    num_read : int
        So many rows at the end, those of the last level, have their next tokens read; the others
        need no logits.
    """

    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    may_see: NDArray[np.bool_]
    num_read: int

    def __len__(self) -> int:
        return len(self.tokens)


class LookaheadWindow:
    """The window of one sequence.

    Level 0 starts with tokens of the text, drawn by a generator that the text seeds. The other
    levels are filled by the first passes, one a pass; until then there are more columns, of which
    each of these passes uses one up.

    Parameters
    ----------
    num_columns : int
        W of the paper.
    ngram_size : int
        N of the paper; there are N - 1 levels.
    context : sequence of int
        Committed tokens, at least one.

    Notes
    -----
    Source: Fu et al. 2024 (Lookahead Decoding), sections 3.1 and 3.2, figure 5. Departure: the
    first tokens are the same in every run. As in the authors' code, the window moves one place a
    step, however many tokens the step emitted: its trajectories then stand earlier than where they
    were made, but stay whole. Moving it along with the text measured worse (docs/log.md).
    """

    def __init__(self, num_columns: int, ngram_size: int, context: Sequence[int]) -> None:
        self._ngram_size = ngram_size
        text = np.array(context, dtype=np.int64)
        draw = np.random.default_rng(zlib.crc32(text.tobytes()))
        # The first level to be filled leaves one column behind, and so does each of the others.
        first = draw.choice(text, num_columns + ngram_size - 3)
        self._levels = [[int(token) for token in first]]

    @property
    def num_columns(self) -> int:
        """Columns now, column 0 included."""
        return len(self._levels[0]) + 1

    @property
    def levels(self) -> list[list[int]]:
        """Tokens by level; the root is left out of level 0. A copy."""
        return [list(level) for level in self._levels]

    @property
    def is_full(self) -> bool:
        """Whether all levels are there: from then on every pass gives n-grams."""
        return len(self._levels) == self._ngram_size - 1

    def narrow(self, max_offset: int) -> None:
        """Drop the columns that reach more than ``max_offset`` places behind the root."""
        columns = max(1, max_offset - len(self._levels) + 2)
        self._levels = [
            level[: columns - (number == 0)] for number, level in enumerate(self._levels)
        ]

    def rows(self, max_offset: int | None = None) -> WindowRows | None:
        """Return the rows for the next pass.

        Parameters
        ----------
        max_offset : int or None
            Columns that reach farther behind the root than this are dropped for good.

        Returns
        -------
        WindowRows or None
            None where nothing is left to run.
        """
        if max_offset is not None:
            self.narrow(max_offset)
        tokens = [token for level in self._levels for token in level]
        sizes = tuple(map(len, self._levels))
        if not sizes[-1] or (max_offset is not None and len(sizes) > max_offset + 1):
            return None
        return WindowRows(
            np.array(tokens, dtype=np.int64),
            _offsets(sizes),
            window_visibility(sizes),
            sizes[-1],
        )

    def advance(self, root: int, next_tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """Take in what the target says after the last level, and move on by one place.

        Parameters
        ----------
        root : int
            The root of the pass.
        next_tokens : sequence of int
            The target's best token after each row of the last level.

        Returns
        -------
        list of tuple of int
            One n-gram a column, once all levels are there; nothing before.
        """
        new = list(next_tokens)
        levels = self._levels
        if not self.is_full:
            # The tokens after level 0 belong to columns 1 and on, and there they stand rightly.
            kept = new if len(levels) == 1 else new[1:]
            self._levels = [*(level[1:] for level in levels), kept]
            return []
        columns = [[root, *levels[0]], *levels[1:], new]
        if len(levels) == 1:  # bigrams: what follows the root is the target's own next token
            columns[0] = levels[0]
            self._levels = [new]
        else:
            self._levels = [levels[1][1:], *levels[2:], new]
        return list(zip(*columns, strict=True))


@lru_cache(maxsize=256)
def window_visibility(sizes: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return who may see whom in a window.

    A row sees itself, the lower levels of its own column, and level 0 up to that column: together
    one token for each place from the root to its own.

    Parameters
    ----------
    sizes : tuple of int
        Rows of each level; level 0, whose column 0 is the root, has one less than the others.

    Returns
    -------
    ndarray, bool, [rows, rows]
        Not to be changed.

    Notes
    -----
    Source: Fu et al. 2024, figure 5, the part of the lookahead branch.
    """
    columns = np.array([column for _, column in _cells(sizes)])
    levels = np.array([level for level, _ in _cells(sizes)])
    same_column = columns[:, None] == columns[None, :]
    may_see = same_column & (levels[:, None] >= levels[None, :])
    may_see |= (levels[None, :] == 0) & (columns[:, None] >= columns[None, :])
    may_see.flags.writeable = False
    found: NDArray[np.bool_] = may_see
    return found


def most_rows(num_columns: int, ngram_size: int) -> int:
    """Return the most rows that a window of this shape has in any pass."""
    # With f levels filled besides level 0 there are W + N - 2 - f columns.
    wide = num_columns + ngram_size - 2
    return max((f + 1) * (wide - f) - 1 for f in range(ngram_size - 1))


@lru_cache(maxsize=256)
def _offsets(sizes: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array([level + column for level, column in _cells(sizes)], dtype=np.int64)


def _cells(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return level and column of every row."""
    return [
        (level, place + (level == 0)) for level, size in enumerate(sizes) for place in range(size)
    ]
