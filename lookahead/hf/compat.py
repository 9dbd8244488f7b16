"""Where releases of transformers differ, and the range that the tests run on."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from packaging.version import Version

from lookahead.errors import VersionError

__all__ = [
    "OLDEST",
    "TOO_NEW",
    "cache_argument",
    "check_version",
    "count_or_length",
    "device_of",
    "is_compiled",
    "vocab_size",
]

#: Oldest release that the exactness matrix passes on, and the first one that was not tried.
OLDEST, TOO_NEW = "5.24.0", "5.25"


def check_version() -> None:
    """Refuse a release of transformers outside the tested range.

    Raises
    ------
    VersionError
        Naming the release, the range, and the command that brings one within it.
    """
    found = Version(transformers.__version__)
    if not Version(OLDEST) <= found < Version(TOO_NEW):
        raise VersionError(
            f"lookahead is tested with transformers {OLDEST} up to, not including, {TOO_NEW}, and "
            f"found {found}: run pip install 'transformers>={OLDEST},<{TOO_NEW}'."
        )


def cache_argument(model: Any) -> str:
    """Return the name under which a model's forward takes its cache.

    It was ``past_key_values`` until 5.23 and is ``cache`` from 5.24 on. A wrapper such as an
    adapter hides it, so the innermost model is asked; one that takes whatever comes takes both.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = inspect.signature(inner.forward).parameters
    return "past_key_values" if "past_key_values" in names and "cache" not in names else "cache"


def vocab_size(model: Any) -> int:
    """Return the number of tokens that a model can read; its output layer may have more rows."""
    embeddings = model.get_input_embeddings()
    size = getattr(embeddings, "num_embeddings", None)
    return int(size or model.config.get_text_config(decoder=True).vocab_size)


def device_of(model: Any) -> torch.device:
    """Return where a model computes, even where its weights are fetched layer by layer."""
    device = torch.device(model.device)
    if device.type != "meta":
        return device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    found = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((d for d in found if d is not None), "cpu"))


def is_compiled(model: Any) -> bool:
    """Say whether a model's forward was given to ``torch.compile``."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        return True
    return hasattr(vars(model).get("forward"), "_torchdynamo_orig_callable")


def count_or_length(rows: Any) -> int:
    """Return a number of rows, given as a number or as their positions (before 5.4)."""
    return rows if isinstance(rows, int) else int(rows.shape[0])
