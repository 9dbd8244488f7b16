"""Tree attention, put in where the library turns a mask rule into a tensor.

The rule stays the model's own: causal, sliding, chunked or mixed. We say only which slot a row
stands for, and which rows of a tree may see each other. The registry entry that does it is the
one process-wide change of this package, with that of :mod:`lookahead.hf.grouped`; with no tree
active in the current context it delegates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from lookahead.errors import UnsupportedError
from lookahead.hf import grouped
from lookahead.hf.compat import bidirectional_mask_function
from lookahead.hf.early import Corner
from lookahead.hf.registry import hook_once

__all__ = ["SUPPORTED", "Visibility", "install", "tree_attention", "visibility_of"]

#: Attention implementations whose masks go through the registry as tensors.
SUPPORTED = ("eager", "sdpa")

#: What the library's rule for chunks calls the padding, [batch], behind which it starts to count.
LEFT_PADDING = "left_padding"

_active: ContextVar[Visibility | None] = ContextVar("lookahead_visibility", default=None)


@dataclass(frozen=True)
class Visibility:
    """Who may see whom in one pass.

    Parameters
    ----------
    may_see : Tensor, bool, [batch, rows, slots]
        Slots in use, for a row of the pass: live ones of the context, and its own ancestors.
    row_slots : Tensor, int64, [batch, rows]
        The slot that each row would have in plain decoding.
    key_slots : Tensor, int64, [batch, slots]
        The same for each slot of the cache, the new rows included.
    left_padding : Tensor, int64, [batch], or None
        Slots before the first live one; None where nothing is padded.
    """

    may_see: Tensor
    row_slots: Tensor
    key_slots: Tensor
    left_padding: Tensor | None = None


def install() -> None:
    """Put our hooks into the library's registries of masks and of attention, once."""
    for name in SUPPORTED:
        hook_once(AttentionMaskInterface._global_mapping, name, _hook)
    grouped.install()


@contextmanager
def tree_attention(visibility: Visibility) -> Iterator[None]:
    """Use tree attention for the self-attention of passes in this context and thread."""
    token = _active.set(visibility)
    try:
        with grouped.grouped_queries():
            yield
    finally:
        _active.reset(token)


def visibility_of(
    lengths: Sequence[int],
    corners: Sequence[Corner | None],
    depths: NDArray[np.int64],
    num_rows: int,
    *,
    window: int | None,
    live: Tensor | None,
    device: torch.device,
) -> Visibility:
    """Work out which slots each row of a pass may see.

    Parameters
    ----------
    lengths : sequence of int, [batch]
        Slots of each sequence that hold committed rows.
    corners : sequence of Corner or None, [batch]
        Who may see whom among the rows of the step; None for a sequence that has none.
    depths : ndarray, int64, [batch, rows of the step]
        How far below its root each row stands.
    num_rows : int
        Rows of the pass, the last ones of the step so far.
    window : int or None
        Sliding window, in tokens, that no mask of the model keeps.
    live : Tensor, bool, [batch, slots of the prompt], or None
        False where padding is.
    device : torch.device
        Of the result.
    """
    batch, num_step = depths.shape
    past = max(lengths)
    may_see = np.zeros((batch, num_rows, past + num_step), dtype=np.bool_)
    key_slots = np.tile(np.arange(past + num_step), (batch, 1))
    row_slots = np.zeros((batch, num_rows), dtype=np.int64)
    for slot, (corner, length) in enumerate(zip(corners, lengths, strict=True)):
        key_slots[slot, length : length + num_step] = length + depths[slot]
        row_slots[slot] = length + depths[slot, num_step - num_rows :]
        # Rows without a node see themselves alone: a row that sees nothing gives NaN.
        own = slice(length + num_step - num_rows, length + num_step)
        may_see[slot, :, own] = np.eye(num_rows, dtype=np.bool_)
        if corner is not None:
            rows, seen = corner.may_see.shape
            may_see[slot, :rows, :length] = True
            may_see[slot, :rows, length : length + seen] = corner.may_see
    if window is not None:
        may_see &= row_slots[:, :, None] - key_slots[:, None, :] < window
    visible = torch.from_numpy(may_see).to(device)
    padding = None
    if live is not None:
        live = live.to(device)
        known = min(live.shape[1], past)
        visible[:, :, :known] &= live[:, None, :known]
        padding = (live.cumsum(dim=-1) == 0).sum(dim=-1)
    rows, keys = (torch.from_numpy(numbers).to(device) for numbers in (row_slots, key_slots))
    return Visibility(visible, rows, keys, padding)


def _hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_mask(*args: Any, **kwargs: Any) -> Any:
        visibility, rule = _active.get(), kwargs.get("mask_function")
        if visibility is None or rule is bidirectional_mask_function:  # that is cross-attention's
            return original(*args, **kwargs)
        if args or rule is None:
            raise UnsupportedError(
                "this model makes its attention masks in a way that a tree cannot enter"
            )
        if visibility.left_padding is not None:
            _count_behind(rule, visibility.left_padding)
        kwargs["mask_function"] = _tree_rule(rule, visibility)
        kwargs["attention_mask"] = None  # validity is part of the visibility
        kwargs["allow_is_causal_skip"] = False
        return original(**kwargs)

    return make_mask


def _count_behind(rule: Callable[..., Any], padding: Tensor) -> None:
    """Let a rule that has chunks count them from behind the padding.

    The library reads the padding off the mask of the call, which a pass over trees does not hand
    on, and makes the rule anew for each pass.
    """
    if not isinstance(rule, FunctionType):
        return
    for name, cell in zip(rule.__code__.co_freevars, rule.__closure__ or (), strict=True):
        held = cell.cell_contents
        if name == LEFT_PADDING and isinstance(held, Tensor):
            held.copy_(padding)
        for part in held if isinstance(held, tuple) else (held,):
            _count_behind(part, padding)


def _tree_rule(rule: Callable[..., Any], visibility: Visibility) -> Callable[..., Tensor]:
    slots = visibility.may_see.shape[-1]
    rows = visibility.may_see.shape[-2]
    past = slots - rows

    def tree_rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = query - past
        may_see = visibility.may_see[batch, row, key]
        if rule is causal_mask_function:  # ancestors are all that causality allows
            return may_see
        allowed: Tensor = rule(
            batch, head, visibility.row_slots[batch, row], visibility.key_slots[batch, key]
        )
        return allowed & may_see

    return tree_rule
