"""Prompts of different lengths in one call of ``generate``, and the answers that come back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList

__all__ = ["left_padded", "processors_of_row", "until_end"]


def processors_of_row(processors: Iterable[Any], slot: int, batch: int) -> LogitsProcessorList:
    """Return the logits processors of a batch as they are for one of its rows.

    The library's repetition penalty is told how long the padding of each row is; a processor that
    is called with one row needs that row's length alone.
    """
    return LogitsProcessorList([_of_row(one, slot, batch) for one in processors])


def _of_row(processor: Any, slot: int, batch: int) -> Any:
    lengths = getattr(processor, "prompt_ignore_length", None)
    if not isinstance(lengths, torch.Tensor) or lengths.shape != (batch,):
        return processor
    own = copy.copy(processor)
    own.prompt_ignore_length = lengths[slot : slot + 1]
    return own


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
