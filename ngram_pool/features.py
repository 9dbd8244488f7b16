"""Features of a candidate as small integers, and how counts become a probability.

Every function here takes and returns plain numbers, so that the same source runs in Python
(``DictPool``) and compiled (``NgramPool``): the two cannot drift apart. Feature 0 always means
"this source says nothing here"; that it names other tokens is a feature of its own.
"""

import math
from typing import Final

__all__ = [
    "NUM_GUESS",
    "NUM_HIDDEN",
    "NUM_NGRAM",
    "NUM_OFFER",
    "NUM_RECYCLED",
    "drawn_alone",
    "exit_feature",
    "exit_others",
    "head_feature",
    "head_others",
    "joint_rate",
    "race_speed",
    "race_won",
    "ngram_feature",
    "ngram_others",
    "offer_feature",
    "rate",
    "recycled_feature",
    "recycled_others",
]

NUM_LENGTHS: Final = 9
NUM_SHARES: Final = 5
NUM_RANKS: Final = 4
NUM_KINDS: Final = 3
NUM_PROBABILITIES: Final = 8
# Kinds of recycled rows: of the last two tokens, of the last one, and the one that the last token
# was itself chosen from: what was likely then and not chosen often comes next.
PAIR: Final = 0
SINGLE: Final = 1
PARENT: Final = 2

# Features from here on: the source names tokens here, and this is none of them. How much that says
# depends on how sure the source is, so: match of 0 or 1, of 2 or 3, of more; row of the pair, of
# the token.
NGRAM_OTHERS: Final = 1 + NUM_LENGTHS * NUM_SHARES * 2  # 91
RECYCLED_OTHERS: Final = 1 + NUM_KINDS * NUM_RANKS * NUM_PROBABILITIES  # 97
NUM_NGRAM: Final = NGRAM_OTHERS + 3
NUM_RECYCLED: Final = RECYCLED_OTHERS + 2
NUM_OFFER: Final = 1 + 5 * NUM_PROBABILITIES  # 41: four drafters of the user's own, the window

# What drafters that read hidden states say: the head by depth (at the root, below it) and rank
# (first, other), early exit by rank.
NUM_HIDDEN_PROBABILITIES: Final = 10
HEAD_OTHERS: Final = 1 + 2 * 2 * NUM_HIDDEN_PROBABILITIES  # 41
EXIT: Final = HEAD_OTHERS + 2
EXIT_OTHERS: Final = EXIT + 2 * NUM_HIDDEN_PROBABILITIES  # 63
NUM_HIDDEN: Final = EXIT_OTHERS + 1

# The third axis of the buckets: a feature of hidden states, or one of other offers behind those.
NUM_GUESS: Final = NUM_HIDDEN + NUM_OFFER - 1
NUM_BUCKETS: Final = NUM_NGRAM * NUM_RECYCLED * NUM_GUESS

# Where the priors of offers start, behind those of all combinations of the other features.
OFFER_PRIORS: Final = NUM_NGRAM * NUM_RECYCLED * NUM_HIDDEN
NUM_PRIORS: Final = OFFER_PRIORS + NUM_OFFER

# How many offers the prior is worth; how much of the noisy-or gain is believed at first.
STRENGTH: Final = 16.0
AGREEMENT: Final = 0.3
LOWEST: Final = 1e-4
HIGHEST: Final = 0.999

# How far probabilities are trusted where the noise of a draw is known: infinity would be wholly,
# and 0 not at all.
SHARPNESS: Final = 0.9
LEAST_NOISE: Final = 1e-9


def length_bucket(length: int) -> int:
    """Bucket of a match length in tokens: 0, 1, 2, 3, 4, 5-6, 7-9, 10-15, 16 and more."""
    if length <= 4:
        return length
    if length <= 6:
        return 5
    if length <= 9:
        return 6
    return 7 if length <= 15 else 8


def share_bucket(count: int, total: int) -> int:
    """Bucket of count / total: seen once; below 0.34, 0.67, 1; always (at least twice)."""
    if total <= 1:
        return 0
    if count >= total:
        return 4
    share = count / total
    if share < 0.34:
        return 1
    return 2 if share < 0.67 else 3


def probability_bucket(probability: float) -> int:
    """Bucket of a source's own probability; edges 0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8."""
    if probability < 0.1:
        if probability < 0.02:
            return 0
        return 1 if probability < 0.05 else 2
    if probability < 0.35:
        return 3 if probability < 0.2 else 4
    if probability < 0.55:
        return 5
    return 6 if probability < 0.8 else 7


