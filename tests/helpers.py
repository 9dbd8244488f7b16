"""Tiny seeded models built from configurations, and the two runs that are compared."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers

import lookahead
from lookahead.hf.compat import KNOWS_STATES, PREPARES_POSITIONS, cache_argument

VOCAB = 128
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gpt2")
WINDOW = 8

#: The name under which models of this release take and return their cache.
CACHE = cache_argument(None)

#: For tests that hand a cache in with the ids alone that it does not hold.
NEW_IDS_ALONE = pytest.mark.skipif(
    not PREPARES_POSITIONS, reason="before transformers 5.2 a cache came with all ids"
)

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


def make_model(
    family: str = "llama", *, attention: str = "sdpa", seed: int = 0, **changes: Any
) -> Any:
    """Make a model with weights that are large enough for a wrong mask to show."""
    torch.manual_seed(seed)
    config: Any
    if family == "gpt2":
        values = {
            "vocab_size": VOCAB,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 512,
            "bos_token_id": 1,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        config = transformers.GPT2Config(**(values | changes))
        kind: Any = transformers.GPT2LMHeadModel
    else:
        name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[family]
        values = dict(_SMALL)
        if family == "qwen3":
            values["head_dim"] = 16
        if family == "mistral":
            values["sliding_window"] = WINDOW
        config = getattr(transformers, f"{name}Config")(**(values | changes))
        kind = getattr(transformers, f"{name}ForCausalLM")
    config._attn_implementation = attention
    return _finish(kind(config))


def make_gemma3(*, attention: str = "sdpa", seed: int = 0) -> Any:
    """Make a small Gemma 3: sliding and full layers in turn."""
    torch.manual_seed(seed)
    values = _SMALL | {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 16,
    }
    config = transformers.Gemma3TextConfig(**values)
    config._attn_implementation = attention
    return _finish(transformers.Gemma3ForCausalLM(config))


def make_bloom(*, attention: str = "sdpa", seed: int = 0) -> Any:
    """Make a small Bloom, whose ALiBi bias comes from the slot of a key."""
    torch.manual_seed(seed)
    config = transformers.BloomConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    config._attn_implementation = attention
    return _finish(transformers.BloomForCausalLM(config))


def make_mamba(*, seed: int = 0) -> Any:
    """Make a small Mamba, whose state cannot be taken back."""
    torch.manual_seed(seed)
    config = transformers.MambaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        state_size=4,
        num_hidden_layers=2,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return _finish(transformers.MambaForCausalLM(config))


def make_gpt_neo(window: int, *, seed: int = 0) -> Any:
    """Make a small GPT-Neo, whose local layers cut their window by slot."""
    torch.manual_seed(seed)
    config = transformers.GPTNeoConfig(
        vocab_size=128,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=window,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return _finish(transformers.GPTNeoForCausalLM(config))


def make_moshi(window: int, *, attention: str = "sdpa", seed: int = 0) -> Any:
    """Make a small Moshi, which has a window that only its cache keeps."""
    torch.manual_seed(seed)
    config = transformers.MoshiConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        ffn_dim=48,
        head_dim=8,
        max_position_embeddings=256,
        sliding_window=window,
        bos_token_id=1,
    )
    config._attn_implementation = attention
    return _finish(transformers.MoshiForCausalLM(config))


def _finish(model: Any) -> Any:
    model = model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


_models: dict[str, Any] = {}


def shared(family: str = "llama", **kwargs: Any) -> Any:
    """Return a tiny model that is built once and must not be changed."""
    key = f"{family}{sorted(kwargs.items())}"
    if key not in _models:
        make = {"gemma3": make_gemma3, "bloom": make_bloom, "mamba": make_mamba}.get(family)
        _models[key] = make(**kwargs) if make else make_model(family, **kwargs)
    return _models[key]


def fresh(family: str = "llama", **kwargs: Any) -> Any:
    """Return a copy of a tiny model, to do anything with."""
    model = copy.deepcopy(shared(family, **kwargs))
    lookahead.restore(model)
    # The library leaves hooks on a model whose hidden states or attentions were asked for.
    for module in model.modules():
        module._forward_hooks.clear()
        vars(module).pop("_output_capturing_hooks_installed", None)
        # Before 5.0 it leaves the methods that it had replaced for that.
        own = vars(module).get("forward")
        if getattr(own, "__func__", None) is type(module).forward:
            del module.forward
    return model


def prompt(length: int = 20, seed: int = 1, repeat: int = 0) -> torch.Tensor:
    """Return ids, [1, length], the last ``repeat`` of which stand near the start as well."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (1, length), generator=generator)
    if repeat:
        ids[0, -repeat:] = ids[0, 2 : 2 + repeat]
    return ids


