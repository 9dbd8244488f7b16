"""Short and slow answers to compare with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from tests.helpers import CACHE


def kv_from_scratch(model: Any, ids: list[int]) -> DynamicCache:
    """Return the cache of one plain pass over a text."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), **{CACHE: cache})
    return cache


def assert_same_cache(found: Any, expected: Any, atol: float = 1e-5) -> None:
    """Compare lengths and what each layer holds; a layer may hold more than it needs."""
    assert found.get_seq_length() == expected.get_seq_length()
    assert len(found.layers) == len(expected.layers)
    for mine, right in zip(found.layers, expected.layers, strict=True):
        for name in ("keys", "values"):
            one, other = getattr(mine, name), getattr(right, name)
            rows = min(one.shape[-2], other.shape[-2])
            assert rows > 0
            torch.testing.assert_close(
                one[..., -rows:, :], other[..., -rows:, :], atol=atol, rtol=1e-4
            )


def assert_cache_from_scratch(model: Any, cache: Any, ids: list[int]) -> None:
    """Demand that a cache holds all of a text but its last token, and the right values."""
    assert cache.get_seq_length() == len(ids) - 1
    expected = kv_from_scratch(model, ids[:-1])
    for mine, right in zip(cache.layers, expected.layers, strict=True):
        assert type(mine) is type(right)
    assert_same_cache(cache, expected)


def next_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the logits after a text, computed without any cache, float32, [vocab]."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return copy.copy(logits.float())


def assert_same_outputs(found: Any, expected: Any, fields: Sequence[str]) -> None:
    """Compare tuples of tuples of tensors: kinds, lengths, shapes, dtypes and values.

    Values as far as rounding goes: in units of the largest, where that is more than 1.
    """
    for field in fields:
        steps, right_steps = found[field], expected[field]
        assert len(steps) == len(right_steps)
        for step, right in zip(steps, right_steps, strict=True):
            assert type(step) is type(right)
            assert len(step) == len(right)
            for one, other in zip(step, right, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    assert one.dtype == other.dtype
                    largest = float(other.abs().max()) if other.numel() else 0.0
                    atol = 1e-4 * max(1.0, largest)
                    torch.testing.assert_close(one, other, atol=atol, rtol=1e-4)
