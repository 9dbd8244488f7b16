"""The rows of a pass for one sequence: root and nodes, and the window behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lookahead.tree import DraftTree
from lookahead.window import WindowRows

__all__ = ["Rows", "rows_of"]


@dataclass(frozen=True, eq=False)
class Rows:
    """What one sequence brings into a pass.

    Parameters
    ----------
    tokens : ndarray, int64, [rows]
        Root, nodes, window: so the K/V that is kept stands before the K/V that never is.
    offsets : ndarray, int64, [rows]
        Places behind the root.
    may_see : ndarray, bool, [rows, rows]
        Who may see whom, the committed text left out: all rows see all of it.
    num_nodes : int
        Rows of the tree, its root included.
    window_read : range
        Rows of the window whose next tokens are read.
    """

    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    may_see: NDArray[np.bool_]
    num_nodes: int
    window_read: range

    def __len__(self) -> int:
        return len(self.tokens)


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
