"""What is read of a pass: which rows the output layer computes, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lookahead.choose import largest
from lookahead.outcome import PassRows
from lookahead.rows import Rows

__all__ = ["pass_rows", "rows_read"]


def pass_rows(
    rows: Rows | None, logits: Tensor, hidden: Tensor | None, slot: int, read: list[int]
) -> PassRows:
    """Return what a pass computed for one sequence; ``logits`` are of rows ``read``."""
    if rows is None:
        return PassRows(logits[slot, :0])
    first = read.index(rows.num_before)
    own = slice(rows.num_before, rows.num_before + rows.num_nodes)
    return PassRows(
        logits[slot, first : first + rows.num_nodes],
        None if hidden is None else hidden[slot, own],
        _window_tokens(rows, logits[slot], read),
        rows.num_before,
    )


def rows_read(there: Sequence[Rows]) -> list[int]:
    """Return the rows of a pass whose logits any sequence reads: its tree's, and of its window."""
    of_trees = (range(r.num_before, r.num_before + r.num_nodes) for r in there)
    return sorted(set().union(*of_trees, *(rows.window_read for rows in there)))


def _window_tokens(rows: Rows, logits: Tensor, read: list[int]) -> list[int] | None:
    """Return the best tokens after the last level of a window; ``logits`` are of rows ``read``."""
    if not rows.window_read:
        return None
    # The last level stands in one piece at the end of a sequence's rows, and all of it is read.
    start = read.index(rows.window_read.start)
    return largest(logits[start : start + len(rows.window_read)])
