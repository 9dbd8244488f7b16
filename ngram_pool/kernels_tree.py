"""From sources to a finished proposal: work space, growth, cut and order."""

import numpy as np
from numpy.typing import NDArray

from ngram_pool.features import NUM_GUESS, NUM_RECYCLED
from ngram_pool.kernels_ask import (
    CANDIDATE_WIDTH,
    GUESS,
    MOST_OWN,
    NGRAM,
    OFFER_NODES,
    PARENT,
    RECYCLED,
    SOURCES,
    TOKEN,
    Growth,
    Scores,
    Sources,
)
from ngram_pool.kernels_common import (
    FLOAT32,
    FLOAT32_2D,
    INT32,
    INT32_2D,
    INT64,
    INT64_2D,
    allocator,
    entry,
    helper,
)
from ngram_pool.kernels_grow import _grow
from ngram_pool.layout import (
    NONE,
    ROW_WIDTH,
    FlatOffers,
    Float32Array,
    Int32Array,
    Int64Array,
    RowArrays,
    TextArrays,
)

__all__: list[str] = []


@allocator
def _work_space(max_nodes: int, offers: FlatOffers) -> Growth:
    num_offered = offers.tokens.size
    num_candidates = 1 + MOST_OWN * max_nodes + num_offered
    growth = Growth(
        np.empty((num_candidates, CANDIDATE_WIDTH), np.int32),
        np.empty(num_candidates, np.float64),
        np.empty(num_candidates, np.float64),
        np.empty(num_candidates, np.float64),
        np.empty(num_candidates, np.int64),
        np.zeros(max_nodes + 1, np.int64),
        np.empty(max_nodes + 1, np.int64),
        np.empty(max_nodes + 1, np.int64),
        np.zeros(max_nodes + 1, np.int64),
        np.zeros(3, np.int64),
        np.zeros(ROW_WIDTH, np.float64),
        np.full(num_offered, NONE, np.int64),
        np.full(num_offered, NONE, np.int64),
    )
    # Backwards, so that lists of children end up in the order of the offer.
    for node in range(num_offered - 1, -1, -1):
        parent = offers.parents[node]
        if parent != NONE:
            growth.next_sibling[node] = growth.first_child[parent]
            growth.first_child[parent] = node
    return growth


@helper
def _set_root(growth: Growth, offers: FlatOffers, token: int) -> None:
    cells = growth.cells
    for column in range(CANDIDATE_WIDTH):
        cells[0, column] = 0
    for i in range(offers.roots.size):
        cells[0, OFFER_NODES + i] = offers.roots[i]
    cells[0, TOKEN] = token
    growth.probs[0] = 1.0
    growth.lifts[0] = 1.0


@helper
def _cut(growth: Growth, num_nodes: int, costs: Float32Array, trust: float) -> int:
    """Keep the nodes that give most tokens per time: (1 + trust * path probabilities) / cost."""
    if costs.size == 0:
        return num_nodes
    tokens = 1.0
    best = tokens / costs[0]
    kept = 1
    for node in range(1, num_nodes):
        tokens += trust * growth.probs[growth.taken[node]]
        gain = tokens / costs[node]
        if gain > best:
            best = gain
            kept = node + 1
    return kept


@allocator
def _depth_first(growth: Growth, num_nodes: int) -> Int64Array:
    """Order nodes depth first; children were taken best first, and stay so."""
    first_child = np.full(num_nodes, NONE, np.int64)
    next_sibling = np.full(num_nodes, NONE, np.int64)
    for node in range(num_nodes - 1, 0, -1):
        parent = growth.cells[growth.taken[node], PARENT]
        next_sibling[node] = first_child[parent]
        first_child[parent] = node
    order = np.empty(num_nodes, np.int64)
    node = 0
    for place in range(num_nodes):
        order[place] = node
        if first_child[node] != NONE:
            node = first_child[node]
            continue
        while node != 0 and next_sibling[node] == NONE:
            node = growth.cells[growth.taken[node], PARENT]
        node = next_sibling[node]
    return order


@helper
def _write_out(
    growth: Growth,
    order: Int64Array,
    out: Int64Array,
    out_probs: Float32Array,
    out_lifts: Float32Array,
    out_buckets: Int32Array,
    out_sources: NDArray[np.uint16],
) -> None:
    cells = growth.cells
    places = growth.heap  # no longer needed, and long enough
    for place in range(order.size):
        node = order[place]
        places[node] = place
        candidate = growth.taken[node]
        ngram, recycled = cells[candidate, NGRAM], cells[candidate, RECYCLED]
        out[0, place] = cells[candidate, TOKEN]
        out[1, place] = places[cells[candidate, PARENT]]
        out[2, place] = growth.depths[node]
        out_probs[place] = growth.probs[candidate]
        out_lifts[place] = growth.lifts[candidate]
        bucket = (ngram * NUM_RECYCLED + recycled) * NUM_GUESS + cells[candidate, GUESS]
        out_buckets[place] = bucket
        out_sources[place] = cells[candidate, SOURCES]


@entry(
    f"i8({INT64}, {INT32_2D}, {INT32_2D}, {INT32}, "
    f"{INT64}, {INT32_2D}, {INT32_2D}, {FLOAT32_2D}, {INT32}, "
    f"{FLOAT32_2D}, {FLOAT32}, "
    f"{INT64}, {INT64}, {FLOAT32}, {INT64}, {INT64}, "
    f"b1, b1, i8, i8, i8, i8, i8, f8, b1, {FLOAT32}, f8, "
    f"{FLOAT32_2D}, {INT64_2D}, {FLOAT32}, {FLOAT32}, {INT32}, u2[::1])"
)
def _propose(  # arrays one by one: numba takes them several times faster than inside a tuple
    text_header: Int64Array,
    states: Int32Array,
    edges: Int32Array,
    edge_slots: Int32Array,
    row_header: Int64Array,
    row_keys: Int32Array,
    row_tokens: Int32Array,
    row_probs: Float32Array,
    row_slots: Int32Array,
    counts: Float32Array,
    priors: Float32Array,
    offer_tokens: Int64Array,
    offer_parents: Int64Array,
    offer_probs: Float32Array,
    offer_sources: Int64Array,
    offer_roots: Int64Array,
    use_ngrams: bool,
    use_rows: bool,
    before: int,
    previous: int,
    token: int,
    max_nodes: int,
    max_depth: int,
    min_probability: float,
    is_chain: bool,
    costs: Float32Array,
    trust: float,
    noise: Float32Array,
    out: Int64Array,
    out_probs: Float32Array,
    out_lifts: Float32Array,
    out_buckets: Int32Array,
    out_sources: NDArray[np.uint16],
) -> int:
    """Grow, cut and order a tree into the arrays `out...`; return its nodes, root included."""
    offers = FlatOffers(offer_tokens, offer_parents, offer_probs, offer_sources, offer_roots)
    sources = Sources(
        TextArrays(text_header, states, edges, edge_slots),
        RowArrays(row_header, row_keys, row_tokens, row_probs, row_slots),
        offers,
        Scores(counts, priors),
        noise,
        use_ngrams,
        use_rows,
    )
    growth = _work_space(max_nodes, offers)
    _set_root(growth, offers, token)
    num_nodes = _grow(
        sources, growth, before, previous, max_nodes, max_depth, min_probability, is_chain
    )
    num_nodes = _cut(growth, num_nodes, costs, trust)
    order = _depth_first(growth, num_nodes)
    _write_out(growth, order, out, out_probs, out_lifts, out_buckets, out_sources)
    return num_nodes
