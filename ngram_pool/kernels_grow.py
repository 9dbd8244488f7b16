"""Best-first growth of a draft tree.

The heap holds candidates by path probability, the earlier asked first among equals. A node is asked
for continuations when it is taken; candidates that name the same token become one.
`reference_grow.py` is the same in plain Python.
"""

import numpy as np
from numpy.typing import NDArray

from ngram_pool.features import (
    NUM_GUESS,
    NUM_HIDDEN,
    NUM_RECYCLED,
    OFFER_PRIORS,
    STRENGTH,
    clip,
    drawn_alone,
    joint_rate,
    rate,
)
from ngram_pool.kernels_ask import (
    CANDIDATE_WIDTH,
    GUESS,
    HIDDEN,
    NGRAM,
    OFFER,
    PARENT,
    RECYCLED,
    TOKEN,
    Growth,
    Scores,
    Sources,
    _ask_ngrams,
    _ask_offers,
    _ask_rows,
)
from ngram_pool.kernels_common import helper
from ngram_pool.kernels_text import _edge, _target
from ngram_pool.layout import (
    ABSENT,
    LAST,
    LENGTH,
    LINK,
    MAX_CHAIN,
    NONE,
    ROOT,
    Float32Array,
    Int32Array,
    Int64Array,
    TextArrays,
)

__all__: list[str] = []


@helper
def _before(probs: NDArray[np.float64], first: int, second: int) -> bool:
    if probs[first] == probs[second]:
        return first < second
    return bool(probs[first] > probs[second])


