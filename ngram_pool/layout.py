"""Sizes and columns of the flat arrays, and the limits both pools keep.

One state of the suffix automaton is one row of 16 int32, which is one cache line: its most frequent
next tokens and its first edge stand inline, so a state with a single successor (most of them) costs
one memory access. Further edges live in one pool for all states and are found through open
addressing on (state, token). Recycled rows use the same addressing on (previous, token). Nothing
here imports numba.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["FlatOffers", "Float32Array", "Int32Array", "Int64Array", "RowArrays", "TextArrays"]

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]

MAX_TOKEN: Final = 2**31 - 1
DEFAULT_MAX_TOKENS: Final = 262_144
DEFAULT_MAX_ROWS: Final = 65_536

# Chains of suffix links longer than this are cut, so that a loop ("a a a a ...") costs O(1) a token
# and a node.
MAX_CHAIN: Final = 32

TOP: Final = 4  # next tokens a state keeps inline
ROW_WIDTH: Final = 8  # next tokens of a recycled row
MAX_OFFERS: Final = 7

# Sources of offers: 0 to 3 are drafters of the user's own, and 4 is the lookahead window; the
# other two read hidden states of the target and are asked node by node.
WINDOW_OFFER: Final = 4
HEAD_OFFER: Final = 5
EXIT_OFFER: Final = 6

NONE: Final = -1
ROOT: Final = 0

# Columns of a state, int32 [states, STATE_WIDTH].
LENGTH: Final = 0  # of the longest string of the state, in tokens
LINK: Final = 1  # suffix link; NONE for the root
TOTAL: Final = 2  # occurrences with a known next token
RECENT: Final = 3  # the next token counted last
TOP_TOKENS: Final = 4  # ... 7, most frequent first
TOP_COUNTS: Final = 8  # ... 11; 0 marks a free place
EDGE_TOKEN: Final = 12  # the state's first edge
EDGE_TARGET: Final = 13
EDGE_COUNT: Final = 14  # count of that token while it is not among the top ones
MORE_EDGES: Final = 15  # head of the list of further edges; 0 ends it
STATE_WIDTH: Final = 16

# Columns of a further edge, int32 [edges, EDGE_WIDTH]; edge 0 is never used, so 0 can mean "none"
# in slots and lists.
KEY_STATE: Final = 0
KEY_TOKEN: Final = 1
TARGET: Final = 2
COUNT: Final = 3
NEXT: Final = 4
EDGE_WIDTH: Final = 5

# Where an edge is: not there, inline in its state, or (1 and up) in the pool of further edges.
ABSENT: Final = -1
INLINE: Final = 0

# Entries of the header of the text, int64.
LAST: Final = 0  # state of the whole text
NUM_STATES: Final = 1
NUM_EDGES: Final = 2  # further edges, edge 0 included
TEXT_HEADER: Final = 3

# Entries of the header of the rows, int64. Rows are numbered from 1.
NUM_ROWS: Final = 0
OLDEST: Final = 1  # the row that makes room next, once all are in use
ROW_HEADER: Final = 2


# Bits of Proposal.sources; offers of source i set OFFER_SOURCE << i.
NGRAM_SOURCE: Final = 1
RECYCLED_SOURCE: Final = 2
OFFER_SOURCE: Final = 4


class TextArrays(NamedTuple):
    """The suffix automaton as arrays; kernels pass it around as one thing."""

    header: Int64Array  # [TEXT_HEADER]
    states: Int32Array  # [states, STATE_WIDTH]
    edges: Int32Array  # [edges, EDGE_WIDTH]
    slots: Int32Array  # [power of two], edge number or 0


class RowArrays(NamedTuple):
    """The recycled rows as arrays."""

    header: Int64Array  # [ROW_HEADER]
    keys: Int32Array  # [rows + 1, 2], (previous, token); previous is NONE for the single key
    tokens: Int32Array  # [rows + 1, ROW_WIDTH], NONE where there is no token
    probs: Float32Array  # [rows + 1, ROW_WIDTH]
    slots: Int32Array  # [power of two], row number or 0


class FlatOffers(NamedTuple):
    """Several offers behind one another, nodes numbered through."""

    tokens: Int64Array  # [all nodes]
    parents: Int64Array  # [all nodes], -1 for a root
    probabilities: Float32Array  # [all nodes]
    sources: Int64Array  # [offers]
    roots: Int64Array  # [offers], node of each root


def num_slots(entries: int) -> int:
    """Size of a slot table for that many entries: a power of two, at most two thirds full."""
    return 1 << max(4, (entries * 3 // 2).bit_length())
