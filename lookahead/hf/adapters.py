"""Adapters of peft that read the prompt, or put something before it.

An adapter that changes what a layer does with a row (LoRA and its kin, IA3 and others) is one more
layer, and nothing here is about it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["active_adapters", "reason_for_adapter"]


def active_adapters(inner: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the adapters that are on, and of those merged into the weights."""
    if not getattr(inner, "peft_config", None):
        return (), ()
    for module in inner.modules():
        active = getattr(module, "active_adapters", None)
        if isinstance(active, list | tuple) and hasattr(module, "disable_adapters"):
            on = () if module.disable_adapters else tuple(active)
            return on, tuple(getattr(module, "merged_adapters", ()))
    return (), ()


def reason_for_adapter(model: Any) -> str | None:
    """Say why a model with its adapter as it is now runs plain, or return None.

    Parameters
    ----------
    model : PreTrainedModel
        The one inside of the adapter, during a call of the adapter's ``generate``.
    """
    configs = getattr(model, "peft_config", None) or {}
    for name in active_adapters(model)[0]:
        if getattr(configs.get(name), "alora_invocation_tokens", None):
            return f"adapter {name!r} is on for the rows behind its invocation tokens only"
    # For the time of a call the adapter prepares the inputs of the model that it stands around.
    owner = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", None)
    config = None if owner is None else getattr(owner, "active_peft_config", None)
    if config is None or getattr(owner, "_adapters_disabled", False):
        return None
    if config.is_prompt_learning:
        kind = getattr(config.peft_type, "value", config.peft_type)
        return f"the adapter ({kind}) puts tokens or K/V of its own before the prompt"
    return None
