"""Which model it is, told from its sizes and from samples of its weights.

Reads a few thousand numbers, however large the model is. The number format does not matter where a
value survives it: what float32 and bfloat16 make of one checkpoint is one model, since sums of
hidden states serve both. Quantised weights are other weights, and an adapter that is switched on
makes another model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from lookahead.hf.adapters import active_adapters
from lookahead.learnt import Identity

__all__ = ["identify", "weights_key"]

T = TypeVar("T")

#: What hidden states depend on besides weights.
SIZES = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "rope_parameters",
)

#: Tensors that are sampled, of the model and of its adapter, and values along each axis.
NUM_TENSORS, NUM_VALUES = 32, 16

#: Below this, float16 keeps fewer digits than bfloat16: such values count as zero.
SMALLEST = 2.0**-14


def identify(model: Any) -> Identity:
    """Return the identity of a model as it is now.

    Parameters
    ----------
    model : PreTrainedModel or PeftModel
        Weights that are elsewhere are left out.

    Returns
    -------
    Identity
        With 32 hexadecimal digits, the same in every process.
    """
    inner = _inner(model)
    config = inner.config.get_text_config(decoder=True)
    sizes = {name: getattr(config, name, None) for name in SIZES}
    digest = hashlib.blake2b(digest_size=16)
    digest.update(type(inner).__name__.encode())
    digest.update(json.dumps(sizes, sort_keys=True, default=str).encode())
    for name, tensor in _sampled(inner):
        digest.update(f"\n{name} {tuple(tensor.shape)}\n".encode())
        digest.update(_values(tensor))
    digest.update(json.dumps(_active_configs(inner), default=str).encode())
    return Identity(digest.hexdigest(), _label(inner, sizes))


def weights_key(model: Any) -> Hashable:
    """Return what changes when the weights do; costs no more than a few attributes.

    Adapters that are switched, on, off or merged, and steps of an optimiser are noticed. A weight
    whose ``data`` is replaced is not.
    """
    inner = _inner(model)
    ends = (inner.get_input_embeddings(), inner.get_output_embeddings())
    weights = [getattr(end, "weight", None) for end in ends]
    return (active_adapters(inner), *map(_version, weights))


def _inner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _version(weight: object) -> int:
    # Tensors made in inference mode have no version, since nothing may change them.
    if not isinstance(weight, Tensor) or weight.is_inference():
        return 0
    return weight._version


def _active_configs(inner: Any) -> list[tuple[str, ...]]:
    """Return what else decides how strong an adapter is."""
    configs = getattr(inner, "peft_config", None) or {}
    wanted = ("peft_type", "r", "lora_alpha", "use_rslora", "target_modules")
    return [
        tuple(_plain(getattr(configs[name], field, None)) for field in wanted)
        for name in active_adapters(inner)[0]
        if name in configs
    ]


def _plain(value: object) -> str:
    return str(sorted(map(str, value)) if isinstance(value, set) else value)


def _sampled(inner: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors by name: embeddings, some of the layers, some of the adapter that is on."""
    known = set(getattr(inner, "peft_config", None) or {})
    on = set(active_adapters(inner)[0])
    own: dict[str, Tensor] = {}
    adapted: dict[str, Tensor] = {}
    for name, tensor in _tensors(inner):
        parts = set(name.split("."))
        if not parts & known:
            # An adapter puts itself around a layer; without it the model is the one it was.
            own[name.replace(".base_layer.", ".")] = tensor
        elif parts & on:
            adapted[name] = tensor
    for kind, end in (("in", inner.get_input_embeddings()), ("out", inner.get_output_embeddings())):
        weight = getattr(end, "weight", None)
        if isinstance(weight, Tensor):
            yield kind, weight
    for tensors in (own, adapted):
        for name in _spread(sorted(tensors), NUM_TENSORS):
            yield name, tensors[name]


def _tensors(inner: Any) -> Iterator[tuple[str, Tensor]]:
    yield from inner.named_parameters()
    # Some ways to quantise keep their whole numbers in buffers.
    for name, buffer in inner.named_buffers():
        if not buffer.is_floating_point() and buffer.ndim > 1:
            yield name, buffer


def _spread(items: Sequence[T], num: int) -> list[T]:
    """Return ``num`` items, or all, evenly spread."""
    if len(items) <= num:
        return list(items)
    return [items[i * (len(items) - 1) // (num - 1)] for i in range(num)]


def _values(tensor: Tensor) -> bytes:
    """Return a few values of a tensor as bytes, or nothing where they are not at hand."""
    if tensor.is_meta:
        return b""  # off-loaded: to fetch it would cost more than it tells
    try:
        part = tensor.detach()
        for axis in range(part.ndim):
            step = max(1, part.shape[axis] // NUM_VALUES)
            part = part[(slice(None),) * axis + (slice(None, None, step),)]  # a view
        part = part.to("cpu")
        if not part.is_floating_point():
            return part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        rounded = part.to(torch.bfloat16).float()
        kept = torch.where(rounded.abs() < SMALLEST, 0.0, rounded)
        return kept.contiguous().numpy().tobytes()
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return b""  # a tensor of its own kind that cannot be cut: its name and shape must do


def _label(inner: Any, sizes: dict[str, Any]) -> str:
    """Return a name for people, without the path of a folder."""
    name = str(getattr(inner.config, "_name_or_path", "") or "")
    if name and (Path(name).is_absolute() or Path(name).exists()):
        name = Path(name).name
    described = f"{type(inner).__name__} {sizes['num_hidden_layers']}x{sizes['hidden_size']}"
    return f"{name} ({described})" if name else described
