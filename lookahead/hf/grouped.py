"""Attention of grouped query heads over K/V as they are, in tree passes on a CPU.

With a mask, the library copies K and V to every query head before it multiplies, in each layer of
each pass: behind a long text that costs more than the attention itself. Here the query heads of a
group stand as further rows of their K/V head. The kernel is the same, and so is what it computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import AttentionInterface

from lookahead.hf.registry import hook_once

__all__ = ["attend", "attention_seen_by", "grouped_queries", "install"]

#: The implementation that copies, and what of its arguments is understood here.
NAME = "sdpa"
KNOWN = frozenset(
    {"module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal"}
)

_active: ContextVar[FoldedMasks | None] = ContextVar("lookahead_grouped", default=None)
_seen_by: ContextVar[Callable[..., Any] | None] = ContextVar("lookahead_seen_by", default=None)


class FoldedMasks:
    """The masks of one pass with a row for each query head of a group, made once for all layers."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def of(self, mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
        """Return what is added to scores, [batch, 1, groups * rows, slots].

        Parameters
        ----------
        mask : Tensor, [batch, 1, rows, slots]
            Bool, true where a slot is seen, or float, what is added to scores.
        groups : int
            Query heads of a K/V head.
        dtype : dtype
            Of queries, and of the result if the mask is bool.
        """
        key = (id(mask), groups, dtype)
        if key not in self._made:
            added = mask
            if mask.dtype == torch.bool:
                added = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
            # The mask is kept, too: its id must not become that of another one.
            self._made[key] = (mask, added.repeat(1, 1, groups, 1))
        return self._made[key][1]


def install() -> None:
    """Put the hook into the library's registry of attention; harmless when it is there already."""
    hook_once(AttentionInterface._global_mapping, NAME, _hook)


@contextmanager
def grouped_queries() -> Iterator[None]:
    """Copy no K/V in passes of this context and thread."""
    token = _active.set(FoldedMasks())
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def attention_seen_by(watcher: Callable[..., Any] | None) -> Iterator[None]:
    """Let ``watcher`` run the attention in this context and thread: given it, and its arguments."""
    token = _seen_by.set(watcher)
    try:
        yield
    finally:
        _seen_by.reset(token)


def attend(*args: Any, **kwargs: Any) -> Any:
    """Run the attention that is in the registry now; it may be somebody's who looks on."""
    return AttentionInterface._global_mapping[NAME](*args, **kwargs)


def _hook(original: Callable[..., Any]) -> Callable[..., Any]:
    # What a release understands beyond this, and is given, is left to it.
    named = inspect.signature(original).parameters
    others = set(named) - KNOWN | {"softcap", "output_attentions"}

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> Any:
        # A compiler reads no context variable.
        watcher = None if torch.compiler.is_compiling() else _seen_by.get()
        if watcher is not None:
            with attention_seen_by(None):
                return watcher(attention, module, query, key, value, attention_mask, **kwargs)
        masks = None if torch.compiler.is_compiling() else _active.get()
        groups = getattr(module, "num_key_value_groups", 1)
        if (
            masks is None
            or not _folds(query, key, attention_mask, groups)
            or any(kwargs.get(name) not in (None, False) for name in others)
        ):
            return original(module, query, key, value, attention_mask, **kwargs)
        added = masks.of(attention_mask, groups, query.dtype)
        batch, heads, rows, width = query.shape
        mixed = functional.scaled_dot_product_attention(
            query.reshape(batch, heads // groups, groups * rows, width),
            key,
            value,
            attn_mask=added,
            dropout_p=kwargs.get("dropout", 0.0),
            scale=kwargs.get("scaling"),
        )
        by_head = mixed.reshape(batch, heads, rows, value.shape[-1])
        return by_head.transpose(1, 2).contiguous(), None

    return attention


def _folds(query: Tensor, key: Tensor, mask: Any, groups: int) -> bool:
    """Say whether the library would copy K/V here."""
    return (
        isinstance(mask, Tensor)
        and groups > 1
        and query.device.type == "cpu"
        and query.shape[2] > 1  # the library folds the heads of a single row itself
        and query.shape[1] == key.shape[1] * groups
        and mask.ndim == 4
        and mask.shape[1] == 1
        and mask.shape[2] == query.shape[2]
    )
