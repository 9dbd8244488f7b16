"""The draft tree: what was guessed, as tokens and parents.

Knows nothing of models, tensors or of where a guess came from; a source is a name in a bit mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lookahead.errors import TreeError

__all__ = ["ROOT", "DraftTree"]

#: Index of the root: the last committed token, not a guess.
ROOT = 0


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Guesses after the last committed token.

    Node 0 is the root; a parent stands before its children, so one pass over the arrays visits
    parents first. The length counts drafted nodes only: an empty tree is plain decoding.

    Parameters
    ----------
    tokens : ndarray, int64, [nodes + 1]
    parents : ndarray, int64, [nodes + 1]
        ``parents[0]`` is 0 and means nothing.
    depths : ndarray, int64, [nodes + 1]
        0 for the root.
    probabilities : ndarray, float32, [nodes + 1]
        Expected probability that a node is reached; 1 for the root.

    Raises
    ------
    TreeError
        If the arrays differ in length or a parent does not stand before its child.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    depths: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    _children: dict[tuple[int, int], int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = len(self.tokens)
        lengths = [len(a) for a in (self.parents, self.depths, self.probabilities)]
        if size == 0 or any(length != size for length in lengths):
            raise TreeError(
                f"a tree needs a root, and as many tokens as parents, depths and probabilities; "
                f"it has {size} tokens, and of the others {lengths}."
            )
        parents = self.parents.tolist()
        tokens = self.tokens.tolist()
        children: dict[tuple[int, int], int] = {}
        for node in range(1, size):
            if not 0 <= parents[node] < node:
                raise TreeError(
                    f"the parent of node {node} must be a node before it, not {parents[node]}."
                )
            # Of two siblings with one token the first wins; the other can never be reached.
            children.setdefault((parents[node], tokens[node]), node)
        object.__setattr__(self, "_children", children)

    def __len__(self) -> int:
        return len(self.tokens) - 1

    @classmethod
    def only_root(cls, token: int) -> DraftTree:
        """Make the empty tree under a committed token."""
        return cls.from_paths(token, ())

    @classmethod
    def from_parents(
        cls,
        tokens: Sequence[int] | NDArray[np.int64],
        parents: Sequence[int] | NDArray[np.int64],
        probabilities: Sequence[float] | NDArray[np.float32] | None = None,
    ) -> DraftTree:
        """Make a tree from tokens and parents, node 0 being the root.

        Raises
        ------
        TreeError
            If a parent does not stand before its child.
        """
        up = np.array(parents, dtype=np.int64)
        if len(up):
            up[0] = 0
        depths = np.zeros(len(up), dtype=np.int64)
        for node in range(1, len(up)):
            if not 0 <= up[node] < node:
                raise TreeError(
                    f"the parent of node {node} must be a node before it, not {int(up[node])}."
                )
            depths[node] = depths[up[node]] + 1
        if probabilities is None:
            probabilities = np.ones(len(up), dtype=np.float32)
        return cls(
            np.array(tokens, dtype=np.int64), up, depths, np.array(probabilities, dtype=np.float32)
        )

    @classmethod
    def from_paths(cls, root: int, paths: Iterable[Sequence[int]]) -> DraftTree:
        """Make a tree from whole guesses; guesses that begin alike share their first nodes."""
        tokens, parents = [root], [ROOT]
        children: dict[tuple[int, int], int] = {}
        for path in paths:
            node = ROOT
            for token in path:
                key = (node, int(token))
                if key not in children:
                    children[key] = len(tokens)
                    tokens.append(int(token))
                    parents.append(node)
                node = children[key]
        return cls.from_parents(tokens, parents)

    def child(self, node: int, token: int) -> int | None:
        """Return the child of ``node`` that holds ``token``, or None."""
        return self._children.get((node, token))

    def children(self, node: int) -> list[int]:
        """Return all children of ``node``, first guess first."""
        return [n for n in range(node + 1, len(self.tokens)) if self.parents[n] == node]

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root's child down to ``node``; empty for the root."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def token_path(self, node: int) -> tuple[int, ...]:
        """Return the tokens from the root's child down to ``node``; empty for the root."""
        return tuple(self.tokens[self.path(node)].tolist())

    def ancestors(self) -> NDArray[np.bool_]:
        """Return who may see whom.

        Returns
        -------
        ndarray, bool, [nodes + 1, nodes + 1]
            ``[i, j]`` is true where j is i itself or stands on the way from the root to i.

        Notes
        -----
        Source: Miao et al. 2024 (SpecInfer), section 4.2, tree attention.
        """
        size = len(self.tokens)
        seen = np.zeros((size, size), dtype=np.bool_)
        for node in range(size):
            if node:
                seen[node] = seen[self.parents[node]]
            seen[node, node] = True
        return seen
