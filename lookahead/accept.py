"""The walk: plain decoding replayed over logits that are already there.

The only place where tokens are chosen, stopping rules asked and streamers fed.
"""

from __future__ import annotations

from dataclasses import dataclass

from lookahead.sequence import Sequence
from lookahead.tree import ROOT, DraftTree

__all__ = ["Walk", "accept"]


@dataclass(frozen=True)
class Walk:
    """Where the target went in a tree.

    Parameters
    ----------
    path : list of int
        Nodes whose K/V stay, root first. The target reached them and the run went on behind them.
    chosen : list of int
        The target's token after each node of ``path``: what was emitted. The last one is the
        bonus token, which no guess foretold or behind which the run ended.
    """

    path: list[int]
    chosen: list[int]

    @property
    def accepted(self) -> int:
        """Drafted tokens kept, the bonus token not counted."""
        return len(self.path) - 1


def accept(tree: DraftTree, sequence: Sequence) -> Walk:
    """Follow the target's own tokens down the draft tree, committing each.

    Parameters
    ----------
    tree : DraftTree
        Its root is the last token of the sequence.
    sequence : Sequence
        Its chooser has begun with the logits of this tree. Changed: tokens are committed, until
        one leaves the tree or a stopping rule says that it was the last.

    Returns
    -------
    Walk

    Notes
    -----
    Source: Miao et al. 2024 (SpecInfer), section 4.3, on token trees. Departure: the target's
    token is chosen first and then looked for among the children, so nothing about the guesses can
    change what is emitted; k accepted guesses always give k + 1 tokens.
    """
    path, chosen = [ROOT], []
    while True:
        token = sequence.chooser.choose(path[-1], sequence.seen.ids)
        sequence.commit(token)
        chosen.append(token)
        child = tree.child(path[-1], token)
        if sequence.finished or child is None:
            return Walk(path, chosen)
        path.append(child)