def new_ids(model: Any, ids: torch.Tensor, num: int = 24, **kwargs: Any) -> list[int]:
    """Return what plain greedy decoding adds to a prompt."""
    kwargs.setdefault("do_sample", False)
    out = model.generate(ids, max_new_tokens=num, **kwargs)
    found: list[int] = out[0, ids.shape[1] :].tolist()
    return found


def first_seen(tokens: list[int], start: int = 0) -> list[int]:
    """Return the places from ``start`` on whose token did not stand at an earlier place."""
    return [i for i, t in enumerate(tokens) if i >= start and t not in tokens[:i]]


class Recorder:
    """A streamer that keeps everything."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.clone())

    def end(self) -> None:
        self.ends += 1

    @property
    def ids(self) -> list[int]:
        return [int(t) for value in self.values for t in value.flatten()]


@contextmanager
def skip_if_earlier() -> Iterator[None]:
    """Skip a test where an earlier release has no way to accelerate what it asks for.

    Many families came to the mask registry, and states of recurrent ones into caches, on the way
    to the newest. The families of :data:`FAMILIES` have tests without this.
    """
    try:
        yield
    except lookahead.UnsupportedError as error:
        if KNOWS_STATES:
            raise
        pytest.skip(f"transformers {transformers.__version__}: {error}")


def skip_if_no_tree_earlier(fault: str | None) -> None:
    """Skip a test for what the self-test says of a family in an earlier release.

    What the families of :mod:`tests.zoo.expected` do there is a test of its own.
    """
    if fault is not None and not KNOWS_STATES:
        pytest.skip(f"transformers {transformers.__version__}: {fault}")


@dataclass
class Runs:
    """One call done plainly and accelerated."""

    plain: Any
    fast: Any
    stats: Any


def run(
    model: Any,
    ids: Any,
    *,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    make: Callable[[], dict[str, Any]] | None = None,
    **kwargs: Any,
) -> Runs:
    """Generate plainly and accelerated, with the same seed.

    ``make`` makes arguments anew for each of the two runs: those with a state. Unless told
    otherwise the accelerated run must not be a plain one.
    """
    own = make or dict
    lookahead.forget(model)  # what earlier tests taught must not matter
    positional = () if ids is None else (ids,)
    torch.manual_seed(seed)
    plain = model.generate(*positional, **kwargs, **own())
    with lookahead.accelerate(model, **({"nodes": 8, "strict": True} | (settings or {}))):
        torch.manual_seed(seed)
        with skip_if_earlier():
            fast = model.generate(*positional, **kwargs, **own())
        stats = lookahead.last_stats(model)
    return Runs(plain, fast, stats)


def check(model: Any, ids: Any, **kwargs: Any) -> Runs:
    """Run both, and demand the same ids."""
    runs = run(model, ids, **kwargs)
    plain, fast = _sequences(runs.plain), _sequences(runs.fast)
    assert fast.tolist() == plain.tolist()
    assert fast.dtype == plain.dtype
    return runs


def _sequences(result: Any) -> torch.Tensor:
    sequences: torch.Tensor = result if isinstance(result, torch.Tensor) else result.sequences
    return sequences


def cache_of(result: Any) -> Any:
    """Return the cache that a result holds."""
    return getattr(result, CACHE)


def quietly(function: Callable[[], Any]) -> Any:
    """Call with our own warnings ignored: for drafters that are meant to be reported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lookahead.LookaheadWarning)
        return function()
