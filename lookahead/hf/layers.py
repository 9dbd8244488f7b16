"""Whether a model's matrix layers treat each row of a pass by itself, as full-precision ones do.

A quantised layer may round its input to a few bits, by a scale that it takes from all rows of a
pass, or from each row. With the former a row of a tree is not what one step computes. With the
latter it is, up to steps of rounding: where the last bit of a sum depends on the number of rows,
a value may fall into the next step, which is far more than the last bit. The self-test compares
logits, and in 16 bits cannot tell that from ordinary rounding; so the layers are asked one by one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _everywhere

from lookahead.hf.compat import device_of

__all__ = [
    "changed_part",
    "functions_of",
    "is_plain_matrix",
    "kinds_of_layers",
    "precision",
    "reason_for_layers",
]

#: How much larger the other rows are: enough to drown a row that shares a scale with them.
LARGER = 256.0

#: Relative error that is rounding of sums, in 32 and in 16 bits. In 16 bits, layers that keep rows
#: apart were measured at 0, those that do not at 0.006 and more (docs/back_ends.md).
ROUNDING_32, ROUNDING_16 = 1e-4, 4e-3


def precision(model: Any) -> torch.dtype:
    """Return the type in which a model computes: that of its weights, or of ``autocast``."""
    kind = device_of(model).type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    dtype: torch.dtype = model.dtype
    return dtype


def kinds_of_layers(model: nn.Module) -> Hashable:
    """Return what changes when layers become others, in place even.

    When they are exchanged, their weights quantised, hooks put on them or taken off, their forwards
    replaced, or a part of them set to training.
    """
    kinds = []
    for module in model.modules():
        weight = module._parameters.get("weight")  # many times faster than to ask the module
        kind = (type(module), type(weight), None if weight is None else weight.dtype)
        kinds.append((*kind, module.training, type(module).forward, *functions_of(module)))
    everywhere = (
        *_everywhere._global_forward_pre_hooks.values(),
        *_everywhere._global_forward_hooks.values(),
    )
    return hash((*kinds, *map(_made_of, everywhere)))


def changed_part(model: nn.Module) -> str | None:
    """Say what somebody did to a part of a model that single-token passes may need, or None.

    A hint beside a fault that was found: a model may have any of it and bear trees all the same.
    """
    for name, module in model.named_modules():
        if module.training:
            return f"{name} is in training mode"
        if functions_of(module):
            return f"{name or type(model).__name__} has a hook or a forward of somebody's own"
    return None


def functions_of(module: nn.Module) -> tuple[Hashable, ...]:
    """Return what is put on one module, or in place of its forward, by others than us."""
    functions = [
        *module._forward_pre_hooks.values(),
        *module._forward_hooks.values(),
        *filter(None, [vars(module).get("forward")]),
    ]
    return tuple(_made_of(f) for f in functions if not _is_ours(f)) if functions else ()


def _is_ours(function: Any) -> bool:
    named = function if hasattr(function, "__code__") else type(function)
    return str(named.__module__).startswith("lookahead.")


def _made_of(function: Any) -> Hashable:
    """Return the code of a function and the settings it was made with.

    So a hook that is made anew for each call, by a function around it, counts as the same one.
    """
    held: list[Any] = []
    while isinstance(function, functools.partial):
        held += [*function.args, *function.keywords.values()]
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", type(function))
    held += getattr(function, "__defaults__", None) or ()
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # nothing was put into it yet
            held.append(cell.cell_contents)
    return code, tuple(x if isinstance(x, (str, int, type(None))) else type(x) for x in held)


def is_plain_matrix(module: object) -> bool:
    """Say whether a module is a linear layer whose weight is a matrix of floats, and is here."""
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return False
    weight = _weight(module)
    return _is_plain(weight) and weight.dtype.is_floating_point and not weight.is_meta


def reason_for_layers(model: nn.Module) -> str | None:
    """Say why the layers of a model cannot be given several rows at once, or return None.

    Asks each matrix layer that is not a plain one, with made-up rows; nothing is changed. What
    raises here is left to the self-test.
    """
    with torch.no_grad():
        for name, module in _unusual(model):
            try:
                reason = _reason(module, precision(model))
            except Exception:  # noqa: BLE001 - made-up rows may fit nowhere
                continue
            if reason is not None:
                return f"{name} ({_kind(module)}) {reason}"
    return None


def _reason(module: nn.Module, dtype: torch.dtype) -> str | None:
    width = int(module.in_features)  # type: ignore[arg-type]
    device = next((t.device for t in _tensors(module)), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    made = torch.randn((5, width), generator=generator).to(device=device, dtype=dtype)
    one, other, larger = made[:1], made[1:2], LARGER * made[2:]
    alone = module(one).float()
    among = module(torch.cat([one, larger])).float()[:1]
    limit = ROUNDING_32 if dtype == torch.float32 else ROUNDING_16
    if not _relative(among - alone, alone) <= limit:
        return "makes something else of a row when other rows stand in the same pass"
    if dtype != torch.float32:
        return None  # ids are those of plain decoding up to rounding anyway
    both = module(one + other).float() + module(torch.zeros_like(one)).float()
    if not _relative(both - alone - module(other).float(), alone) <= limit:
        return "rounds its input to a few bits, where the last bit of a sum may decide"
    return None


def _unusual(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if not isinstance(getattr(module, "in_features", None), int):
            continue
        # A wrapper, such as an adapter's, is asked through the layer in it.
        if hasattr(module, "base_layer") or is_plain_matrix(module):
            continue
        # Elsewhere, or in parts: made-up rows do not fit, and only the self-test can ask.
        if any(t.is_meta or hasattr(t, "device_mesh") for t in _tensors(module)):
            continue
        yield name, module


def _relative(error: Tensor, right: Tensor) -> float:
    return float(error.norm() / right.norm().clamp(min=1e-9))


def _weight(module: object) -> Any:
    weight = getattr(module, "weight", None)
    # Some quantised layers have a function of this name.
    return None if callable(weight) and not isinstance(weight, Tensor) else weight


def _is_plain(weight: object) -> bool:
    """Say whether it is an ordinary tensor, not one of a kind with rules of its own."""
    return type(weight) in (Tensor, nn.Parameter)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _kind(module: nn.Module) -> str:
    weight = _weight(module)
    plain = weight is None or _is_plain(weight)
    return type(module).__name__ if plain else type(weight).__name__
