"""What goes in and comes out of ``propose``: trees as flat arrays, checked once.

A tree is three parallel arrays; node 0 is the root and a parent always stands before its children,
so no tree can hold a cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngram_pool.layout import (
    HEAD_OFFER,
    MAX_OFFERS,
    MAX_TOKEN,
    FlatOffers,
    Float32Array,
    Int64Array,
)

__all__ = ["Offer", "Proposal"]

# Probabilities come from float32 softmax: a hair above 1 is rounding, not an error.
ROUNDING = 1e-3


@dataclass(frozen=True, eq=False)
class Offer:
    """A small draft tree of another drafter, with its own probabilities.

    Siblings that name the same token are merged on construction: the highest probability counts and
    their children come together.

    Parameters
    ----------
    source : int
        Which drafter, each calibrated on its own: 0 to 3 the user's own, 4 the lookahead window,
        5 the head, 6 early exit.
    tokens : array, int, [nodes]
        Node 0 is the root; its token is not looked at.
    parents : array, int, [nodes]
        ``parents[i] < i``; ``parents[0]`` is ignored.
    probabilities : array, float32, [nodes]
        Probability of the node given its parent, 0 to 1; that of the root is ignored. Of the head
        and of early exit, -1 says that the node was named by others and merely leads to what lies
        below it; what else they name behind a node comes in descending order.

    Raises
    ------
    ValueError
        If a source, shape, token, parent or probability is not as above.
    """

    source: int
    tokens: Int64Array
    parents: Int64Array
    probabilities: Float32Array

    def __post_init__(self) -> None:
        if not 0 <= self.source < MAX_OFFERS:
            raise ValueError(
                f"Expected an offer source from 0 to {MAX_OFFERS - 1}, received {self.source!r}."
            )
        tokens = _integers("offer tokens", self.tokens)
        parents = _integers("offer parents", self.parents)
        given = np.array(self.probabilities, dtype=np.float32)
        if not len(tokens) == len(parents) == given.size or given.ndim != 1 or not len(tokens):
            raise ValueError(
                "Expected offer tokens, parents and probabilities of one length, root included; "
                f"received {len(tokens)}, {len(parents)} and {given.shape}."
            )
        parents[0] = 0
        given[0] = 1.0
        _check_offer(tokens, parents, given, can_lead=self.source >= HEAD_OFFER)
        np.minimum(given, 1.0, out=given)
        tokens, parents, given = _merge_siblings(tokens, parents, given)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "parents", parents)
        object.__setattr__(self, "probabilities", given)


@dataclass(frozen=True, eq=False)
class Proposal:
    """A draft tree, depth first, best child first; node 0 is the root.

    Parameters
    ----------
    tokens : array, int64, [nodes]
        Token of each node; that of the root is the last of the text (0 if there is none).
    parents : array, int64, [nodes]
        ``parents[i] < i``; ``parents[0]`` is 0 by convention.
    depths : array, int64, [nodes]
        0 for the root.
    probabilities : array, float32, [nodes]
        Estimated probability that the whole path to the node is accepted; 1 for the root.
    lifts : array, float32, [nodes]
        How many times as probable as its features alone would say the node is behind its parent,
        because the noise of the draw is known; 1 where it is not.
    buckets : array, int32, [nodes]
        Joint calibration bucket of the node; 0 for the root.
    sources : array, uint16, [nodes]
        Who offered the node: 1 n-grams, 2 recycled rows, ``4 << i`` offers of source i.
    """

    tokens: Int64Array
    parents: Int64Array
    depths: Int64Array
    probabilities: Float32Array
    lifts: Float32Array
    buckets: NDArray[np.int32]
    sources: NDArray[np.uint16]

    def __len__(self) -> int:
        """Return the number of drafted nodes, the root not counted."""
        return len(self.tokens) - 1


NO_OFFERS = FlatOffers(
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.float32),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
)


def flatten(offers: Sequence[Offer]) -> FlatOffers:
    """Put offers, ordered by source, behind one another.

    Raises
    ------
    ValueError
        If two offers have the same source.
    """
    if not offers:
        return NO_OFFERS
    ordered = sorted(offers, key=lambda offer: offer.source)
    sources = [offer.source for offer in ordered]
    if len(set(sources)) != len(sources):
        raise ValueError(f"Expected at most one offer per source, received sources {sources}.")
    roots = np.cumsum([0] + [len(offer.tokens) for offer in ordered[:-1]])
    parents = np.concatenate([o.parents + root for o, root in zip(ordered, roots, strict=True)])
    parents[roots] = -1
    return FlatOffers(
        np.concatenate([offer.tokens for offer in ordered]),
        parents,
        np.concatenate([offer.probabilities for offer in ordered]),
        np.array(sources, np.int64),
        roots,
    )


def _integers(name: str, values: object) -> Int64Array:
    """Copy to a one-dimensional int64 array, or say what came."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"Expected {name} as a one-dimensional list of integers, "
            f"received dtype {array.dtype} and shape {array.shape}."
        )
    return array.astype(np.int64)


def _check_offer(
    tokens: Int64Array, parents: Int64Array, probabilities: Float32Array, *, can_lead: bool
) -> None:
    wrong = np.flatnonzero((tokens[1:] < 0) | (tokens[1:] > MAX_TOKEN)) + 1
    if wrong.size:
        raise ValueError(
            f"Expected offer tokens from 0, received {tokens[wrong[0]]} at {wrong[0]}."
        )
    wrong = np.flatnonzero((parents[1:] < 0) | (parents[1:] >= np.arange(1, len(parents)))) + 1
    if wrong.size:
        raise ValueError(
            f"Expected the parent of offer node {wrong[0]} to stand before it, "
            f"received {parents[wrong[0]]}."
        )
    # Written so that NaN is refused as well.
    right = (probabilities >= 0.0) & (probabilities <= 1.0 + ROUNDING)
    if can_lead:
        right |= probabilities == -1.0
    if not right.all():
        place = int(np.argmin(right))
        raise ValueError(
            f"Expected offer probabilities from 0 to 1, received {probabilities[place]} at {place}."
        )


def _merge_siblings(
    tokens: Int64Array, parents: Int64Array, probabilities: Float32Array
) -> tuple[Int64Array, Int64Array, Float32Array]:
    """Merge children of one node that name the same token, if there are any."""
    keys = np.sort((parents[1:] << 32) | tokens[1:])
    if not (keys[1:] == keys[:-1]).any():
        return tokens, parents, probabilities
    pairs = list(zip(parents.tolist()[1:], tokens.tolist()[1:], strict=True))
    kept = [0]
    home = [0]  # new number of each old node
    known: dict[tuple[int, int], int] = {}
    merged_parents = [0]
    merged = [1.0]
    for node, (parent, token) in enumerate(pairs, start=1):
        key = (home[parent], token)
        probability = float(probabilities[node])
        if key in known:
            place = known[key]
            merged[place] = max(merged[place], probability)
        else:
            place = known[key] = len(kept)
            kept.append(node)
            merged_parents.append(key[0])
            merged.append(probability)
        home.append(place)
    return tokens[kept], np.array(merged_parents, np.int64), np.array(merged, np.float32)
