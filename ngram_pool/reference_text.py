"""The suffix automaton and the recycled rows as objects and dicts: slow, short, the truth."""

from collections import OrderedDict
from typing import NamedTuple

from ngram_pool.layout import MAX_CHAIN, TOP

__all__: list[str] = []


class Row(NamedTuple):
    """A recycled row; padding is left out, so each place keeps its rank."""

    places: list[tuple[int, int, float]]  # (rank, token, probability)


class State:
    """Strings that end at the same places of the text."""

    __slots__ = ("counts", "edges", "length", "link", "recent", "top", "total")

    def __init__(self, length: int) -> None:
        self.length = length  # of the longest string
        self.link: State | None = None
        self.edges: dict[int, State] = {}
        self.counts: dict[int, int] = {}  # of the next token
        self.total = 0
        self.top: list[int] = []  # most frequent next tokens, the more recent first among equals
        self.recent: int | None = None

    def count(self, token: int) -> None:
        """Count one more next token."""
        count = self.counts[token] = self.counts.get(token, 0) + 1
        self.total += 1
        self.recent = token
        if token in self.top:
            self.top.remove(token)
        place = sum(self.counts[other] > count for other in self.top)
        self.top.insert(place, token)
        del self.top[TOP:]

    def clone(self, length: int) -> "State":
        """Copy everything but the length."""
        twin = State(length)
        twin.link = self.link
        twin.edges = dict(self.edges)
        twin.counts = dict(self.counts)
        twin.total, twin.top, twin.recent = self.total, list(self.top), self.recent
        return twin


class Text:
    """Suffix automaton over the tokens appended so far."""

    def __init__(self) -> None:
        self.root = State(0)
        self.last = self.root
        self.num_states = 1

    def append(self, token: int) -> None:
        """Extend the text by one token."""
        newest = State(self.last.length + 1)
        self.num_states += 1
        state: State | None = self.last
        while state is not None and token not in state.edges:
            state.edges[token] = newest
            state = state.link
        self._count(token)
        newest.link = self.root if state is None else self._shorter(state, token)
        self.last = newest

    def follow(self, state: State, length: int, token: int) -> tuple[State, int]:
        """Match one more token: the longest suffix that goes on with it, and its length."""
        for _ in range(MAX_CHAIN):
            if token in state.edges or state.link is None:
                break
            state = state.link
            length = state.length
        if token not in state.edges:
            state, length = self.root, 0
        if token not in state.edges:
            return self.root, 0
        return state.edges[token], length + 1

    def _count(self, token: int) -> None:
        """Count the token behind the suffixes of the text, longest first, MAX_CHAIN states."""
        state = self.last
        for _ in range(MAX_CHAIN):
            if state.link is None:
                break
            state.count(token)
            state = state.link
        self.root.count(token)  # the match of nothing: it counts single tokens

    def _shorter(self, state: State, token: int) -> State:
        """State of the longest string of `state` plus the token, parted from longer ones."""
        target = state.edges[token]
        if target.length == state.length + 1:
            return target
        twin = target.clone(state.length + 1)
        self.num_states += 1
        target.link = twin
        above: State | None = state
        while above is not None and above.edges.get(token) is target:
            above.edges[token] = twin
            above = above.link
        return twin


class Rows:
    """Recycled rows by (previous, token), or (None, token) for one token; first in, first out."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.rows: OrderedDict[tuple[int | None, int], Row] = OrderedDict()

    def store(self, previous: int | None, token: int, row: Row, *, renew: bool) -> None:
        """Replace the row of a key where it is, or enter it and forget the key entered first."""
        key = (previous, token)
        if key in self.rows and not renew:
            return
        if key not in self.rows and len(self.rows) == self.max_rows:
            self.rows.popitem(last=False)
        self.rows[key] = row

    def find(self, previous: int | None, token: int | None) -> Row | None:
        """Return the row of a pair, or with None as `previous` that of one token."""
        return None if token is None else self.rows.get((previous, token))
