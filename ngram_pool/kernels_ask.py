"""What the sources say may come behind a node of a growing tree.

Every `_ask...` function appends candidates to the work space, or adds its feature to a candidate
that names the same token.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngram_pool.features import (
    PAIR,
    SHARPNESS,
    SINGLE,
    exit_feature,
    exit_others,
    head_feature,
    head_others,
    ngram_feature,
    ngram_others,
    offer_feature,
    race_speed,
    race_won,
    recycled_feature,
    recycled_others,
)
from ngram_pool.features import PARENT as PARENT_ROW
from ngram_pool.kernels_common import _find, helper
from ngram_pool.layout import (
    HEAD_OFFER,
    LENGTH,
    LINK,
    MAX_CHAIN,
    MAX_OFFERS,
    NGRAM_SOURCE,
    NONE,
    OFFER_SOURCE,
    RECENT,
    RECYCLED_SOURCE,
    ROOT,
    ROW_WIDTH,
    TOP,
    TOP_COUNTS,
    TOP_TOKENS,
    TOTAL,
    FlatOffers,
    Float32Array,
    Int32Array,
    Int64Array,
    RowArrays,
    TextArrays,
)

__all__: list[str] = []

# Columns of a candidate, int32: what it is, the features it has, and its node in each offer.
TOKEN: Final = 0
PARENT: Final = 1
NGRAM: Final = 2
RECYCLED: Final = 3
OFFER: Final = 4
HIDDEN: Final = 5
GUESS: Final = 6  # which of the last two counted
SOURCES: Final = 7
OFFER_NODES: Final = 8  # ... 14
CANDIDATE_WIDTH: Final = OFFER_NODES + MAX_OFFERS
MOST_OWN: Final = 2 * TOP + 2 * ROW_WIDTH  # candidates of a node that come from no offer


class Scores(NamedTuple):
    """The arrays of a calibration."""

    counts: Float32Array
    priors: Float32Array


class Sources(NamedTuple):
    """Everything that is asked about a node."""

    text: TextArrays
    rows: RowArrays
    offers: FlatOffers
    scores: Scores
    noise: Float32Array  # [depths, tokens], of the next draws; none where nothing is drawn
    use_ngrams: bool
    use_rows: bool


class Growth(NamedTuple):
    """Work space of one call."""

    cells: Int32Array  # [candidates, CANDIDATE_WIDTH]
    probs: NDArray[np.float64]  # [candidates], path probability
    lifts: NDArray[np.float64]  # [candidates], how many times as probable as without the noise
    offered: NDArray[np.float64]  # [candidates], best probability in any offer
    heap: Int64Array  # [candidates]
    taken: Int64Array  # [nodes], candidate of each node
    states: Int64Array  # [nodes], state that the path to the node matches
    lengths: Int64Array  # [nodes], tokens matched
    depths: Int64Array  # [nodes]
    others: Int64Array  # [3], n-gram, recycled and hidden feature of tokens that are left out
    chances_of_row: NDArray[np.float64]  # [ROW_WIDTH]
    first_child: Int64Array  # [offered nodes]
    next_sibling: Int64Array  # [offered nodes]


@helper
def _candidate(growth: Growth, first: int, end: int, token: int) -> int:
    """Place of the candidate with that token from `first` on; `end`, made blank, if it is new."""
    cells = growth.cells
    for place in range(first, end):
        if cells[place, TOKEN] == token:
            return place
    for column in range(CANDIDATE_WIDTH):
        cells[end, column] = 0
    for column in range(OFFER_NODES, CANDIDATE_WIDTH):
        cells[end, column] = NONE
    cells[end, TOKEN] = token
    growth.offered[end] = -1.0
    return end


@helper
def _ask_state(
    text: TextArrays, growth: Growth, state: int, length: int, first: int, end: int
) -> int:
    """Offer the top tokens of a state that no longer match has offered."""
    states, cells = text.states, growth.cells
    total = states[state, TOTAL]
    for rank in range(TOP):
        count = states[state, TOP_COUNTS + rank]
        if count == 0:
            break
        token = states[state, TOP_TOKENS + rank]
        place = _candidate(growth, first, end, token)
        end = max(end, place + 1)
        if cells[place, NGRAM] == 0:
            is_recent = 1 if states[state, RECENT] == token else 0
            cells[place, NGRAM] = ngram_feature(length, count, total, is_recent)
            cells[place, SOURCES] |= NGRAM_SOURCE
    return end


@helper
def _ask_ngrams(text: TextArrays, growth: Growth, node: int, first: int, end: int) -> int:
    """Ask the longest match with a next token, and the next shorter one that was seen more.

    The shortest match is that of nothing: the root knows the most frequent tokens.
    """
    states = text.states
    state = growth.states[node]
    for _ in range(MAX_CHAIN):
        if state == ROOT or states[state, TOTAL] > 0:
            break
        state = states[state, LINK]
    total = states[state, TOTAL]
    if total == 0:
        return end
    length = min(growth.lengths[node], states[state, LENGTH])
    growth.others[0] = ngram_others(length)
    end = _ask_state(text, growth, state, length, first, end)
    for _ in range(MAX_CHAIN):
        state = states[state, LINK]
        if state == NONE:
            break
        if states[state, TOTAL] > total:
            return _ask_state(text, growth, state, states[state, LENGTH], first, end)
    return end


@helper
def _ask_rows(
    sources: Sources, growth: Growth, node: int, before: int, previous: int, first: int, end: int
) -> int:
    """Ask the row of the pair; if there is none, that of the token and then the parent's."""
    rows, noise, depth = sources.rows, sources.noise, growth.depths[node]
    is_drawn = depth < noise.shape[0]
    token = growth.cells[growth.taken[node], TOKEN]
    if previous != NONE:
        number = _find(rows.keys, rows.slots, previous, token)
        if number != 0:
            growth.others[1] = recycled_others(PAIR)
            _judge_row(rows, noise, depth, growth, number, NONE)
            return _ask_row(rows, is_drawn, growth, PAIR, number, first, end)
    number = _find(rows.keys, rows.slots, NONE, token)
    if number != 0:
        growth.others[1] = recycled_others(SINGLE)
        _judge_row(rows, noise, depth, growth, number, NONE)
        end = _ask_row(rows, is_drawn, growth, SINGLE, number, first, end)
    if before != NONE:
        number = _find(rows.keys, rows.slots, before, previous)
        if number != 0:
            _judge_row(rows, noise, depth, growth, number, token)
            end = _ask_row(rows, is_drawn, growth, PARENT_ROW, number, first, end)
    return end


