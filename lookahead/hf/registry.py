"""Entries of the library's registries, replaced by ones of ours that delegate to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from typing import Any

__all__ = ["hook_once"]

_lock = threading.Lock()


def hook_once(
    registry: MutableMapping[str, Any], name: str, hook: Callable[[Callable[..., Any]], Any]
) -> None:
    """Replace an entry by what ``hook`` makes of it; harmless when it is replaced already.

    Parameters
    ----------
    registry : mutable mapping
        Of functions by name; the library's own, of the whole process.
    name : str
        Of the entry.
    hook : callable
        Given the entry, returns another one that delegates to it. The entry can be read from the
        attribute ``lookahead_original`` of that.
    """
    with _lock:
        original = registry[name]
        if not hasattr(original, "lookahead_original"):
            ours = hook(original)
            ours.lookahead_original = original
            registry[name] = ours
