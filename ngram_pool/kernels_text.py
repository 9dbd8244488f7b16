"""Suffix automaton with next-token counts, one token at a time.

Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text". Added to
it: counts of the next token in every state on the suffix chain of the text's end, of which the four
largest stand inline.
"""

from ngram_pool.kernels_common import INT32, INT32_2D, INT64, _find, _insert, entry, helper
from ngram_pool.layout import (
    ABSENT,
    COUNT,
    EDGE_COUNT,
    EDGE_TARGET,
    EDGE_TOKEN,
    INLINE,
    KEY_STATE,
    KEY_TOKEN,
    LAST,
    LENGTH,
    LINK,
    MAX_CHAIN,
    MAX_TOKEN,
    MORE_EDGES,
    NEXT,
    NONE,
    NUM_EDGES,
    NUM_STATES,
    RECENT,
    ROOT,
    STATE_WIDTH,
    TARGET,
    TOP,
    TOP_COUNTS,
    TOP_TOKENS,
    TOTAL,
    Int32Array,
    Int64Array,
    TextArrays,
)

__all__: list[str] = []


@helper
def _edge(text: TextArrays, state: int, token: int) -> int:
    """Where the edge of a state on a token is: ABSENT, INLINE, or its number."""
    if text.states[state, EDGE_TOKEN] == token:
        return INLINE
    if text.states[state, MORE_EDGES] == 0:
        return ABSENT
    number = _find(text.edges, text.slots, state, token)
    return number if number > 0 else ABSENT


@helper
def _target(text: TextArrays, state: int, edge: int) -> int:
    if edge == INLINE:
        return int(text.states[state, EDGE_TARGET])
    return int(text.edges[edge, TARGET])


@helper
def _retarget(text: TextArrays, state: int, edge: int, target: int) -> None:
    if edge == INLINE:
        text.states[state, EDGE_TARGET] = target
    else:
        text.edges[edge, TARGET] = target


@helper
def _stored_count(text: TextArrays, state: int, edge: int) -> int:
    if edge == INLINE:
        return int(text.states[state, EDGE_COUNT])
    return int(text.edges[edge, COUNT])


@helper
def _store_count(text: TextArrays, state: int, edge: int, count: int) -> None:
    if edge == INLINE:
        text.states[state, EDGE_COUNT] = count
    else:
        text.edges[edge, COUNT] = count


@helper
def _add_edge(text: TextArrays, state: int, token: int, target: int, count: int) -> None:
    states, edges = text.states, text.edges
    if states[state, EDGE_TOKEN] == NONE:
        states[state, EDGE_TOKEN] = token
        states[state, EDGE_TARGET] = target
        states[state, EDGE_COUNT] = count
        return
    number = text.header[NUM_EDGES]
    text.header[NUM_EDGES] = number + 1
    edges[number, KEY_STATE] = state
    edges[number, KEY_TOKEN] = token
    edges[number, TARGET] = target
    edges[number, COUNT] = count
    edges[number, NEXT] = states[state, MORE_EDGES]
    states[state, MORE_EDGES] = number
    _insert(edges, text.slots, number)


@helper
def _new_state(text: TextArrays, length: int) -> int:
    state = text.header[NUM_STATES]
    text.header[NUM_STATES] = state + 1
    for column in range(STATE_WIDTH):
        text.states[state, column] = 0
    text.states[state, LENGTH] = length
    text.states[state, LINK] = NONE
    text.states[state, RECENT] = NONE
    text.states[state, EDGE_TOKEN] = NONE
    for place in range(TOP):
        text.states[state, TOP_TOKENS + place] = NONE
    return int(state)


@helper
def _clone(text: TextArrays, state: int, length: int) -> int:
    """Copy a state, its edges and its counts; only the length differs."""
    twin = _new_state(text, length)
    states, edges = text.states, text.edges
    for column in range(LINK, STATE_WIDTH):
        states[twin, column] = states[state, column]
    states[twin, MORE_EDGES] = 0
    number = states[state, MORE_EDGES]
    while number != 0:
        token, target, count = edges[number, KEY_TOKEN], edges[number, TARGET], edges[number, COUNT]
        _add_edge(text, twin, token, target, count)
        number = edges[number, NEXT]
    return twin


