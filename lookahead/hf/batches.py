"""Prompts of different lengths in one call of ``generate``, and the answers that come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["left_padded", "until_end"]


def left_padded(model: Any, prompts: Sequence[list[int]]) -> dict[str, Any]:
    """Return ids, padded at the left, with their mask and the padding token, by argument name."""
    pad = model.generation_config.pad_token_id
    if pad is None:
        pad = next((end for end in _ends(model) if end is not None), 0)
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    lengths = torch.tensor([[len(prompt)] for prompt in prompts])
    mask = (torch.arange(width)[None] >= width - lengths).long()
    return {
        "input_ids": ids.to(model.device),
        "attention_mask": mask.to(model.device),
        "pad_token_id": pad,
    }


def until_end(model: Any, answer: list[int]) -> list[int]:
    """Cut at the first end token, which stays: what follows it in a batch is padding."""
    ends = set(_ends(model))
    length = next((n + 1 for n, token in enumerate(answer) if token in ends), len(answer))
    return answer[:length]


def _ends(model: Any) -> list[int | None]:
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [ends]
