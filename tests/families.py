"""Tiny models of four layers, of many families: for what has to hold of any decoder."""

from __future__ import annotations

from typing import Any

from tests.zoo.build import make_config, make_model, model_class

#: Type and variant of each.
_FAMILIES = {
    "llama": ("llama", ""),
    "qwen3": ("qwen3", ""),
    "mistral": ("mistral", ""),
    "gemma2": ("gemma2", ""),
    "gemma3": ("gemma3_text", ""),
    "gpt2": ("gpt2", ""),
    "gpt_neox": ("gpt_neox", ""),
    "opt": ("opt", ""),
    "falcon": ("falcon", ""),
    "phi": ("phi", ""),
    "gpt_oss": ("gpt_oss", ""),
    "deepseek_v3": ("deepseek_v3", ""),
    "gemma3n": ("gemma3n_text", "shared"),
}

#: Those that have an early exit.
EXIT_FAMILIES = tuple(name for name in _FAMILIES if name != "gemma3n")


def make_family(family: str, *, attention: str = "eager", seed: int = 0, **changes: Any) -> Any:
    """Make a model of a family, with weights that are large enough for a wrong mask to show."""
    model_type, variant = _FAMILIES[family]
    config = make_config(model_type, variant, **changes)
    return make_model(model_class(model_type), config, attention, seed)
