"""Builds a tiny seeded model of any registered type.

Its configuration gets the common values that it knows, itself or through its ``attribute_map``,
and then those of its own type. Parts of a model (what reads text, what sees, what hears) get
theirs in the same way.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch
import transformers
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.helpers import _finish
from tests.zoo.configs import COMMON, LEFT, OWN, PERIPHERAL, SEEDS, VARIANTS

#: Every registered causal language model.
TYPES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))

#: These, and other shapes of some of them as ``type:variant``.
NAMES = TYPES + tuple(f"{name}:{one}" for name, several in VARIANTS.items() for one in several)

#: Attention implementations that are asked for, where a class has them.
ATTENTION = ("eager", "sdpa")

#: Parts that read or write text; others see or hear.
_TEXT_PARTS = ("text_config", "decoder")


def build(
    model_type: str, variant: str = "", attention: str = "sdpa", seed: int | None = None
) -> Any:
    """Make a model of a registered type, in eval mode, with weights that a wrong mask shows in.

    Parameters
    ----------
    model_type : str
        One of :data:`TYPES`.
    variant : str
        One of :data:`~tests.zoo.configs.VARIANTS` of this type.
    attention : str
        One of those that :func:`attentions` returns for its class.
    seed : int or None
        Of the weights; None is one with which greedy text does not stand still.
    """
    if seed is None:
        seed = SEEDS.get(f"{model_type}:{variant}", SEEDS.get(model_type, 0))
    return make_model(model_class(model_type), make_config(model_type, variant), attention, seed)


def make_model(kind: Any, config: Any, attention: str = "sdpa", seed: int = 0) -> Any:
    """Make a model of a class from a configuration of it, or of a model that it is a part of."""
    if kind.config_class is not type(config):
        parts = [getattr(config, name) for name in config.sub_configs]
        config = next((part for part in parts if type(part) is kind.config_class), config)
    torch.manual_seed(seed)
    model = kind._from_config(config, attn_implementation=attention)
    if hasattr(model, "set_default_language"):  # adapters of one language each
        model.set_default_language(config.languages[0])
    return _finish(model)


def attentions(kind: Any) -> tuple[str, ...]:
    """Return the attention implementations of a model class that a tree can enter."""
    return ATTENTION if kind._supports_sdpa else ATTENTION[:1]


def model_class(model_type: str) -> Any:
    """Return the class that the library has for a type."""
    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])


def make_config(model_type: str, variant: str = "", **changes: Any) -> Any:
    """Make the configuration of a tiny model of a type."""
    own = OWN.get(model_type, {})
    if variant:
        own = own | VARIANTS[model_type][variant]
    kind = CONFIG_MAPPING[model_type]
    return kind(**_values(kind, COMMON, own | changes))


def _fields(kind: Any) -> set[str]:
    """Return what a class of configurations takes; before 5.4 they were no data classes."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    common = {"bos_token_id", "eos_token_id", "pad_token_id", "is_decoder", "tie_word_embeddings"}
    return common | set(inspect.signature(kind.__init__).parameters) - {"self", "kwargs"}


def _values(kind: Any, common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return what a configuration of a class is made from; its parts as dictionaries."""
    known = _fields(kind)
    values = {}
    for given, value in common.items():
        name = given if given in known else kind.attribute_map.get(given, given)
        if name in known:
            values[name] = value
    values |= {name: value for name, value in own.items() if name not in kind.sub_configs}
    for name, part in kind.sub_configs.items():
        of_part = own.get(name, {})
        is_named = part is AutoConfig and "model_type" in of_part
        part_kind = CONFIG_MAPPING[of_part["model_type"]] if is_named else part
        if part_kind is not AutoConfig:
            inner = COMMON if name in _TEXT_PARTS else PERIPHERAL
            values[name] = _values(part_kind, inner, of_part)
    return {name: value for name, value in values.items() if value is not LEFT}
