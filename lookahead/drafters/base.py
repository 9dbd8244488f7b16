"""What a drafter is: anything that guesses how a text goes on.

A drafter can cost time and nothing else. Whatever it returns or raises, the output is the
target's own: guesses are checked when they come in, and a drafter that breaks its contract is
reported and dropped for the rest of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lookahead.outcome import Outcome
from lookahead.tree import DraftTree

__all__ = ["Candidates", "Drafter", "Guesses", "NodeDrafter"]

#: What a drafter may return: a tree, whole guesses, one guess, or nothing.
Guesses = DraftTree | Sequence[Sequence[int]] | Sequence[int] | None


class Drafter(Protocol):
    """Proposes guesses, and sees what became of them.

    Called for one sequence: ``begin`` once, then ``draft`` and ``learn`` in turn. ``begin`` and
    ``learn`` may be left out by a drafter of the user's own; ``name``, if there is one, is what
    statistics call it.
    """

    def begin(self, context: list[int]) -> None:
        """Start on a new sequence whose committed tokens are ``context``."""

    def draft(self, context: list[int], max_nodes: int) -> Guesses:
        """Guess what comes after ``context``.

        Parameters
        ----------
        context : list of int
            Committed tokens; the last one is the root of a tree. Not to be changed.
        max_nodes : int
            More nodes than this are not looked at.

        Returns
        -------
        DraftTree, list of list of int, list of int, or None
            A tree under the last token; whole guesses; a single guess; or nothing. Only a tree
            says how probable its guesses are.
        """

    def learn(self, outcome: Outcome) -> None:
        """See what became of the step."""


class Candidates(NamedTuple):
    """What may follow each of some nodes, most probable first.

    Parameters
    ----------
    tokens : ndarray, int32, [nodes, k]
        -1 where there are fewer than ``k``.
    probabilities : ndarray, float32, [nodes, k]
        The drafter's own, given that the node is reached; descending.
    """

    tokens: NDArray[np.int32]
    probabilities: NDArray[np.float32]


class NodeDrafter(Protocol):
    """Says what may follow chosen nodes of the tree that is being grown.

    A :class:`Drafter` guesses on its own. This one is shown the merged tree so far and asked about
    the nodes where an answer is worth most, several at once, in a few rounds a step: for drafters
    whose answers cost something. Built in only; called for one sequence, ``begin`` once, then any
    number of ``ask`` and one ``learn`` a step.
    """

    #: What statistics call it.
    name: str

    def begin(self, context: list[int], hidden: Tensor | None) -> None:
        """Start on a new sequence.

        Parameters
        ----------
        context : list of int
            Committed tokens, the first one of the answer included.
        hidden : Tensor, float, [positions, width], or None
            What the output layer would be given for the last positions of the prompt; its last
            row is that of ``context[-2]``.
        """

    def ask(
        self,
        context: list[int],
        tree: DraftTree,
        nodes: list[int],
        noise: NDArray[np.float32] | None,
    ) -> Candidates | None:
        """Guess what follows each of these nodes; None where nothing is known.

        Parameters
        ----------
        context : list of int
            Committed tokens; the last one is the root of the tree.
        tree : DraftTree
            As far as it has grown. Node numbers hold for this call only: between two calls of one
            step the tree may be grown anew, with the same tokens in other places.
        nodes : list of int
            Nodes of the tree, the root (0) included, that were not asked about in this step.
        noise : ndarray, float32, [draws, vocab], or None
            What will be drawn with behind nodes of each depth: a token of little noise is worth
            naming even where it is not probable.
        """

    def learn(self, outcome: Outcome) -> None:
        """See what became of the step."""
