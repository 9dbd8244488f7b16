"""A target whose passes verify one branch: for models that cannot read a tree.

Rows of a chain are rows of plain text, so they need no mask and no place of their own. Where layers
keep a state of all that they have read, rejected guesses are taken back by going back to the state
before the pass. What was accepted is then read again, at the front of the next pass: no pass is
spent on it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lookahead.hf.early import Corner
from lookahead.hf.target import HFTarget
from lookahead.outcome import PassRows
from lookahead.rows import Rows, rows_behind
from lookahead.tree import DraftTree
from lookahead.window import WindowRows

__all__ = ["ChainTarget"]

#: With so many tokens to read again nothing is guessed: a pass without guesses settles them all.
MOST_AGAIN = 8


class ChainTarget(HFTarget):
    """One call's view of a model that reads chains; of one sequence.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`HFTarget`.
    takes_mask : bool
        Whether its attention takes masks; if not, it makes its own for plain text.
    """

    def __init__(self, *args: Any, takes_mask: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._takes_mask = takes_mask
        self._again: list[int] = []  # committed tokens that the states do not know of
        self._tree = DraftTree.only_root(0)

    def may_draft(self, slot: int) -> bool:  # noqa: ARG002 - there is one only
        """Say whether the next pass can verify guesses of a sequence."""
        return len(self._again) < MOST_AGAIN

    def verify(
        self,
        slots: Sequence[int],
        trees: Sequence[DraftTree],
        windows: Sequence[WindowRows | None] | None = None,  # noqa: ARG002 - it has none
    ) -> list[PassRows]:
        """Run a chain in one pass; return what it computed."""
        self._tree = trees[0]
        if len(self._tree) and self._cache.has_states:
            self._cache.save_states()
        return super().verify(slots, trees)

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Keep root and accepted nodes of the last pass, and drop the others."""
        if not self._cache.has_states:
            super().keep(slot, path)
        elif len(path) == len(self._tree.tokens):
            super().keep(slot, range(len(self._again) + len(path)))
            self._again = []
        else:
            self._cache.restore_states()
            self._again += self._tree.tokens[list(path)].tolist()

    def settle(self) -> None:
        """Read what is to be read again, so that the cache holds all but the last token."""
        if self._again:
            root, *rest = self._again
            self._again = []
            tree = DraftTree.from_parents([root, *rest], [0, *range(len(rest))])
            self.verify([0], [tree])
            self.keep(0, range(len(tree.tokens)))

    def _rows(self, slot: int, tree: DraftTree, window: WindowRows | None) -> Rows:  # noqa: ARG002
        return rows_behind(self._again, tree)

    def _needs_mask(self, num_rows: int, corners: Sequence[Corner | None]) -> bool:
        return self._takes_mask and super()._needs_mask(num_rows, corners)
