"""The rows of a pass for one sequence: root and nodes, what stands before and behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lookahead.tree import DraftTree
from lookahead.window import WindowRows

__all__ = ["Rows", "rows_behind", "rows_of"]


@dataclass(frozen=True, eq=False)
class Rows:
    """What one sequence brings into a pass.

    Parameters
    ----------
    tokens : ndarray, int64, [rows]
        Committed tokens that are read again, root, nodes, window: so what is kept stands before
        what never is.
    offsets : ndarray, int64, [rows]
        Places behind the first row.
    may_see : ndarray, bool, [rows, rows]
        Who may see whom, the committed text left out: all rows see all of it.
    num_nodes : int
        Rows of the tree, its root included.
    window_read : range
        Rows of the window whose next tokens are read.
    num_before : int
        Rows before the root.
    """

    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    may_see: NDArray[np.bool_]
    num_nodes: int
    window_read: range
    num_before: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


def rows_behind(again: Sequence[int], tree: DraftTree) -> Rows:
    """Put committed tokens that have to be read again before a tree; all of it sees them."""
    if not again:
        return rows_of(tree)
    before, nodes = len(again), len(tree.tokens)
    may_see = np.zeros((before + nodes, before + nodes), dtype=np.bool_)
    may_see[:before, :before] = np.tri(before, dtype=np.bool_)
    may_see[before:, :before] = True
    may_see[before:, before:] = tree.ancestors()
    return Rows(
        np.concatenate([np.array(again, dtype=np.int64), tree.tokens]),
        np.concatenate([np.arange(before), before + tree.depths]),
        may_see,
        nodes,
        range(0),
        before,
    )


def rows_of(tree: DraftTree, window: WindowRows | None = None) -> Rows:
    """Put a tree and a window behind one another.

    Nodes see their ancestors, rows of the window see the root and each other as the window says,
    and neither sees the other.
    """
    if window is None:
        return Rows(tree.tokens, tree.depths, tree.ancestors(), len(tree.tokens), range(0))
    nodes = len(tree.tokens)
    size = nodes + len(window)
    may_see = np.zeros((size, size), dtype=np.bool_)
    may_see[:nodes, :nodes] = tree.ancestors()
    may_see[nodes:, nodes:] = window.may_see
    may_see[:, 0] = True
    return Rows(
        np.concatenate([tree.tokens, window.tokens]),
        np.concatenate([tree.depths, window.offsets]),
        may_see,
        nodes,
        range(size - window.num_read, size),
    )
