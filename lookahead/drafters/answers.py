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
        self._tokens = [0]
        self._parents = [ROOT]
        self._depths = [0]
        self._probabilities = [1.0]

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
            known = len(self._tokens)
            for token, probability in zip(
                candidates.tokens[row].tolist(),
                candidates.probabilities[row].tolist(),
                strict=True,
            ):
                if token < 0:
                    break
                place = self._nodes.get((*path, token))
                if place is None:
                    self._append(path, parent, token, probability)
                elif self._probabilities[place] == LEADS and place < known:
                    self._probabilities[place] = probability

    def as_offers(self) -> list[Offer]:
        """Return everything as one offer, or none."""
        if len(self._tokens) == 1:
            return []
        tokens, parents = np.array(self._tokens), np.array(self._parents)
        probabilities = np.array(self._probabilities, dtype=np.float32)
        # Parents come first, and siblings by falling probability.
        order = np.lexsort((-probabilities, np.array(self._depths)))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return [Offer(self._source, tokens[order], place[parents[order]], probabilities[order])]

    def _place(self, path: Path) -> int:
        """Return the node at the end of a path; what others named on the way is put in."""
        for length in range(1, len(path) + 1):
            if path[:length] not in self._nodes:
                above = self._nodes[path[: length - 1]]
                self._append(path[: length - 1], above, path[length - 1], LEADS)
        return self._nodes[path]

    def _append(self, path: Path, parent: int, token: int, probability: float) -> None:
        self._nodes[(*path, token)] = len(self._tokens)
        self._depths.append(1 + len(path))
        self._tokens.append(token)
        self._parents.append(parent)
        self._probabilities.append(probability)
