"""What a drafter is: anything that guesses how a text goes on.

A drafter can cost time and nothing else. Whatever it returns or raises, the output is the
target's own: guesses are checked when they come in, and a drafter that breaks its contract is
reported and dropped for the rest of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lookahead.outcome import Outcome
from lookahead.tree import DraftTree

__all__ = ["Drafter", "Guesses"]

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
