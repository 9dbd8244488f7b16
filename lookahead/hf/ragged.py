"""Prompts of very different lengths, read one by one: nobody computes what stands for padding.

Plain decoding reads a batch as one rectangle, as long as its longest prompt. On a CPU, where rows
are what time goes into, most of that may be padding. What is read here lies where the rectangle
would have put it, so that everything after it is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from lookahead.hf.compat import prefill
from lookahead.hf.observe import last_hidden_state
from lookahead.hf.ropes import rope_limit

__all__ = ["RaggedPrompts", "is_worth_it", "read_one_by_one"]

#: Rows of padding for each sequence that are worth a pass of its own.
FEWEST_ROWS = 64

#: Arguments of a call that are understood here. With any other tensor the batch stays whole.
KNOWN = ("attention_mask", "position_ids")


class RaggedPrompts(NamedTuple):
    """What a batch of prompts left behind, in the places of a padded one.

    Parameters
    ----------
    logits : Tensor, float, [batch, vocab]
        After the last token of each prompt.
    hidden : Tensor, float, [batch, tokens, width], or None
        Last hidden states, zeros before the prompt; None where the output layer takes others.
    cache : DynamicCache
        K/V, zeros before the prompt.
    """

    logits: Tensor
    hidden: Tensor | None
    cache: DynamicCache


def is_worth_it(
    model: Any, mask: Tensor, positions: Tensor, model_kwargs: dict[str, Any], settings: Any
) -> bool:
    """Say whether prompts can be read one by one, and enough padding is left out by it.

    Parameters
    ----------
    model : PreTrainedModel
        Takes positions, and nothing of it depends on the slot of a token.
    mask : Tensor, int64, [batch, tokens]
        Zeros where padding is.
    positions : Tensor, int64, [batch, tokens]
        From 0 on at the first token that is no padding.
    model_kwargs : dict
        Arguments of the call.
    settings : GenerationConfig
        Of the call.
    """
    if mask.device.type != "cpu" or settings.prefill_chunk_size is not None:
        return False
    batch, tokens = mask.shape
    lengths = mask.sum(-1)
    on_the_right = torch.arange(tokens) >= tokens - lengths[:, None]
    if not bool(((mask != 0) == on_the_right).all()) or int(lengths.min()) < 1:
        return False
    if batch * tokens - int(lengths.sum()) < FEWEST_ROWS * batch:
        return False
    if positions.shape != mask.shape or not bool((positions[mask.cumsum(-1) == 1] == 0).all()):
        return False
    others = (v for name, v in model_kwargs.items() if name not in KNOWN)
    return not any(isinstance(v, Tensor | list | tuple) for v in others) and _sees_all(model)


def _sees_all(model: Any) -> bool:
    """Say whether every layer looks at the whole text, by angles that are fixed ones."""
    text = model.config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    bounded = ("sliding_window", "attention_chunk_size")
    return (
        kinds == {"full_attention"}
        and not any(getattr(text, name, None) for name in bounded)
        and rope_limit(text) is None
    )


def read_one_by_one(
    model: Any,
    input_ids: Tensor,
    mask: Tensor,
    positions: Tensor,
    model_kwargs: dict[str, Any],
    cache_name: str,
    settings: Any,
) -> RaggedPrompts:
    """Read prompts, each without its padding.

    Parameters
    ----------
    model : PreTrainedModel
        One for which :func:`is_worth_it` holds.
    input_ids, mask, positions : Tensor, int64, [batch, tokens]
        Padded on the left.
    model_kwargs : dict
        Arguments of the call, which stay as they are.
    cache_name : str
        The name under which forward takes the cache.
    settings : GenerationConfig
        Of the call.
    """
    batch, tokens = input_ids.shape
    caches, hidden, logits = [], [], []
    for row in range(batch):
        part = (slice(row, row + 1), slice(tokens - int(mask[row].sum()), None))
        own = DynamicCache()
        kwargs = model_kwargs | {
            cache_name: own,
            "attention_mask": mask[part],
            "position_ids": positions[part],
        }
        with last_hidden_state(model) as seen:
            outputs = prefill(model, input_ids[part], settings, kwargs)
        caches.append(own)
        hidden.append(seen.matching_hidden())
        logits.append(outputs.logits[:, -1])
    cache = DynamicCache()
    for index, layers in enumerate(zip(*(own.layers for own in caches), strict=True)):
        keys = _joined([layer.keys for layer in layers], tokens)
        values = _joined([layer.values for layer in layers], tokens)
        cache.update(keys, values, index)
    known = [states for states in hidden if states is not None]
    joined = _joined(known, tokens) if len(known) == batch else None
    return RaggedPrompts(torch.cat(logits), joined, cache)


def _joined(parts: list[Tensor], tokens: int) -> Tensor:
    """Put zeros before each part, up to so many tokens, and join them, [batch, ..., tokens, size].

    Each part is [1, ..., its tokens, size].
    """
    return torch.cat([functional.pad(p, (0, 0, tokens - p.shape[-2], 0)) for p in parts])
