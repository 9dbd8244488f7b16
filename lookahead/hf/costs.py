"""The cost curve of one model, kept by all that a pass's time depends on."""

from __future__ import annotations

from typing import Any

import torch

from lookahead.cost_curve import CostCurve
from lookahead.hf.compat import device_of, is_compiled
from lookahead.hf.fused import is_fused
from lookahead.hf.layers import precision
from lookahead.hf.prepack import is_prepacked
from lookahead.hf.quantised import quantised_kind
from lookahead.learnt import Learnt
from lookahead.machine import machine_name

__all__ = ["cost_curve"]


def cost_curve(model: Any, learnt: Learnt) -> CostCurve:
    """Return what passes of a model cost here, as far as it is known."""
    device, dtype, bits = device_of(model), precision(model), quantised_kind(model)
    half = dtype in (torch.bfloat16, torch.float16)
    kind = ("cpu-16bit" if half else "cpu") if device.type == "cpu" else "other"
    kind += "-prepacked" if is_prepacked() else ""
    kind = "cpu-quantised" if bits is not None and device.type == "cpu" else kind
    text = model.config.get_text_config(decoder=True)
    key = (
        machine_name(device),
        str(device),
        str(dtype),
        text._attn_implementation,
        f"{torch.get_num_threads()} threads",
        *(["compiled"] if is_compiled(model) else []),
        *(["prepacked"] if is_prepacked() else []),
        *(["fused"] if is_fused() else []),
        *([bits] if bits else []),
    )
    return learnt.curve(key, kind)
