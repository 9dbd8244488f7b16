"""Kinds of caches that a run can read in and hand back: growing and static, sliding or not.

A run works on rows of its own and writes them back at its end, so a cache that was passed in is
unchanged until then, whatever is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    QuantizedCache,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from lookahead.errors import UnsupportedError
from lookahead.hf.compat import (
    DummyLayer,
    DynamicIndexedLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    begin_layer,
    length_of,
    set_length,
)

__all__ = [
    "LayerForm",
    "form_of",
    "held_rows",
    "layers_of",
    "refuse_recorded_past",
    "room_of",
    "write_back",
]

#: Caches and layers whose rows are plain K/V.
CACHES = (DynamicCache, StaticCache)
LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
#: Layers that keep more than K/V besides; of exactly these kinds.
MORE = {
    DynamicIndexedLayer: DynamicLayer,
    LinearAttentionAndFullAttentionLayer: DynamicLayer,
    LinearAttentionAndSlidingWindowAttentionLayer: DynamicSlidingWindowLayer,
}


@dataclass(frozen=True)
class LayerForm:
    """How many rows a layer of a given cache holds and shows.

    Parameters
    ----------
    window : int or None
        Sliding window in tokens.
    size : int or None
        Rows of a static buffer, all of which are shown to every pass; None where it grows.
    """

    window: int | None = None
    size: int | None = None

    def columns(self, end: int, num_rows: int) -> tuple[int, int]:
        """Return the first slot that plain decoding shows to a pass, and columns without a row.

        ``end`` counts the slots, those of the ``num_rows`` rows of the pass included.
        """
        before = end - num_rows
        if self.size is None:
            return (0 if self.window is None else max(0, before - self.window + 1)), 0
        if self.window is not None and before >= self.size:
            return before - self.size + 1, 0
        return 0, max(0, self.size - end)


def layers_of(given: Cache) -> list[CacheLayerMixin]:
    """Return the layers of a cache that a run can read in.

    Raises
    ------
    UnsupportedError
        If it is of a kind whose rows cannot be taken back.
    """
    if isinstance(given, QuantizedCache):
        raise UnsupportedError(
            "a quantised cache turns rounding into steps, and passes of different sizes round "
            "differently"
        )
    if _kind(type(given), CACHES) is None:
        raise UnsupportedError(
            f"the cache is a {type(given).__name__}; a DynamicCache or a StaticCache can be "
            "accelerated"
        )
    if getattr(given, "offloading", False):
        raise UnsupportedError("the cache is offloaded to the CPU between layers")
    layers: list[CacheLayerMixin] = given.layers
    return layers


def form_of(index: int, layer: CacheLayerMixin) -> LayerForm:
    """Return what a layer keeps.

    Raises
    ------
    UnsupportedError
        If it is of a kind whose rows cannot be taken back.
    """
    kind = MORE.get(type(layer)) or _kind(type(layer), LAYERS)
    if kind is None:
        raise UnsupportedError(
            f"layer {index} of the cache is a {type(layer).__name__}, whose rows cannot be taken "
            "back; those of a DynamicCache or a StaticCache can"
        )
    refuse_recorded_past(index, layer)
    if kind is DynamicSlidingWindowLayer:
        return LayerForm(window=layer.sliding_window)
    # Before 5.17 it does not say whether its window is longer than its buffer.
    if kind is StaticSlidingWindowLayer and not getattr(layer, "is_croppable", False):
        return LayerForm(window=layer.max_cache_len, size=layer.max_cache_len)
    # A static layer as long as its window, or shorter, is filled up to its end and never slides.
    return LayerForm(size=getattr(layer, "max_cache_len", None))


def refuse_recorded_past(index: int, layer: Any) -> None:
    """Raise if a layer keeps what it has read, for a roll-back that only its owner does."""
    if getattr(layer, "record_past", False):
        raise UnsupportedError(f"layer {index} of the cache records its past for its owner")


def room_of(given: Cache) -> int | None:
    """Return how many rows fit into a cache at all; None where there is no bound."""
    forms = [
        form_of(index, layer)
        for index, layer in enumerate(layers_of(given))
        if type(layer) not in (DummyLayer, LinearAttentionLayer)
    ]
    return min((f.size for f in forms if f.size is not None and f.window is None), default=None)


def held_rows(given: Cache, layer: CacheLayerMixin) -> tuple[Tensor, Tensor, int] | None:
    """Return the K/V that a layer holds, [batch, heads, rows, size], and its length, if any."""
    length = length_of(given, layer) if layer.is_initialized else 0
    if length == 0:
        return None
    rows = min(length, layer.keys.shape[-2])
    return layer.keys[:, :, :rows], layer.values[:, :, :rows], length


def write_back(
    layer: CacheLayerMixin, keys: Tensor, values: Tensor, length: int, parts: Sequence[int]
) -> None:
    """Leave a layer as plain decoding does.

    Parameters
    ----------
    layer : CacheLayerMixin
        Changed.
    keys, values : Tensor, [batch, heads, rows, size]
        The last of them is slot ``length - 1``.
    length : int
        Slots after the run.
    parts : sequence of int
        Rows of the prompt that this run read, by pass.
    """
    if not layer.is_initialized:
        begin_layer(layer, keys, values)
    if isinstance(layer, StaticLayer):
        _fill_static(layer, keys, values, length, parts)
        return
    if isinstance(layer, DynamicSlidingWindowLayer):
        rows = min(keys.shape[-2], max(0, layer.sliding_window - 1))
        keys = keys[:, :, keys.shape[-2] - rows :]
        values = values[:, :, values.shape[-2] - rows :]
        layer.cumulative_length = length
    layer.keys, layer.values = keys.clone(), values.clone()


def _fill_static(
    layer: Any, keys: Tensor, values: Tensor, length: int, parts: Sequence[int]
) -> None:
    """Write into the buffers of a static layer, whose addresses must stay."""
    rows = min(length, layer.max_cache_len)
    layer.keys[:, :, :rows] = keys[:, :, keys.shape[-2] - rows :]
    layer.values[:, :, :rows] = values[:, :, values.shape[-2] - rows :]
    if isinstance(layer, StaticSlidingWindowLayer) and hasattr(layer, "cumulative_length_int"):
        # Its tensor stops counting at the first pass that does not fit whole.
        counted, count = layer.cumulative_length_int, int(layer.cumulative_length)
        for part in [*parts, *[1] * (length - counted - sum(parts))]:
            if counted + part <= layer.max_cache_len:
                count += part
            counted += part
        layer.cumulative_length_int = length
        layer.cumulative_length.fill_(count)
    else:
        set_length(layer, length)


def _kind(kind: type, known: Sequence[type]) -> type | None:
    """Return the class of the library that a class is, or only adds to; None if it is neither."""
    found = next((one for one in kind.__mro__ if one in known), None)
    if found is None:
        return None
    for one in kind.__mro__[: kind.__mro__.index(found)]:
        own = [name for name in vars(one) if not name.startswith(("__", "_abc_"))]
        if any(hasattr(found, name) for name in own):
            return None
    return found
