"""What the library prepared for the prompts of a call, by what it means and not by its name."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from lookahead.hf.compat import positions_by_mask

__all__ = [
    "prompt_mask",
    "prompt_mask_name",
    "prompt_positions",
    "prompt_positions_name",
    "takes_positions",
]


def prompt_mask_name(model: Any) -> str:
    """Return the name of the mask over decoder tokens."""
    return "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"


def prompt_positions_name(model: Any) -> str:
    """Return the name of the positions of decoder tokens."""
    return "decoder_position_ids" if model.config.is_encoder_decoder else "position_ids"


def takes_positions(model: Any) -> bool:
    """Say whether a model can be told the positions of decoder tokens."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return prompt_positions_name(model) in inspect.signature(inner.forward).parameters


def prompt_mask(model: Any, model_kwargs: dict[str, Any]) -> Tensor | None:
    """Return which decoder tokens are no padding, [batch, tokens]; None where all are none.

    It also covers what a cache that was passed in holds.
    """
    mask: Tensor | None = model_kwargs.get(prompt_mask_name(model))
    # Until 5.19 the library hands on, or makes, masks of nothing but ones.
    return None if mask is None or bool(mask.all()) else mask


def prompt_positions(
    model: Any,
    input_ids: Tensor,
    settings: Any,
    model_kwargs: dict[str, Any],
) -> Tensor:
    """Return the positions of the prompt.

    Parameters
    ----------
    model : PreTrainedModel
        Of the call.
    input_ids : Tensor, int64, [batch, tokens]
        Without what came as embeddings or in a cache.
    settings : GenerationConfig
        Of the call, as the library prepared it.
    model_kwargs : dict
        The same.

    Returns
    -------
    Tensor, int64, [..., batch or 1, tokens]
        What is in a cache that was passed in included. A model that takes none counts slots.
    """
    given: Tensor | None = model_kwargs.get(prompt_positions_name(model))
    if given is not None:
        return given
    mask: Tensor | None = model_kwargs.get(prompt_mask_name(model))
    derived = positions_by_mask(mask)
    if derived is not None and takes_positions(model):
        return derived
    length = getattr(settings, "_mask_length", None) if mask is None else mask.shape[1]
    tokens = max(input_ids.shape[1], length or 0)
    return torch.arange(tokens, device=input_ids.device)[None]