@helper
def _judge_row(
    rows: RowArrays, noise: Float32Array, depth: int, growth: Growth, number: int, left_out: int
) -> None:
    """Note how likely each token of a row is; where a draw is known, how likely it is drawn.

    Negative for those that do not count: padding, and a token that is left out.
    """
    tokens, probs, chances = rows.tokens, rows.probs, growth.chances_of_row
    best, named = 0.0, 0.0
    for rank in range(ROW_WIDTH):
        token = tokens[number, rank]
        chances[rank] = -1.0
        if token == NONE:
            continue
        if token == left_out:
            continue
        chances[rank] = probs[number, rank]
        named += chances[rank]
        if depth < noise.shape[0] and token < noise.shape[1]:
            chances[rank] = race_speed(chances[rank], noise[depth, token])
        best = max(best, chances[rank])
    if depth >= noise.shape[0] or best <= 0.0:
        return
    field = 0.0
    for rank in range(ROW_WIDTH):
        if chances[rank] >= 0.0:
            field += (chances[rank] / best) ** SHARPNESS
    for rank in range(ROW_WIDTH):
        if chances[rank] >= 0.0:
            chances[rank] = race_won(chances[rank], best, field, max(1.0 - named, 0.0))


@helper
def _rank(chances: NDArray[np.float64], place: int) -> int:
    """How many tokens of a row are more likely; the first of equals comes first."""
    rank = 0
    for other in range(ROW_WIDTH):
        if chances[other] > chances[place] or (other < place and chances[other] == chances[place]):
            rank += 1
    return rank


@helper
def _ask_row(
    rows: RowArrays,
    is_drawn: bool,
    growth: Growth,
    kind: int,
    number: int,
    first: int,
    end: int,
) -> int:
    """Offer the tokens of a row; of the parent's, all but the one that was chosen."""
    cells, chances = growth.cells, growth.chances_of_row
    for place_of_row in range(ROW_WIDTH):
        if chances[place_of_row] < 0.0:
            continue
        place = _candidate(growth, first, end, rows.tokens[number, place_of_row])
        end = max(end, place + 1)
        if cells[place, RECYCLED] == 0:
            rank = _rank(chances, place_of_row) if is_drawn else place_of_row
            cells[place, RECYCLED] = recycled_feature(kind, rank, chances[place_of_row])
            cells[place, SOURCES] |= RECYCLED_SOURCE
    return end


@helper
def _ask_hidden(
    offers: FlatOffers, growth: Growth, i: int, node: int, depth: int, first: int, end: int
) -> int:
    """Ask the i-th offer, of a drafter that reads hidden states, at one of its nodes.

    Children of negative probability are named by others; they only lead to what lies below them.
    """
    cells = growth.cells
    source = offers.sources[i]
    rank = 0
    child = growth.first_child[node]
    while child != NONE:
        probability = offers.probabilities[child]
        place = _candidate(growth, first, end, offers.tokens[child])
        if place < end or probability >= 0.0:
            end = max(end, place + 1)
            cells[place, OFFER_NODES + i] = child
        if probability >= 0.0:
            cells[place, SOURCES] |= OFFER_SOURCE << source
            if source == HEAD_OFFER:
                cells[place, HIDDEN] = head_feature(depth, rank, probability)
            else:
                cells[place, HIDDEN] = exit_feature(rank, probability)
            rank += 1
        child = growth.next_sibling[child]
    if rank > 0:
        growth.others[2] = head_others(depth) if source == HEAD_OFFER else exit_others()
    return end


@helper
def _ask_offers(
    offers: FlatOffers, growth: Growth, asked: int, depth: int, first: int, end: int
) -> int:
    """Ask the offers that hold candidate `asked`; the most confident one gives the feature.

    Offers are in the order of their sources, so that early exit, which has seen more of the model,
    has the last word over the head.
    """
    cells = growth.cells
    for i in range(offers.sources.size):
        node = cells[asked, OFFER_NODES + i]
        if node == NONE:
            continue
        source = offers.sources[i]
        if source >= HEAD_OFFER:
            end = _ask_hidden(offers, growth, i, node, depth, first, end)
            continue
        child = growth.first_child[node]
        while child != NONE:
            place = _candidate(growth, first, end, offers.tokens[child])
            end = max(end, place + 1)
            cells[place, OFFER_NODES + i] = child
            cells[place, SOURCES] |= OFFER_SOURCE << source
            probability = offers.probabilities[child]
            if probability > growth.offered[place]:
                growth.offered[place] = probability
                cells[place, OFFER] = offer_feature(source, probability)
            child = growth.next_sibling[child]
    return end
