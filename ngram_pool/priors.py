"""What is believed before anything was counted: how likely a token is, by what sources say of it.

Logistic formulas in a few numbers, fitted once to what became of the guesses of a small model on
prompts of many kinds (docs/log.md); counts soon replace them. They are evaluated once, at the
middle of each bucket, so pools only ever read a table.
"""

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ngram_pool.features import (
    EXIT,
    EXIT_OTHERS,
    HEAD_OTHERS,
    NGRAM_OTHERS,
    NUM_HIDDEN,
    NUM_KINDS,
    NUM_NGRAM,
    NUM_OFFER,
    NUM_PRIORS,
    NUM_PROBABILITIES,
    NUM_RECYCLED,
    NUM_SHARES,
    OFFER_PRIORS,
    RECYCLED_OTHERS,
)
from ngram_pool.layout import Float32Array

__all__ = ["default_priors"]

# Middles of the buckets of features.py. Shares: seen once, 3 in between, always.
LENGTHS: Final = (0.5, 1.0, 2.0, 3.0, 4.0, 5.5, 8.0, 12.0, 24.0)
SHARES: Final = (0.5, 0.2, 0.5, 0.8, 0.5)
PROBABILITIES: Final = (0.01, 0.035, 0.07, 0.15, 0.27, 0.45, 0.67, 0.9)
HIDDEN_PROBABILITIES: Final = (0.002, 0.007, 0.014, 0.032, 0.07, 0.15, 0.27, 0.45, 0.67, 0.9)
RANKS: Final = (0.0, 1.0, 2.5, 5.5)

SEEN_ONCE: Final = 0
ALWAYS: Final = NUM_SHARES - 1
OFFER_TRUST: Final = 0.7

# Weights of _ngram_terms and _recycled_terms, then of the kind of silence of the other source.
NGRAM_ALONE: Final = (-0.04, 0.21, -1.54, 0.82, 0.86, 0.73, -0.1, 0.1, -0.72, -0.77)
RECYCLED_ALONE: Final = (-0.91, -1.0, -1.5, 0.36, 0.23, 0.3, -0.99, 0.12, -0.25, -0.36, -1.42)
BOTH: Final = (
    0.02,
    0.27,
    -0.34,
    1.18,
    0.07,
    0.41,
    -0.08,
    0.12,
    -0.16,
    -0.3,
    0.33,
    0.06,
    0.1,
    -0.57,
)

# Weights where the head names a token: constant, logit of its probability, not its first, below the
# root; _ngram_terms and kinds of silence; _recycled_terms and kinds of silence; the logit by who
# else names it, both, neither, the logit by length, by the pair's row, and where nobody else does.
HEAD_NAMES: Final = np.array(
    [
        -0.14,
        0.52,
        -0.27,
        0.0,
        0.2,
        0.33,
        -0.11,
        0.87,
        0.37,
        -0.01,
        -0.42,
        0.0,
        0.04,
        -0.05,
        -0.55,
        0.31,
        0.26,
        -0.11,
        0.14,
        0.13,
        -0.13,
        -0.63,
        0.05,
        -0.36,
        -0.28,
        0.04,
        0.0,
        0.38,
        -0.64,
        -0.13,
        -0.03,
        0.25,
    ]
)
# And where the head names other tokens: constant, below the root; the same terms; both.
HEAD_SILENT: Final = np.array(
    [
        -2.12,
        -0.23,
        0.78,
        1.02,
        -1.91,
        0.9,
        0.62,
        1.67,
        -0.14,
        0.0,
        0.39,
        -0.49,
        -1.92,
        -0.21,
        -0.66,
        -1.52,
        0.19,
        0.11,
        0.23,
        -1.03,
        0.86,
        0.14,
        -0.74,
        -0.37,
    ]
)


def _logit(probability: float) -> float:
    return float(np.log(probability / (1.0 - probability)))


def _ngram_terms(feature: int) -> list[float]:
    """Seen once, always, else; log length in either case; share; is the most recent one."""
    kind, recent = divmod(feature - 1, 2)
    length, share = divmod(kind, NUM_SHARES)
    log_length = float(np.log(LENGTHS[length]))
    sure = share in {SEEN_ONCE, ALWAYS}
    return [
        float(share == SEEN_ONCE),
        float(share == ALWAYS),
        float(not sure),
        log_length * sure,
        log_length * (not sure),
        _logit(SHARES[share]),
        float(recent and share != SEEN_ONCE),
    ]


def _recycled_terms(feature: int) -> list[float]:
    """Kind of the row; the logit of its probability by kind; rank."""
    place, probability = divmod(feature - 1, NUM_PROBABILITIES)
    kind, rank = divmod(place, len(RANKS))
    logit = _logit(PROBABILITIES[probability])
    kinds = _one_hot(kind, NUM_KINDS)
    return [*kinds, *(logit * is_kind for is_kind in kinds), float(np.log1p(RANKS[rank]))]


def _one_hot(place: int, size: int) -> list[float]:
    return [float(i == place) for i in range(size)]


