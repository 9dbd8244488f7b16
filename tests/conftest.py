"""Tiny seeded models built from configurations, and drafters that are right or wrong on purpose."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers

import lookahead

VOCAB = 128
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gpt2")

_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def make_model(family: str = "llama", *, attention: str = "sdpa", seed: int = 0, **changes: Any) -> Any:
    """Make a model with weights that are large enough for a wrong mask to show."""
    torch.manual_seed(seed)
    config: Any
    if family == "gpt2":
        values = {
            "vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512,
            "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
        }
        config = transformers.GPT2Config(**(values | changes))
        kind: Any = transformers.GPT2LMHeadModel
    else:
        name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[family]
        values = dict(_SMALL)
        if family == "qwen3":
            values["head_dim"] = 16
        if family == "mistral":
            values["sliding_window"] = 8
        config = getattr(transformers, f"{name}Config")(**(values | changes))
        kind = getattr(transformers, f"{name}ForCausalLM")
    config._attn_implementation = attention
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


_cache: dict[str, Any] = {}


@pytest.fixture
def llama() -> Any:
    """A fresh tiny Llama; equal weights in every test."""
    return fresh("llama")


def fresh(family: str, **kwargs: Any) -> Any:
    """Return a copy of a tiny model that is built once."""
    key = f"{family}{sorted(kwargs.items())}"
    if key not in _cache:
        _cache[key] = make_model(family, **kwargs)
    return copy.deepcopy(_cache[key])


def prompt(length: int = 20, seed: int = 1, repeat: int = 0) -> torch.Tensor:
    """Return ids, [1, length], the last ``repeat`` of which stand near the start as well."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (1, length), generator=generator)
    if repeat:
        ids[0, -repeat:] = ids[0, 2 : 2 + repeat]
    return ids


class Oracle:
    """Always right up to ``until`` tokens ahead: replays what plain generation gave."""

    name = "oracle"

    def __init__(self, text: list[int], length: int = 4, wrong_at: int | None = None) -> None:
        self.text, self.length, self.wrong_at = text, length, wrong_at

    def draft(self, context: list[int], max_nodes: int) -> list[int]:
        guess = list(self.text[len(context) : len(context) + self.length])
        if self.wrong_at is not None and self.wrong_at < len(guess):
            guess[self.wrong_at] = (guess[self.wrong_at] + 1) % VOCAB
        return guess


class Fixed:
    """Always says the same."""

    name = "fixed"

    def __init__(self, guess: Any) -> None:
        self.guess = guess

    def draft(self, context: list[int], max_nodes: int) -> Any:
        return self.guess


class Recorder:
    """A streamer that keeps everything."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value)

    def end(self) -> None:
        self.ends += 1

    @property
    def ids(self) -> list[int]:
        return [int(t) for value in self.values for t in value.flatten()]


def both(model: Any, ids: Any, *, settings: dict[str, Any] | None = None, seed: int = 0,
         fresh_args: Callable[[], dict[str, Any]] | None = None, **kwargs: Any) -> tuple[Any, Any]:
    """Generate plainly and accelerated with the same seed; return both results."""
    make = fresh_args or dict
    torch.manual_seed(seed)
    plain = model.generate(ids, **kwargs, **make())
    with lookahead.accelerate(model, **({"nodes": 8, "strict": True} | (settings or {}))):
        torch.manual_seed(seed)
        fast = model.generate(ids, **kwargs, **make())
        both.stats = lookahead.last_stats(model)  # type: ignore[attr-defined]
    return plain, fast


@pytest.fixture(autouse=True, scope="session")
def _compiled_pool() -> Iterator[None]:
    import ngram_pool

    ngram_pool.warm_up(block=True)
    yield
