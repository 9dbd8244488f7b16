"""How often tokens with given features were accepted: all that pools learn about themselves.

Counts are kept for every combination of features: what the n-grams say of a token, what the
recycled row says, and what other drafters say. A combination that was seen little is judged by its
prior, see priors.py.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from ngram_pool.features import (
    NUM_BUCKETS,
    NUM_GUESS,
    NUM_HIDDEN,
    NUM_PRIORS,
    NUM_RECYCLED,
    OFFER_PRIORS,
    STRENGTH,
    clip,
    joint_rate,
    rate,
)
from ngram_pool.layout import Float32Array
from ngram_pool.priors import default_priors
from ngram_pool.proposal import Proposal

__all__ = ["Calibration"]

# Counts of a cell are halved beyond this many offers: float32 stays exact and old habits fade.
MOST_OFFERED: Final = 2.0**20

ACCEPTED: Final = 0
OFFERED: Final = 1


class Calibration:
    """Counts of accepted and offered tokens, shared by every pool of one model.

    Pools read it in ``propose`` and write it in ``learn``. Several threads may share one: an update
    may then be lost, which costs nothing but a count.

    Parameters
    ----------
    priors : array, float32, [priors], optional
        Acceptance rates believed before anything was counted; see ``priors.default_priors``.

    Attributes
    ----------
    counts : array, float32, [94 * 99 * 104, 2]
        Accepted and offered per combination of features, flat.

    Raises
    ------
    ValueError
        If ``priors`` has another shape.
    """

    def __init__(self, priors: Float32Array | None = None) -> None:
        self.priors = np.array(default_priors() if priors is None else priors, np.float32)
        if self.priors.shape != (NUM_PRIORS,):
            raise ValueError(f"Expected {NUM_PRIORS} priors, received {self.priors.shape}.")
        self.counts: Float32Array = np.zeros((NUM_BUCKETS, 2), np.float32)

    def probability(self, ngram: int, recycled: int, hidden: int = 0, offer: int = 0) -> float:
        """Estimate how likely a token with these features is accepted, given its parent is.

        Parameters
        ----------
        ngram, recycled, hidden, offer : int
            Features of features.py; 0 where a source says nothing.

        Returns
        -------
        float
            From 0.0001 to 0.999.
        """
        return self.judge(ngram, recycled, hidden, offer)[0]

    def judge(self, ngram: int, recycled: int, hidden: int, offer: int) -> tuple[float, int]:
        """Return that estimate, and which feature of the third axis of the buckets counted.

        Of what hidden states say and what other drafters say, the more promising one counts.
        """
        probability = self._rate(ngram, recycled, hidden)
        if offer:
            guess = NUM_HIDDEN + offer - 1
            other = self._rate(ngram, recycled, guess)
            if not hidden or other > probability:
                return other, guess
        return probability, hidden

    def _rate(self, ngram: int, recycled: int, guess: int) -> float:
        own = ngram * NUM_RECYCLED + recycled
        if guess < NUM_HIDDEN:
            prior = float(self.priors[own * NUM_HIDDEN + guess])
        else:
            offer = guess - NUM_HIDDEN + 1
            prior = joint_rate(
                float(self.priors[own * NUM_HIDDEN]), float(self.priors[OFFER_PRIORS + offer])
            )
        accepted, offered = self.counts[bucket(ngram, recycled, guess)]
        return clip(rate(float(accepted), float(offered), prior, STRENGTH))

    def learn(self, proposal: Proposal, path: Sequence[int], chosen: Sequence[int]) -> None:
        """Count what became of the children of the accepted path.

        A node that was drafted because the noise of the draw favours it counts as that many offers
        as it was lifted: acceptance by offers is then the rate without sight of the noise.

        Parameters
        ----------
        proposal : Proposal
            The tree that was verified.
        path : sequence of int
            Accepted nodes in order, the root (0) first.
        chosen : sequence of int
            The target's token after each node of the path.

        Raises
        ------
        ValueError
            If the path does not start at the root, leaves the tree, or has another length than
            ``chosen``.
        """
        _check_path(proposal, path, chosen)
        after = dict(zip(path, chosen, strict=True))
        parents = proposal.parents.tolist()
        for node in range(1, len(parents)):
            token = after.get(parents[node])
            if token is not None:
                accepted = bool(proposal.tokens[node] == token)
                offered = float(proposal.lifts[node])
                self._count(int(proposal.buckets[node]), accepted, offered)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Copy everything into plain arrays; of the counts only the cells in use.

        Returns
        -------
        dict of arrays
            ``priors``, ``cells`` (int32) and ``counts`` (float32, [cells, 2]).
        """
        cells = np.flatnonzero(self.counts[:, OFFERED]).astype(np.int32)
        return {"priors": self.priors.copy(), "cells": cells, "counts": self.counts[cells]}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Take over what ``snapshot`` returned; pools that share this object see it at once.

        Raises
        ------
        ValueError
            If the arrays are not those of a snapshot. Nothing is changed then.
        """
        _check_snapshot(snapshot)
        self.priors[:] = snapshot["priors"]
        self.counts[:] = 0.0
        self.counts[snapshot["cells"]] = snapshot["counts"]

    def copy(self) -> Self:
        """Return an independent copy."""
        twin = type(self)(self.priors)
        twin.counts[:] = self.counts
        return twin

    def _count(self, place: int, accepted: bool, offered: float) -> None:
        cell = self.counts[place]
        cell[ACCEPTED] += accepted
        cell[OFFERED] += offered
        if cell[OFFERED] > MOST_OFFERED:
            cell[:] *= 0.5


def bucket(ngram: int, recycled: int, guess: int) -> int:
    """Flat joint bucket: of n-grams, recycled rows, and hidden states or other offers."""
    return (ngram * NUM_RECYCLED + recycled) * NUM_GUESS + guess


def _check_path(proposal: Proposal, path: Sequence[int], chosen: Sequence[int]) -> None:
    if len(path) != len(chosen) or not len(path) or path[0] != 0:
        raise ValueError(
            "Expected a path that starts with the root, 0, and one chosen token for each of its "
            f"nodes; received a path of {list(path)} and {len(chosen)} tokens."
        )
    for parent, node in pairwise(path):
        if not 0 < node < len(proposal.tokens) or proposal.parents[node] != parent:
            raise ValueError(f"Expected a child of node {parent} in the path, received {node}.")


def _check_snapshot(snapshot: Mapping[str, NDArray[Any]]) -> None:
    missing = {"priors", "cells", "counts"} - set(snapshot)
    if missing:
        raise ValueError(f"Expected a snapshot of a Calibration, received none of {missing}.")
    cells, counts = snapshot["cells"], snapshot["counts"]
    shapes_fit = (
        snapshot["priors"].shape == (NUM_PRIORS,)
        and cells.ndim == 1
        and cells.dtype.kind == "i"
        and counts.shape == (len(cells), 2)
    )
    cells_fit = shapes_fit and (not cells.size or (cells.min() >= 0 and cells.max() < NUM_BUCKETS))
    numbers = (snapshot["priors"], counts)
    if not cells_fit or not all(np.isfinite(n).all() and (n >= 0).all() for n in numbers):
        raise ValueError("Expected the arrays of Calibration.snapshot(), received other ones.")