@helper
def _push(heap: Int64Array, probs: NDArray[np.float64], size: int, candidate: int) -> None:
    """Add to a heap of `size` candidates."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if not _before(probs, candidate, heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = candidate


@helper
def _pop(heap: Int64Array, probs: NDArray[np.float64], size: int) -> int:
    """Take the best of a heap of `size` candidates."""
    best = heap[0]
    moved = heap[size - 1]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size - 1:
            break
        if below + 1 < size - 1 and _before(probs, heap[below + 1], heap[below]):
            below += 1
        if not _before(probs, heap[below], moved):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = moved
    return int(best)


@helper
def _best(probs: NDArray[np.float64], start: int, end: int) -> int:
    """Return the best of some candidates, or NONE."""
    best = NONE
    for candidate in range(start, end):
        if best == NONE or _before(probs, candidate, best):
            best = candidate
    return best


@helper
def _rate(scores: Scores, ngram: int, recycled: int, guess: int) -> float:
    """Compiled twin of ``Calibration.rate``."""
    own = ngram * NUM_RECYCLED + recycled
    if guess < NUM_HIDDEN:
        prior = float(scores.priors[own * NUM_HIDDEN + guess])
    else:
        offer = guess - NUM_HIDDEN + 1
        prior = joint_rate(
            float(scores.priors[own * NUM_HIDDEN]), float(scores.priors[OFFER_PRIORS + offer])
        )
    cell = own * NUM_GUESS + guess
    accepted, offered = float(scores.counts[cell, 0]), float(scores.counts[cell, 1])
    return clip(rate(accepted, offered, prior, STRENGTH))


@helper
def _judge(scores: Scores, cells: Int32Array, place: int) -> float:
    """Compiled twin of ``Calibration.judge``; notes which feature of the third axis counted."""
    ngram, recycled = cells[place, NGRAM], cells[place, RECYCLED]
    hidden, offer = cells[place, HIDDEN], cells[place, OFFER]
    cells[place, GUESS] = hidden
    probability = _rate(scores, ngram, recycled, hidden)
    if offer > 0:
        guess = NUM_HIDDEN + offer - 1
        other = _rate(scores, ngram, recycled, guess)
        if hidden == 0 or other > probability:
            cells[place, GUESS] = guess
            probability = other
    return probability


@helper
def _drawn(
    noise: Float32Array, depth: int, cells: Int32Array, place: int, probability: float
) -> float:
    """Judge a candidate again that is named by sources which do not look at the noise."""
    token = cells[place, TOKEN]
    blind = cells[place, RECYCLED] == 0 and cells[place, HIDDEN] == 0
    if blind and depth < noise.shape[0] and token < noise.shape[1]:
        return clip(drawn_alone(probability, noise[depth, token]))
    return probability


@helper
def _expand(
    sources: Sources,
    growth: Growth,
    node: int,
    before: int,
    previous: int,
    min_probability: float,
    end: int,
) -> int:
    """Append the candidates behind a node that are probable enough; return where they end."""
    cells = growth.cells
    asked = growth.taken[node]
    last = end
    growth.others[:] = 0
    if sources.use_ngrams:
        last = _ask_ngrams(sources.text, growth, node, end, last)
    if sources.use_rows:
        last = _ask_rows(sources, growth, node, before, previous, end, last)
    last = _ask_offers(sources.offers, growth, asked, growth.depths[node], end, last)
    kept = end
    for place in range(end, last):
        if cells[place, NGRAM] == 0:
            cells[place, NGRAM] = growth.others[0]
        if cells[place, RECYCLED] == 0:
            cells[place, RECYCLED] = growth.others[1]
        if cells[place, HIDDEN] == 0:
            cells[place, HIDDEN] = growth.others[2]
        probability = _judge(sources.scores, cells, place)
        chance = _drawn(sources.noise, growth.depths[node], cells, place, probability)
        path = growth.probs[asked] * chance
        if path >= min_probability:
            if kept != place:
                for column in range(CANDIDATE_WIDTH):
                    cells[kept, column] = cells[place, column]
            cells[kept, PARENT] = node
            growth.probs[kept] = path
            growth.lifts[kept] = chance / probability
            kept += 1
    return kept


@helper
def _follow(text: TextArrays, growth: Growth, parent: int, node: int, token: int) -> None:
    """Note the longest suffix of the path to `node` that the text holds; long chains are cut."""
    states = text.states
    state, length = growth.states[parent], growth.lengths[parent]
    edge = _edge(text, state, token)
    for _ in range(MAX_CHAIN):
        if edge != ABSENT or state == ROOT:
            break
        state = states[state, LINK]
        length = states[state, LENGTH]
        edge = _edge(text, state, token)
    if edge == ABSENT and state != ROOT:
        state, length = ROOT, 0
        edge = _edge(text, ROOT, token)
    growth.states[node] = ROOT if edge == ABSENT else _target(text, state, edge)
    growth.lengths[node] = 0 if edge == ABSENT else length + 1


@helper
def _grow(
    sources: Sources,
    growth: Growth,
    before: int,
    previous: int,
    max_nodes: int,
    max_depth: int,
    min_probability: float,
    is_chain: bool,
) -> int:
    """Take the best candidate until a limit is met; return the number of nodes, root included."""
    cells = growth.cells
    root_previous = previous
    growth.states[0] = sources.text.header[LAST]
    growth.lengths[0] = sources.text.states[growth.states[0], LENGTH]
    num_nodes, num_candidates, num_waiting, node = 1, 1, 0, 0
    while True:
        if num_nodes <= max_nodes and growth.depths[node] < max_depth:
            asked = num_candidates
            num_candidates = _expand(
                sources, growth, node, before, previous, min_probability, asked
            )
            if is_chain:
                best = _best(growth.probs, asked, num_candidates)
                if best != NONE:
                    _push(growth.heap, growth.probs, num_waiting, best)
                    num_waiting += 1
            else:
                for candidate in range(asked, num_candidates):
                    _push(growth.heap, growth.probs, num_waiting, candidate)
                    num_waiting += 1
        if num_nodes > max_nodes or num_waiting == 0:
            return num_nodes
        candidate = _pop(growth.heap, growth.probs, num_waiting)
        num_waiting -= 1
        node = num_nodes
        num_nodes += 1
        growth.taken[node] = candidate
        parent = cells[candidate, PARENT]
        growth.depths[node] = growth.depths[parent] + 1
        previous = cells[growth.taken[parent], TOKEN]
        before = (
            cells[growth.taken[cells[growth.taken[parent], PARENT]], TOKEN]
            if parent > 0
            else root_previous
        )
        if sources.use_ngrams and num_nodes <= max_nodes:
            _follow(sources.text, growth, parent, node, cells[candidate, TOKEN])
