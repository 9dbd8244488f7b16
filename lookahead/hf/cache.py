"""K/V memory with a length for every sequence, room behind it for a tree, and O(tree) commits.

One buffer a layer, growing by doubling: no step concatenates or re-indexes what is already there.
Rows of a pass are written behind those of their sequence and count only once they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from lookahead.hf.compat import DummyLayer, DynamicIndexedLayer, LinearAttentionLayer
from lookahead.hf.kinds import (
    form_of,
    held_rows,
    layers_of,
    refuse_recorded_past,
    write_back,
)
from lookahead.hf.slot_layers import IndexedSlotLayer, Lengths, SlotLayer
from lookahead.hf.state_layers import HYBRIDS, SlotStateLayer, StateLayer

__all__ = ["EarlyPath", "SlotCache"]


class EarlyPath(NamedTuple):
    """Where the first layers hold the rows of a path, when they were run before the others."""

    num_layers: int
    rows: Sequence[int]


class SlotCache(Cache):
    """The K/V of all sequences of a call.

    Parameters
    ----------
    given : DynamicCache or StaticCache
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
        self._lengths = Lengths(batch, limit)
        self._given = given
        super().__init__(layers=[self._adopt(i, layer) for i, layer in enumerate(layers_of(given))])

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
        windows = {layer.window for layer in self._slot_layers}
        return windows.pop() if len(windows) == 1 else None

    @property
    def is_plain(self) -> bool:
        """Whether no layer keeps anything but K/V, or anything yet."""
        return all(type(layer) is SlotLayer and not layer.filled for layer in self.layers)

    @property
    def has_states(self) -> bool:
        """Whether a layer holds a state of all that it has read, which cannot be taken back."""
        return any(isinstance(layer, StateLayer) for layer in self.layers)

    @property
    def _slot_layers(self) -> list[SlotLayer]:
        return [layer for layer in self.layers if isinstance(layer, SlotLayer)]

    def _adopt(self, index: int, layer: Any) -> Any:
        """Return what stands for a layer of the given cache in this one."""
        kind = type(layer)
        if kind is DummyLayer:
            return DummyLayer()
        if kind is LinearAttentionLayer:
            refuse_recorded_past(index, layer)
            state = StateLayer(layer.number_of_states)
            state.load_states(layer)
            return state
        adopted: SlotLayer
        if kind in HYBRIDS:
            adopted = SlotStateLayer(self._lengths, form_of(index, layer), layer.number_of_states)
            adopted.load_states(layer)
        elif kind is DynamicIndexedLayer:
            adopted = IndexedSlotLayer(self._lengths, form_of(index, layer))
            if layer.is_indexer_initialized:
                adopted.update_indexer(layer.indexer_keys)
        else:
            adopted = SlotLayer(self._lengths, form_of(index, layer))
        held = held_rows(self._given, layer)
        if held is not None:
            adopted.load(*held)
        return adopted

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows of a pass into one layer; see :meth:`SlotLayer.update`."""
        while len(self.layers) <= layer_idx:
            self.layers.append(SlotLayer(self._lengths))
        updated: tuple[Tensor, Tensor] = self.layers[layer_idx].update(key_states, value_states)
        return updated

    def load(self, made: Cache) -> None:
        """Copy in what a model read of the prompt into a cache that it made itself.

        Phi-3 does so where the prompt is longer than its original length.
        """
        for index, theirs in enumerate(made.layers):
            if len(self.layers) <= index:
                self.layers.append(SlotLayer(self._lengths))
            if theirs.is_initialized:
                self.layers[index].load(theirs.keys, theirs.values, theirs.get_seq_length())

    def prompt_read(self, num_slots: int = 0) -> None:
        """Turn from reading the prompt to verifying trees: lengths count from here on.

        ``num_slots`` is what there is to hold by now, for a cache that holds states alone.
        """
        filled = max((layer.filled for layer in self._slot_layers), default=num_slots)
        self._lengths.rows = [filled] * len(self.lengths)
        self._lengths.verifying = True
        for layer in self._slot_layers:
            layer.trim()

    def save_states(self) -> None:
        """Remember the states of all layers, so that the next pass can be taken back."""
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                layer.save()

    def restore_states(self) -> None:
        """Go back to the states that were saved last."""
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                layer.restore()

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
        for layer in self._slot_layers:
            layer.trim()

    def select(self, rows: Sequence[int]) -> None:
        """Hold these sequences only, in this order."""
        for layer in self._slot_layers:
            layer.select(rows)
        self._lengths.rows = [self._lengths.rows[row] for row in rows]

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
            if isinstance(mine, StateLayer):
                mine.write_states(given.layers[index])
            if not isinstance(mine, SlotLayer) or not mine.is_initialized:
                continue
            held = slice(0, length - mine.start)
            write_back(
                given.layers[index],
                mine.keys[:, :, held],
                mine.values[:, :, held],
                length,
                mine.parts,
            )
            if isinstance(mine, IndexedSlotLayer) and mine.indexer_keys is not None:
                theirs = given.layers[index]
                if not theirs.is_indexer_initialized:
                    theirs.lazy_initialization_indexer(mine.indexer_keys)
                theirs.indexer_keys = mine.indexer_keys[:, :length].clone()
            mine.keys = mine.values = None
            mine.is_initialized = False
        return given


def _move(layers: Sequence[Any], slot: int, base: int, rows: Sequence[int]) -> None:
    """Move rows of a step to the front of it, in this order."""
    first = next((i for i, row in enumerate(rows) if row != i), None)
    if first is None:
        return
    source = torch.tensor([row - first for row in rows[first:]])
    for layer in layers:
        if isinstance(layer, SlotLayer):
            layer.keep(slot, base + first, source.to(getattr(layer, "device", "cpu")))
