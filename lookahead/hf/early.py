"""Rows of one step that have been through the first layers of the target, and where they lie.

A row is known by its path of tokens from the root, not by a node number: the tree may be grown anew
between two looks at it. Rows lie in the order in which they were run. One whose node is not in the
tree any more stays where it is, seen by nobody.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.tree import DraftTree

__all__ = ["Corner", "EarlyRows", "Plan"]


class Corner(NamedTuple):
    """Who may see whom among the rows of one step.

    Parameters
    ----------
    may_see : ndarray, bool, [rows of the pass, rows of the step]
        The rows of the pass are the last ones of the step so far.
    depths : ndarray, int64, [rows of the step]
        How far below the root each stands.
    """

    may_see: NDArray[np.bool_]
    depths: NDArray[np.int64]


class Plan(NamedTuple):
    """What has to be run so that some nodes of a tree have their rows.

    Parameters
    ----------
    nodes : list of int
        Nodes to run, parents first.
    rows : list of int or None, [nodes + 1]
        The row of every node of the tree once they are run; None where there is none.
    tokens : ndarray, int64, [rows of the pass]
    corner : Corner
    row_of : dict
        The row that holds a token under the row of its parent; -1 above the root.
    """

    nodes: list[int]
    rows: list[int | None]
    tokens: NDArray[np.int64]
    corner: Corner
    row_of: dict[tuple[int | None, int], int]


class EarlyRows:
    """What the first layers computed in one step of one sequence.

    Parameters
    ----------
    exit_layer : int
        The rows went through so many layers.
    """

    def __init__(self, exit_layer: int) -> None:
        self.exit_layer = exit_layer
        self._row_of: dict[tuple[int | None, int], int] = {}
        self._seen: NDArray[np.bool_] = np.zeros((0, 0), dtype=np.bool_)
        self._depths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._left: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._depths)

    def plan(self, tree: DraftTree, nodes: Any) -> Plan:
        """Find out what to run for these nodes; the nodes above them are added."""
        wanted = {0}
        for node in nodes:
            wanted.update(tree.path(node))
        row_of = dict(self._row_of)
        rows: list[int | None] = []
        new: list[int] = []
        for node, token in enumerate(tree.tokens.tolist()):
            key = (rows[tree.parents[node]] if node else -1, token)
            if key not in row_of and node in wanted:
                row_of[key] = len(self) + len(new)
                new.append(node)
            rows.append(row_of.get(key))
        return Plan(new, rows, tree.tokens[new], self._corner(tree, new, rows), row_of)

    def add(self, plan: Plan, left: dict[int, Tensor]) -> None:
        """Take in rows that were run, and what left the layers for them, [1, rows, width]."""
        old = len(self)
        seen = np.zeros((old + len(plan.nodes),) * 2, dtype=np.bool_)
        seen[:old, :old] = self._seen
        seen[old:] = plan.corner.may_see
        self._seen, self._depths, self._row_of = seen, plan.corner.depths, plan.row_of
        for layer, hidden in left.items():
            parts = [self._left[layer], hidden[0]] if layer in self._left else [hidden[0]]
            self._left[layer] = torch.cat(parts)

    def left(self, layer: int, rows: list[int | None]) -> Tensor | None:
        """Return what left a layer for some rows, float, [rows, width], if it was looked at."""
        hidden = self._left.get(layer)
        if hidden is None or len(hidden) < len(self) or None in rows:
            return None
        return hidden[torch.tensor(rows, device=hidden.device)]

    def _corner(self, tree: DraftTree, new: list[int], rows: list[int | None]) -> Corner:
        """Add rows to who may see whom: each sees itself and what its parent sees."""
        old = len(self)
        seen = np.zeros((old + len(new),) * 2, dtype=np.bool_)
        seen[:old, :old] = self._seen
        for row, node in enumerate(new, start=old):
            above = rows[tree.parents[node]] if node else None
            if above is not None:
                seen[row] = seen[above]
            seen[row, row] = True
        return Corner(seen[old:], np.concatenate([self._depths, tree.depths[new]]))
