"""What one node drafter has answered in a step, and which nodes are worth asking it about next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lookahead.drafters.base import Candidates, NodeDrafter
from lookahead.tree import ROOT, DraftTree
from ngram_pool import Offer

__all__ = ["Answers"]

Path = tuple[int, ...]

#: A node is not asked about where less probability than this leaves the tree.
LEAST_LOST = 0.02
#: Says in an offer that a node was named by others and merely leads to what lies below it.
LEADS = -1.0
#: Nodes that there is room for at first: four rounds of answers.
FIRST_ROOM = 512


class Answers:
    """Answers of one node drafter to one tree, by the path of tokens that leads to a node.

    Parameters
    ----------
    source : int
        Source number of the offer they become.
    max_depth : int
        Nodes of this depth have no children in any tree, so they are not asked about.
    """

    def __init__(self, source: int, max_depth: int) -> None:
        self._source = source
        self._max_depth = max_depth
        self._asked: set[Path] = set()
        self._nodes: dict[Path, int] = {(): ROOT}
        self._size = 1
        self._tokens = np.zeros(FIRST_ROOM, dtype=np.int64)
        self._parents = np.zeros(FIRST_ROOM, dtype=np.int64)
        self._depths = np.zeros(FIRST_ROOM, dtype=np.int64)
        self._probabilities = np.ones(FIRST_ROOM, dtype=np.float32)
        self._is_in_order = True  # parents first, and siblings by falling probability

    def worth_asking(self, tree: DraftTree, limit: int) -> tuple[list[int], float]:
        """Return the nodes where most probability leaves the tree, and how much it is in all.

        What leaves the tree at a node is the probability that it is reached and that none of its
        children is next. Only nodes whose parents were asked come into question, the root first:
        so a drafter that works its way down does one level a round.
        """
        lost = tree.probabilities.astype(np.float64)
        np.subtract.at(lost, tree.parents[1:], tree.probabilities[1:])
        lost[tree.depths >= self._max_depth] = 0.0
        if () not in self._asked:
            return [ROOT], float(lost[ROOT])
        order = [n for n in np.argsort(-lost, kind="stable").tolist() if lost[n] >= LEAST_LOST]
        nodes: list[int] = []
        for node in order[: 4 * limit]:
            path = tree.token_path(node)
            if path and path not in self._asked and path[:-1] in self._asked:
                nodes.append(node)
            if len(nodes) == limit:
                break
        return nodes, float(lost[nodes].sum())

    def ask(
        self,
        drafter: NodeDrafter,
        context: list[int],
        tree: DraftTree,
        nodes: list[int],
        noise: NDArray[np.float32] | None = None,
    ) -> list[Offer] | None:
        """Ask about nodes of a tree; return all answers so far as offers, or None if it is done."""
        candidates = drafter.ask(context, tree, nodes, noise)
        if candidates is None:
            return None
        self.take(tree, nodes, candidates)
        return self.as_offers()

    def take(self, tree: DraftTree, nodes: list[int], candidates: Candidates) -> None:
        """Take in what was answered about nodes of a tree."""
        for row, node in enumerate(nodes):
            path = tree.token_path(node)
            self._asked.add(path)
            parent = self._place(path)
            known = self._size
            named = zip(
                candidates.tokens[row].tolist(),
                candidates.probabilities[row].tolist(),
                strict=True,
            )
            new: dict[int, float] = {}
            for token, probability in named:
                if token < 0:
                    break
                place = self._nodes.get((*path, token))
                if place is None:
                    new.setdefault(token, probability)
                elif self._probabilities[place] == LEADS and place < known:
                    self._probabilities[place] = probability
                    self._is_in_order = False
            self._append(path, parent, new)

    def as_offers(self) -> list[Offer]:
        """Return everything as one offer, or none."""
        if self._size == 1:
            return []
        tokens, parents = self._tokens[: self._size], self._parents[: self._size]
        probabilities = self._probabilities[: self._size]
        if not self._is_in_order:
            order = np.lexsort((-probabilities, self._depths[: self._size]))
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            tokens, parents = tokens[order], place[parents[order]]
            probabilities = probabilities[order]
        return [Offer(self._source, tokens, parents, probabilities)]

    def _place(self, path: Path) -> int:
        """Return the node at the end of a path; what others named on the way is put in."""
        for length in range(1, len(path) + 1):
            if path[:length] not in self._nodes:
                above = self._nodes[path[: length - 1]]
                self._append(path[: length - 1], above, {path[length - 1]: LEADS})
        return self._nodes[path]

    def _append(self, path: Path, parent: int, new: dict[int, float]) -> None:
        """Put children under a node."""
        start, end = self._size, self._size + len(new)
        if end > len(self._tokens):
            self._grow(end)
        values = list(new.values())
        self._tokens[start:end] = list(new)
        self._parents[start:end] = parent
        self._depths[start:end] = 1 + len(path)
        self._probabilities[start:end] = values
        self._nodes.update(zip([(*path, token) for token in new], range(start, end), strict=True))
        self._is_in_order &= values == sorted(values, reverse=True)
        self._size = end

    def _grow(self, room: int) -> None:
        for name in ("_tokens", "_parents", "_depths", "_probabilities"):
            old = getattr(self, name)
            more = np.zeros(2 * room - len(old), dtype=old.dtype)
            setattr(self, name, np.concatenate([old, more]))