def rank_bucket(rank: int) -> int:
    """Bucket of a rank that starts at 0: 0, 1, 2-3, 4 and more."""
    if rank < 2:
        return rank
    return 2 if rank < 4 else 3


def ngram_feature(length: int, count: int, total: int, is_recent: int) -> int:
    """Feature of a token seen `count` of `total` times behind a match of that length, 1 to 90."""
    return 1 + (length_bucket(length) * 5 + share_bucket(count, total)) * 2 + is_recent


def recycled_feature(kind: int, rank: int, probability: float) -> int:
    """Feature of a token of a recycled row (PAIR, SINGLE or PARENT), 1 to 96."""
    return 1 + (kind * 4 + rank_bucket(rank)) * 8 + probability_bucket(probability)


def ngram_others(length: int) -> int:
    """Feature of a token that the n-grams behind a match of that length do not name, 91 to 93."""
    if length <= 1:
        return NGRAM_OTHERS
    return NGRAM_OTHERS + 1 if length <= 3 else NGRAM_OTHERS + 2


def recycled_others(kind: int) -> int:
    """Feature of a token that the recycled row (PAIR or SINGLE) does not name, 97 or 98."""
    return RECYCLED_OTHERS + kind


def offer_feature(source: int, probability: float) -> int:
    """Feature of a token that another drafter (0 to 3) or the window (4) offers, 1 to 40."""
    return 1 + source * 8 + probability_bucket(probability)


def hidden_bucket(probability: float) -> int:
    """Bucket of a probability; edges 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8."""
    if probability < 0.05:
        if probability < 0.01:
            return 0 if probability < 0.005 else 1
        return 2 if probability < 0.02 else 3
    if probability < 0.2:
        return 4 if probability < 0.1 else 5
    if probability < 0.35:
        return 6
    if probability < 0.55:
        return 7
    return 8 if probability < 0.8 else 9


def head_feature(depth: int, rank: int, probability: float) -> int:
    """Feature of a token that the head names behind a node of that depth, 1 to 40."""
    below = 1 if depth > 0 else 0
    other = 1 if rank > 0 else 0
    return 1 + (below * 2 + other) * NUM_HIDDEN_PROBABILITIES + hidden_bucket(probability)


def head_others(depth: int) -> int:
    """Feature of a token that the head was asked for and does not name, 41 or 42."""
    return HEAD_OTHERS if depth == 0 else HEAD_OTHERS + 1


def exit_feature(rank: int, probability: float) -> int:
    """Feature of a token that early exit names, 43 to 62."""
    other = 1 if rank > 0 else 0
    return EXIT + other * NUM_HIDDEN_PROBABILITIES + hidden_bucket(probability)


def exit_others() -> int:
    """Feature of a token that early exit was asked for and does not name, 63."""
    return EXIT_OTHERS


def rate(accepted: float, offered: float, prior: float, strength: float) -> float:
    """Smoothed acceptance rate: the prior counts as `strength` offers."""
    return (accepted + strength * prior) / (offered + strength)


def clip(probability: float) -> float:
    """Keep a probability away from 0 and 1, whatever the counts say."""
    return min(max(probability, LOWEST), HIGHEST)


def race_speed(probability: float, noise: float) -> float:
    """How fast a token runs in the race that a draw is: the fastest one is drawn."""
    return probability / max(noise, LEAST_NOISE)


def race_won(speed: float, best: float, field: float, rest: float) -> float:
    """Probability that a token of known noise is drawn.

    `best` is the highest speed of the tokens that a source names, `field` the sum of all their
    speeds, relative to it, to the power of SHARPNESS, `rest` the probability of all others, whose
    noise is not looked at.
    """
    return float((speed / best) ** SHARPNESS / field * math.exp(-rest / best))


def drawn_alone(probability: float, noise: float) -> float:
    """Probability that a token is drawn whose noise is the only one that is known."""
    return math.exp((probability - 1.0) * noise / probability)


def joint_rate(own: float, offered: float) -> float:
    """Prior of a token that other drafters offer, too (0 = not offered).

    Sources that agree are worth more than the best of them and less than independent ones: the
    best rate plus a part of what noisy-or would add.
    """
    best = max(own, offered)
    noisy_or = 1.0 - (1.0 - own) * (1.0 - offered)
    return best + AGREEMENT * (noisy_or - best)