@helper
def _count_next(text: TextArrays, state: int, token: int) -> None:
    """Count one more `token` after a state; the edge exists already.

    The inline places are sorted by count, the more recent first among equals, so the token counted
    now goes before all that do not have more.
    """
    states = text.states
    states[state, TOTAL] += 1
    states[state, RECENT] = token
    place = 0
    while place < TOP and states[state, TOP_TOKENS + place] != token:
        if states[state, TOP_COUNTS + place] == 0:
            break
        place += 1
    if place < TOP:
        count = states[state, TOP_COUNTS + place] + 1
    else:
        edge = _edge(text, state, token)
        count = _stored_count(text, state, edge) + 1
        place = TOP - 1
        weakest = states[state, TOP_COUNTS + place]
        if count < weakest:
            _store_count(text, state, edge, count)
            return
        evicted = _edge(text, state, states[state, TOP_TOKENS + place])
        _store_count(text, state, evicted, weakest)
    while place > 0 and states[state, TOP_COUNTS + place - 1] <= count:
        states[state, TOP_COUNTS + place] = states[state, TOP_COUNTS + place - 1]
        states[state, TOP_TOKENS + place] = states[state, TOP_TOKENS + place - 1]
        place -= 1
    states[state, TOP_COUNTS + place] = count
    states[state, TOP_TOKENS + place] = token


@helper
def _append(text: TextArrays, token: int) -> None:
    """Extend the text by one token, amortised O(1)."""
    states = text.states
    last = text.header[LAST]
    length = states[last, LENGTH] + 1
    newest = _new_state(text, length)
    text.header[LAST] = newest

    # States on the chain that never saw the token get an edge to the new state.
    state = last
    edge = ABSENT
    while state != NONE:
        edge = _edge(text, state, token)
        if edge != ABSENT:
            break
        _add_edge(text, state, token, newest, 0)
        state = states[state, LINK]

    # Count before cloning: a clone copies counts that include this occurrence. The root is the
    # match of nothing: it counts single tokens.
    counted = last
    for _ in range(MAX_CHAIN):
        if counted == ROOT:
            break
        _count_next(text, counted, token)
        counted = states[counted, LINK]
    _count_next(text, ROOT, token)

    if state == NONE:
        states[newest, LINK] = ROOT
        return
    target = _target(text, state, edge)
    if states[target, LENGTH] != states[state, LENGTH] + 1:
        target = _split(text, state, token, target)
    states[newest, LINK] = target


@helper
def _split(text: TextArrays, state: int, token: int, target: int) -> int:
    """Part the shorter strings of `target` from the longer ones; return their state."""
    twin = _clone(text, target, text.states[state, LENGTH] + 1)
    text.states[target, LINK] = twin
    while state != NONE:
        edge = _edge(text, state, token)
        if edge == ABSENT or _target(text, state, edge) != target:
            break
        _retarget(text, state, edge, twin)
        state = text.states[state, LINK]
    return twin


@entry(f"i8({INT64}, {INT32_2D}, {INT32_2D}, {INT32}, {INT32}, {INT64})")
def _extend(
    header: Int64Array,
    states: Int32Array,
    edges: Int32Array,
    slots: Int32Array,
    stream: Int32Array,
    tokens: Int64Array,
) -> int:
    """Append tokens; if one is out of range append nothing and return its place."""
    for i in range(tokens.size):
        if tokens[i] < 0 or tokens[i] > MAX_TOKEN:
            return i
    text = TextArrays(header, states, edges, slots)
    length = states[header[LAST], LENGTH]
    for i in range(tokens.size):
        stream[length + i] = tokens[i]
        _append(text, tokens[i])
    return int(tokens.size)


@entry(f"void({INT64}, {INT32_2D})")
def _reset(header: Int64Array, states: Int32Array) -> None:
    """Make the automaton that of the empty text; edges and slots are cleared by the caller."""
    header[LAST] = ROOT
    header[NUM_STATES] = 0
    header[NUM_EDGES] = 1
    text = TextArrays(header, states, states, states[0])
    _new_state(text, 0)
