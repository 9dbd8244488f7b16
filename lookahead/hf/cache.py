"""K/V memory with a length for every sequence, room behind it for a tree, and O(tree) commits.

One buffer a layer, growing by doubling: no step concatenates or re-indexes what is already there.
Rows of a pass are written behind those of their sequence and count only once they are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from lookahead.errors import UnsupportedError
from lookahead.hf.compat import count_or_length

__all__ = ["EarlyPath", "SlotCache"]


#: Slots that a buffer has beyond what was asked for.
HEADROOM = 256


class EarlyPath(NamedTuple):
    """Where the first layers hold the rows of a path, when they were run before the others."""

    num_layers: int
    rows: Sequence[int]


class _Lengths:
    """Committed rows of every sequence; one object, read by all layers of a cache."""

    def __init__(self, batch: int, limit: int | None) -> None:
        self.rows = [0] * batch
        self.limit = limit
        self.verifying = False
        self.behind = 0  # rows of this step that the layers of the pass have already

    @property
    def longest(self) -> int:
        return max(self.rows)


class SlotLayer(CacheLayerMixin):
    """K/V of one layer.

    Slot s of a sequence is its s-th cached row, padding included. ``start`` is the first slot
    still held: a sliding-window layer lets go of what no later row can see.

    Parameters
    ----------
    lengths : _Lengths
    window : int or None
        Sliding window of the layer, in tokens.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, lengths: _Lengths, window: int | None = None) -> None:
        super().__init__()
        self._lengths = lengths
        self.window = window
        self.is_sliding = window is not None
        self.sliding_window = window
        self.start = 0
        self.filled = 0  # rows of the prompt, while it is being read

    def __deepcopy__(self, memo: dict[int, Any]) -> SlotLayer:
        """Copy the K/V, and share the lengths.

        A model that runs a layer several times (Dory) copies it within one cache; the copy belongs
        to the same sequences.
        """
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        shared = {"_lengths": self._lengths}
        own = {name: value for name, value in vars(self).items() if name not in shared}
        vars(twin).update(copy.deepcopy(own, memo) | shared)
        return twin

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take batch, heads, sizes, dtype and device from the first rows."""
        self.device = key_states.device
        self.keys = key_states.new_zeros((*key_states.shape[:2], 0, key_states.shape[3]))
        self.values = value_states.new_zeros((*value_states.shape[:2], 0, value_states.shape[3]))
        self.is_initialized = True

    def load(self, keys: Tensor, values: Tensor, length: int) -> None:
        """Copy rows in; the last of them is slot ``length - 1``."""
        self.lazy_initialization(keys, values)
        self.start = length - keys.shape[-2]
        self.filled = length
        self._reserve(length)
        self.keys[:, :, : keys.shape[-2]] = keys
        self.values[:, :, : keys.shape[-2]] = values

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows of a pass behind those of their sequence.

        Parameters
        ----------
        key_states, value_states : Tensor, [batch, heads, rows, size]
            One row a token of the pass.

        Returns
        -------
        keys, values : Tensor, [batch, heads, slots, size]
            Views of everything held, the new rows included.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        num_rows = key_states.shape[-2]
        end = self.get_seq_length() + num_rows
        self._reserve(end)
        if not self._lengths.verifying:
            self._write(slice(None), self.filled, key_states, value_states)
            self.filled = end
        elif len(set(self._lengths.rows)) == 1:
            self._write(slice(None), end - num_rows, key_states, value_states)
        else:
            for row, length in enumerate(self._lengths.rows):
                place = length + self._lengths.behind
                self._write(slice(row, row + 1), place, key_states[row], value_states[row])
        held = end - self.start
        return self.keys[:, :, :held], self.values[:, :, :held]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return slots that :meth:`update` will return for so many rows, and the first of them."""
        end = self.get_seq_length() + count_or_length(query_length)
        return end - self.start, self.start

    def get_seq_length(self, *_: Any) -> int:
        """Return the rows of the longest sequence, and of the step what is there already."""
        if not self._lengths.verifying:
            return self.filled
        return self._lengths.longest + self._lengths.behind

    def get_max_length(self) -> int:
        """Return -1, the library's word for a cache without a bound."""
        return -1

    get_max_cache_shape = get_max_length

    def keep(self, slot: int, base: int, source: Tensor) -> None:
        """Move rows ``base + source`` of a sequence down to ``base`` and on, in order."""
        if not self.is_initialized:  # a layer that borrows the K/V of another
            return
        low = base - self.start
        high = low + len(source)
        for buffer in (self.keys, self.values):
            buffer[slot, :, low:high] = buffer[slot].index_select(1, source + low)

    def trim(self) -> None:
        """Let go of slots that no later row of a sliding-window layer can see."""
        if self.window is None or not self.is_initialized:
            return
        needed = min(self._lengths.rows) - self.window + 1
        # In strides of half a window, so that the copying is O(1) a token.
        if needed - self.start <= max(64, self.window // 2):
            return
        shift = needed - self.start
        held = self._lengths.longest - needed
        for buffer in (self.keys, self.values):
            buffer[:, :, :held] = buffer[:, :, shift : shift + held].clone()
        self.start = needed

    def _write(self, rows: slice, slot: int, keys: Tensor, values: Tensor) -> None:
        low = slot - self.start
        high = low + keys.shape[-2]
        self.keys[rows, :, low:high] = keys
        self.values[rows, :, low:high] = values

    def _reserve(self, end: int) -> None:
        """Make room up to slot ``end``, by doubling up to what the run can need at all.

        The first room is larger than the prompt: growing at the first step would copy all of it.
        """
        needed = end - self.start
        capacity = self.keys.shape[-2]
        if needed <= capacity:
            return
        wanted = max(needed + HEADROOM, 2 * capacity)
        if self._lengths.limit is not None:
            wanted = max(needed, min(wanted, self._lengths.limit - self.start))
        for name in ("keys", "values"):
            old = getattr(self, name)
            # Zeros, not garbage: a masked slot still enters a product, and 0 times NaN is NaN.
            new = old.new_zeros((*old.shape[:2], wanted, old.shape[3]))
            new[:, :, :capacity] = old
            setattr(self, name, new)


class SlotCache(Cache):
    """The K/V of all sequences of a call.

    Parameters
    ----------
    given : DynamicCache
        The cache that the library or the caller prepared. What it holds is copied; it is not
        changed before :meth:`give_back`.
    batch : int
        Number of sequences.
    limit : int or None
        Most slots that the run can need, tree included; buffers never grow past it.

    Raises
    ------
    UnsupportedError
        If the cache, or one of its layers, is of a kind whose rows cannot be taken back.
    """

    def __init__(self, given: Cache, batch: int, limit: int | None = None) -> None:
        self._lengths = _Lengths(batch, limit)
        self._given = given
        super().__init__(layers=[self._adopt(i, layer) for i, layer in enumerate(_check(given))])

    @property
    def lengths(self) -> list[int]:
        """Committed rows of every sequence, padding included."""
        return self._lengths.rows

    @property
    def window(self) -> int | None:
        """Sliding window of all layers, in tokens; None where there is none or they differ.

        In plain decoding such a cache holds no more than its window, and a model may leave it at
        that and make no mask for it. Ours holds more, so whoever reads it has to keep the window.
        """
        windows = {layer.window for layer in self.layers}
        return windows.pop() if len(windows) == 1 else None

    def _adopt(self, index: int, layer: CacheLayerMixin) -> SlotLayer:
        kind = type(layer)
        # A DummyLayer stands where a layer borrows the K/V of another: nothing is ever written.
        if kind not in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer):
            raise UnsupportedError(
                f"layer {index} of the cache is a {kind.__name__}, whose rows cannot be taken "
                "back; a DynamicCache can be accelerated"
            )
        adopted = SlotLayer(self._lengths, getattr(layer, "sliding_window", None))
        if kind is not DummyLayer and layer.is_initialized and layer.get_seq_length() > 0:
            adopted.load(layer.keys, layer.values, layer.get_seq_length())
        return adopted

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows of a pass into one layer; see :meth:`SlotLayer.update`."""
        while len(self.layers) <= layer_idx:
            self.layers.append(SlotLayer(self._lengths))
        updated: tuple[Tensor, Tensor] = self.layers[layer_idx].update(key_states, value_states)
        return updated

    def prompt_read(self) -> None:
        """Turn from reading the prompt to verifying trees: lengths count from here on."""
        self._lengths.rows = [max((x.filled for x in self.layers), default=0)] * len(self.lengths)
        self._lengths.verifying = True
        for layer in self.layers:
            layer.trim()

    def skip(self, gap: int) -> None:
        """Leave ``gap`` slots of every sequence unused; what follows is written behind them."""
        self._lengths.rows = [length + gap for length in self._lengths.rows]

    @contextmanager
    def behind(self, num_rows: int) -> Iterator[None]:
        """Have the passes of the block write behind so many rows of the same step.

        The layers that such a pass runs hold these rows already; the others must not be run.
        """
        self._lengths.behind = num_rows
        try:
            yield
        finally:
            self._lengths.behind = 0

    def keep(self, slot: int, path: Sequence[int], early: EarlyPath | None = None) -> None:
        """Keep these rows of the last pass for one sequence, in this order; drop the others.

        Parameters
        ----------
        slot : int
            The sequence.
        path : sequence of int
            Rows of the pass, ascending, the root's (0) first.
        early : EarlyPath or None
            The same rows in the layers that were run before the others, in another order.
        """
        base = self.lengths[slot]
        cut = 0 if early is None else early.num_layers
        if early is not None:
            _move(self.layers[:cut], slot, base, early.rows)
        _move(self.layers[cut:], slot, base, path)
        self._lengths.rows[slot] = base + len(path)
        for layer in self.layers:
            layer.trim()

    def give_back(self) -> Cache:
        """Hand the rows back in the cache that was given, as plain generation leaves it.

        Returns
        -------
        Cache
            The object given at construction. Sequences shorter than the longest end in zeros.
        """
        given, length = self._given, self._lengths.longest
        for index, mine in enumerate(self.layers):
            if len(given.layers) <= index:
                window = mine.window
                given.layers.append(
                    DynamicLayer() if window is None else DynamicSlidingWindowLayer(window)
                )
            theirs = given.layers[index]
            if not mine.is_initialized:
                continue
            start = mine.start
            if mine.window is not None:
                start = max(start, length - mine.window + 1)
            part = slice(start - mine.start, length - mine.start)
            if not theirs.is_initialized:
                theirs.lazy_initialization(mine.keys, mine.values)
            theirs.keys = mine.keys[:, :, part].clone()
            theirs.values = mine.values[:, :, part].clone()
            if mine.window is not None:
                theirs.cumulative_length = length
            mine.keys = mine.values = None
            mine.is_initialized = False
        return given


def _move(layers: Sequence[SlotLayer], slot: int, base: int, rows: Sequence[int]) -> None:
    """Move rows of a step to the front of it, in this order."""
    first = next((i for i, row in enumerate(rows) if row != i), None)
    if first is None:
        return
    source = torch.tensor([row - first for row in rows[first:]])
    for layer in layers:
        layer.keep(slot, base + first, source.to(getattr(layer, "device", "cpu")))


def _check(given: Cache) -> list[CacheLayerMixin]:
    if type(given) is not DynamicCache:
        raise UnsupportedError(
            f"the cache is a {type(given).__name__}; a DynamicCache can be accelerated"
        )
    if getattr(given, "offloading", False):
        raise UnsupportedError("the cache is offloaded to the CPU between layers")
    layers: list[CacheLayerMixin] = given.layers
    return layers
