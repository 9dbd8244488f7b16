"""The arrays of a pool. They grow by doubling, before a kernel that needs room is called.

Room for text is known before: n tokens make at most 2 n states and 2 n further edges (an automaton
of n tokens has at most 3 n transitions, and all but one of its states keep one of them inline).
"""

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngram_pool.layout import (
    EDGE_WIDTH,
    NUM_EDGES,
    NUM_ROWS,
    OLDEST,
    ROW_WIDTH,
    STATE_WIDTH,
    TEXT_HEADER,
    Float32Array,
    Int32Array,
    Int64Array,
    num_slots,
)

__all__: list[str] = []

FIRST_TOKENS = 1_024
FIRST_ROWS = 1_024


class TextStore:
    """Tokens and their suffix automaton.

    Parameters
    ----------
    kernels : module
        The compiled entry points; not kept, so that stores can be copied and pickled.
    capacity : int
        Tokens there is room for at first.
    """

    def __init__(self, kernels: ModuleType, capacity: int) -> None:
        self.capacity = capacity
        self.num_tokens = 0
        self.stream: Int32Array = np.empty(capacity, np.int32)
        self.header: Int64Array = np.zeros(TEXT_HEADER, np.int64)
        self.states: Int32Array = np.empty((2 * capacity + 2, STATE_WIDTH), np.int32)
        self.edges: Int32Array = np.empty((2 * capacity + 2, EDGE_WIDTH), np.int32)
        self.slots: Int32Array = np.zeros(num_slots(2 * capacity + 2), np.int32)
        kernels._reset(self.header, self.states)

    def append(self, kernels: ModuleType, tokens: Int64Array, max_tokens: int) -> int:
        """Append tokens, at most `max_tokens` in all.

        Returns
        -------
        int
            How many there were; or, nothing appended, the place of the first that is out of range.
        """
        end = self.num_tokens + tokens.size
        if end > self.capacity:
            self._reserve(kernels, end, max_tokens)
        done: int = kernels._extend(
            self.header, self.states, self.edges, self.slots, self.stream, tokens
        )
        if done == tokens.size:
            self.num_tokens = end
        return done

    def num_bytes(self) -> int:
        """Memory reserved."""
        return _num_bytes(self)

    def _reserve(self, kernels: ModuleType, num_tokens: int, max_tokens: int) -> None:
        self.capacity = min(max(num_tokens, 2 * self.capacity), max_tokens)
        self.stream = _grown(self.stream, self.capacity)
        self.states = _grown(self.states, 2 * self.capacity + 2)
        self.edges = _grown(self.edges, 2 * self.capacity + 2)
        self.slots = np.zeros(num_slots(2 * self.capacity + 2), np.int32)
        kernels._fill_slots(self.edges, self.slots, int(self.header[NUM_EDGES]) - 1)


class RowStore:
    """Recycled rows; row 0 is never used.

    Parameters
    ----------
    max_rows : int
        Rows there may be.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.header: Int64Array = np.array([0, 1], np.int64)
        self.keys: Int32Array = np.zeros((1, 2), np.int32)
        self.tokens: Int32Array = np.zeros((1, ROW_WIDTH), np.int32)
        self.probs: Float32Array = np.zeros((1, ROW_WIDTH), np.float32)
        self.slots: Int32Array = np.zeros(num_slots(0), np.int32)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.header[NUM_ROWS])

    def reserve(self, kernels: ModuleType, added: int) -> None:
        """Make room for that many more rows, as far as there may be more."""
        wanted = min(self.max_rows, len(self) + added)
        if wanted < len(self.keys):
            return
        size = min(max(wanted, FIRST_ROWS, 2 * len(self.keys)), self.max_rows) + 1
        self.keys = _grown(self.keys, size)
        self.tokens = _grown(self.tokens, size)
        self.probs = _grown(self.probs, size)
        self.slots = np.zeros(num_slots(size), np.int32)
        kernels._fill_slots(self.keys, self.slots, len(self))

    def restore(
        self, kernels: ModuleType, keys: Int32Array, tokens: Int32Array, probs: Float32Array
    ) -> None:
        """Fill an empty store with rows, the one entered first coming first."""
        self.reserve(kernels, len(keys))
        self.header[NUM_ROWS] = len(keys)
        used = slice(1, len(keys) + 1)
        self.keys[used], self.tokens[used], self.probs[used] = keys, tokens, probs
        kernels._fill_slots(self.keys, self.slots, len(keys))

    def order(self) -> Int64Array:
        """Numbers of the rows, the one entered first coming first."""
        rows = len(self)
        first = int(self.header[OLDEST]) - 1 if rows == self.max_rows else 0
        return 1 + (np.arange(rows) + first) % max(rows, 1)

    def num_bytes(self) -> int:
        """Memory reserved."""
        return _num_bytes(self)


def _num_bytes(store: object) -> int:
    return sum(value.nbytes for value in vars(store).values() if isinstance(value, np.ndarray))


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Copy into a longer array; what is new is not initialised."""
    longer: NDArray[Any] = np.empty((size, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
