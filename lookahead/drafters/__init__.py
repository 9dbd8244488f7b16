"""Drafters: what guesses, one file each, merged into one tree.

To add a source, write a class with the methods of :class:`~lookahead.drafters.base.Drafter` in a
file of its own and name it in ``Config.drafters``.
"""

from lookahead.drafters.base import Drafter, Guesses, NodeDrafter
from lookahead.drafters.merge import MergedDrafter

__all__ = ["Drafter", "Guesses", "MergedDrafter", "NodeDrafter"]
