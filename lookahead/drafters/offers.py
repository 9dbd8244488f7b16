"""Guesses of strangers, made safe: whatever comes in, a small tree of real tokens goes out."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from lookahead.drafters.base import Guesses
from lookahead.errors import TreeError
from lookahead.tree import ROOT, DraftTree
from ngram_pool import Offer

__all__ = ["as_offer"]


def as_offer(
    guesses: Guesses, source: int, root: int, max_nodes: int, vocab_size: int
) -> tuple[Offer | None, str | None]:
    """Turn what a drafter returned into an offer for the merged tree.

    Parameters
    ----------
    guesses : Guesses
        Whatever the drafter returned.
    source : int
        Number of the drafter, 0 to 3.
    root : int
        The last committed token.
    max_nodes : int
        Nodes behind this many are cut off.
    vocab_size : int
        Tokens outside ``range(vocab_size)`` are left out, with all that hangs below them.

    Returns
    -------
    Offer or None
        None where there is nothing to offer.
    str or None
        What was wrong with the guesses, if something was.

    Raises
    ------
    TreeError
        If the guesses are of no known form.
    """
    tree = _as_tree(guesses, root, max_nodes)
    if tree is None:
        return None, None
    tokens, parents, probabilities = [root], [ROOT], [1.0]
    kept = {ROOT: ROOT}
    fault = None
    for node in range(1, len(tree.tokens)):
        if len(tokens) > max_nodes:
            break
        parent = int(tree.parents[node])
        if parent not in kept:
            continue
        token = int(tree.tokens[node])
        if not 0 <= token < vocab_size:
            fault = f"proposed token {token}, which is not in the vocabulary of {vocab_size}"
            continue
        kept[node] = len(tokens)
        tokens.append(token)
        parents.append(kept[parent])
        above = max(float(tree.probabilities[parent]), 1e-9)
        share = float(tree.probabilities[node]) / above
        probabilities.append(min(max(share, 0.0), 1.0) if np.isfinite(share) else 0.0)
    if len(tokens) == 1:
        return None, fault
    offer = Offer(
        source,
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        np.array(probabilities, dtype=np.float32),
    )
    return offer, fault


def _as_tree(guesses: Any, root: int, max_nodes: int) -> DraftTree | None:
    if guesses is None or isinstance(guesses, DraftTree):
        return guesses
    if hasattr(guesses, "tolist"):
        guesses = guesses.tolist()
    try:
        # No more is read than can be used, so that a guess without an end does no harm.
        items = list(islice(guesses, max_nodes))
        if not items:
            return None
        nested = [items]
        if hasattr(items[0], "__iter__"):
            nested = [list(islice(path, max_nodes)) for path in items]
        return DraftTree.from_paths(root, nested)
    except (TypeError, ValueError, OverflowError) as error:
        raise TreeError(
            f"a drafter returns a DraftTree, a list of token lists, one list of tokens, or None; "
            f"it returned {type(guesses).__name__} ({error})."
        ) from error
