"""K/V of one layer, with a length for every sequence and room behind it for a tree."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from lookahead.hf.compat import count_or_length
from lookahead.hf.kinds import LayerForm

__all__ = ["IndexedSlotLayer", "Lengths", "SlotLayer"]

#: Slots that a buffer has beyond what was asked for.
HEADROOM = 256


class Lengths:
    """Committed rows of every sequence; one object, read by all layers of a cache."""

    def __init__(self, batch: int, limit: int | None) -> None:
        self.rows = [0] * batch
        self.limit = limit
        self.verifying = False
        self.behind = 0  # rows of this step that the layers of the pass have already

    @property
    def longest(self) -> int:
        """Committed rows of the longest sequence."""
        return max(self.rows)


class SlotLayer(CacheLayerMixin):
    """K/V of one layer.

    Slot s of a sequence is its s-th cached row, padding included. ``start`` is the first slot
    still held: a sliding-window layer lets go of what no later row can see.

    Parameters
    ----------
    lengths : Lengths
    form : LayerForm
        What the layer that it stands for keeps, sliding window included.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, lengths: Lengths, form: LayerForm | None = None) -> None:
        super().__init__()
        self._lengths = lengths
        self.form = LayerForm() if form is None else form
        self.window = self.form.window
        self.is_sliding = self.window is not None
        self.sliding_window = self.window
        self.start = 0
        self.filled = 0  # rows of the prompt, while it is being read
        self.parts: list[int] = []  # rows of the prompt, by the pass that read them

    def __deepcopy__(self, memo: dict[int, Any]) -> SlotLayer:
        """Copy the K/V but not the lengths.

        A model that runs a layer several times (Dory) copies it within one cache, and the copy
        belongs to the same sequences.
        """
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        shared = {"_lengths": self._lengths}
        own = {name: value for name, value in vars(self).items() if name not in shared}
        twin.__dict__.update(copy.deepcopy(own, memo) | shared)
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
            self.parts.append(num_rows)
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

    def select(self, rows: Sequence[int]) -> None:
        """Hold these sequences only, in this order."""
        if self.is_initialized:
            wanted = torch.tensor(rows, device=self.device)
            self.keys = self.keys.index_select(0, wanted)
            self.values = self.values.index_select(0, wanted)

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


class IndexedSlotLayer(SlotLayer):
    """K/V of a layer with sparse attention, and the keys by which it chooses what to attend to."""

    def __init__(self, lengths: Lengths, form: LayerForm | None = None) -> None:
        super().__init__(lengths, form)
        self.indexer_keys: Tensor | None = None  # [batch, slots, size]
        self.indexer_position_ids: Tensor | None = None
        self.is_indexer_initialized = False
        self._indexed = 0  # rows of the prompt, while it is being read

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Write the indexer keys of a pass behind those of their sequence.

        Parameters
        ----------
        indexer_key_states : Tensor, [batch, rows, size]
            One row a token of the pass.

        Returns
        -------
        Tensor, [batch, slots, size]
            A view of everything held, the new rows included.
        """
        num_rows = indexer_key_states.shape[1]
        starts = [self._indexed] * len(indexer_key_states)
        if self._lengths.verifying:
            starts = [length + self._lengths.behind for length in self._lengths.rows]
        end = max(starts) + num_rows
        held = self.indexer_keys
        if held is None or held.shape[1] < end:
            wanted = max(end + HEADROOM, 2 * (0 if held is None else held.shape[1]))
            grown = indexer_key_states.new_zeros(
                (len(indexer_key_states), wanted, indexer_key_states.shape[2])
            )
            if held is not None:
                grown[:, : held.shape[1]] = held
            held = self.indexer_keys = grown
        for row, start in enumerate(starts):
            held[row, start : start + num_rows] = indexer_key_states[row]
        if not self._lengths.verifying:
            self._indexed = end
        self.is_indexer_initialized = True
        return held[:, :end]

    def select(self, rows: Sequence[int]) -> None:
        """Hold these sequences only, in this order."""
        super().select(rows)
        if self.indexer_keys is not None:
            wanted = torch.tensor(rows, device=self.indexer_keys.device)
            self.indexer_keys = self.indexer_keys.index_select(0, wanted)

    def keep(self, slot: int, base: int, source: Tensor) -> None:
        """Move rows ``base + source`` of a sequence down to ``base`` and on, in order."""
        super().keep(slot, base, source)
        if self.indexer_keys is not None:
            moved = self.indexer_keys[slot].index_select(0, source + base)
            self.indexer_keys[slot, base : base + len(source)] = moved
