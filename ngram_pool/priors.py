"""What is believed before anything was counted: one prior per feature.

The formulas are small, smooth and meant to be replaced: pass other tables to ``Calibration``. They
are evaluated once, at the middle of each bucket, so pools only ever read a table.
"""

from typing import Final

import numpy as np

from ngram_pool.features import (
    FIRST_OFFER,
    FIRST_RECYCLED,
    NUM_LENGTHS,
    NUM_MARGINAL,
    NUM_PROBABILITIES,
    NUM_RANKS,
    NUM_SHARES,
)
from ngram_pool.layout import Float32Array

__all__ = ["default_priors"]

# Middles of the buckets of features.py.
LENGTHS: Final = (1.0, 2.0, 3.0, 4.0, 5.5, 8.0, 12.0, 24.0)
SHARES: Final = (0.67, 0.2, 0.5, 0.8, 0.92)  # seen once counts as two thirds of always
PROBABILITIES: Final = (0.01, 0.035, 0.07, 0.15, 0.27, 0.45, 0.67, 0.9)

RECENT_BONUS: Final = 0.04
PAIR_TRUST: Final = 0.8
SINGLE_TRUST: Final = 0.5
OFFER_TRUST: Final = 0.7


def ngram_prior(length: float, share: float, is_recent: bool) -> float:
    """Longer matches and larger shares are trusted more; the latest continuation a little more."""
    return (0.35 + 0.06 * min(length, 8.0)) * share + RECENT_BONUS * is_recent


def default_priors() -> Float32Array:
    """Compute the prior of every feature.

    Returns
    -------
    array, float32, [marginal features]
        n-gram features first, then recycled, then offers; entry 0 of each part is 0.
    """
    priors = np.zeros(NUM_MARGINAL, np.float32)
    for i in range(NUM_LENGTHS):
        for j in range(NUM_SHARES):
            for recent in (False, True):
                place = 1 + (i * NUM_SHARES + j) * 2 + recent
                priors[place] = ngram_prior(LENGTHS[i], SHARES[j], recent)
    middles = np.array(PROBABILITIES, np.float32)
    pair = np.tile(PAIR_TRUST * middles, NUM_RANKS)
    single = np.tile(SINGLE_TRUST * middles, NUM_RANKS)
    priors[FIRST_RECYCLED + 1 : FIRST_OFFER] = np.concatenate([pair, single])
    priors[FIRST_OFFER + 1 :] = np.tile(OFFER_TRUST * middles, 32 // NUM_PROBABILITIES)
    return priors