def _prior(ngram: int, recycled: int) -> float:
    """Compute the rate of a token with these features; 0 if neither source names it."""
    by_ngram = 0 < ngram < NGRAM_OTHERS
    by_recycled = 0 < recycled < RECYCLED_OTHERS
    if by_ngram and by_recycled:
        terms = _ngram_terms(ngram) + _recycled_terms(recycled)
        weights: tuple[float, ...] = BOTH
    elif by_ngram:
        # Silence of the rows, a pair's row that leaves the token out, a single token's.
        terms = _ngram_terms(ngram) + _one_hot(max(0, recycled - RECYCLED_OTHERS + 1), 3)
        weights = NGRAM_ALONE
    elif by_recycled:
        terms = _recycled_terms(recycled) + _one_hot(max(0, ngram - NGRAM_OTHERS + 1), 4)
        weights = RECYCLED_ALONE
    else:
        return 0.0
    score: NDArray[np.float64] = np.dot(terms, weights)
    return float(1.0 / (1.0 + np.exp(-score)))


@functools.cache
def default_priors() -> Float32Array:
    """Compute all priors.

    Returns
    -------
    array, float32, [94 * 99 * 64 + 41]
        Of every combination of an n-gram, a recycled and a hidden feature, flat; then of every
        offer feature.
    """
    priors = np.zeros(NUM_PRIORS, np.float32)
    own = np.array([[_prior(n, r) for r in range(NUM_RECYCLED)] for n in range(NUM_NGRAM)])
    priors[:OFFER_PRIORS] = _with_hidden(own).ravel()
    middles = np.array(PROBABILITIES, np.float32)
    priors[OFFER_PRIORS + 1 :] = np.tile(OFFER_TRUST * middles, NUM_OFFER // NUM_PROBABILITIES)
    return priors


def _with_hidden(own: NDArray[np.float64]) -> NDArray[np.float64]:
    """Combine what n-grams and rows say with every feature of hidden states, [n, r, h]."""
    joint = np.empty((NUM_NGRAM, NUM_RECYCLED, NUM_HIDDEN))
    joint[..., 0] = own
    for hidden in range(1, NUM_HIDDEN):
        joint[..., hidden] = _sigmoid(_scores(hidden))
    # No offer at all is no candidate; the bucket is never asked for.
    joint[0, 0, [HEAD_OTHERS, HEAD_OTHERS + 1, EXIT_OTHERS]] = 0.0
    return joint


def _scores(hidden: int) -> NDArray[np.float64]:
    """Score a feature of hidden states next to all pairs of the others, [n, r]."""
    ngrams, rows = _ngram_table(), _recycled_table()
    by_ngram, by_row = ngrams[:, :1] * 0.0, rows[:, :1] * 0.0
    by_ngram[1:NGRAM_OTHERS], by_row[1:RECYCLED_OTHERS] = 1.0, 1.0
    both, neither = by_ngram @ by_row.T, (1 - by_ngram) @ (1 - by_row).T
    is_exit = hidden >= EXIT
    if hidden in {HEAD_OTHERS, HEAD_OTHERS + 1, EXIT_OTHERS}:
        weights = HEAD_SILENT
        below = float(hidden != HEAD_OTHERS)
        constant = weights[0] + weights[1] * below + both * weights[-1]
        return constant + ngrams @ weights[2:13][:, None] + (rows @ weights[13:23][:, None]).T
    place, bucket = divmod(hidden - (EXIT if is_exit else 1), len(HIDDEN_PROBABILITIES))
    below, is_other = (0, place) if is_exit else divmod(place, 2)
    logit = _logit(HIDDEN_PROBABILITIES[bucket])
    weights = HEAD_NAMES
    constant = weights[0] + weights[1] * logit + weights[2] * is_other + weights[3] * below
    with_logit = (
        by_ngram * weights[25] + ngrams[:, 3:4] * weights[29],
        by_row * weights[26] + rows[:, 3:4] * weights[30],
    )
    return (
        constant
        + ngrams @ weights[4:15][:, None]
        + (rows @ weights[15:25][:, None]).T
        + logit * (with_logit[0] + with_logit[1].T)
        + both * weights[27]
        + neither * (weights[28] + weights[31] * logit)
    )


def _ngram_table() -> NDArray[np.float64]:
    """Terms of every n-gram feature, then its kinds of silence, [n, 11]."""
    named = [_ngram_terms(n) if 0 < n < NGRAM_OTHERS else [0.0] * 7 for n in range(NUM_NGRAM)]
    silent = [_silence(n, NGRAM_OTHERS, 4) for n in range(NUM_NGRAM)]
    return np.hstack([named, silent])


def _recycled_table() -> NDArray[np.float64]:
    """Terms of every recycled feature, then its kinds of silence, [r, 10]."""
    named = [
        _recycled_terms(r) if 0 < r < RECYCLED_OTHERS else [0.0] * 7 for r in range(NUM_RECYCLED)
    ]
    silent = [_silence(r, RECYCLED_OTHERS, 3) for r in range(NUM_RECYCLED)]
    return np.hstack([named, silent])


def _silence(feature: int, others: int, kinds: int) -> list[float]:
    """Say nothing at all, or name others in one of the ways; all 0 where the token is named."""
    if feature == 0:
        return _one_hot(0, kinds)
    return _one_hot(feature - others + 1, kinds) if feature >= others else [0.0] * kinds


def _sigmoid(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1.0 / (1.0 + np.exp(-score)))
