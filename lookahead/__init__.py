"""Any Hugging Face causal language model, faster, with the very same output.

A model drafts for itself: from n-grams of what it has seen and from logits it has computed
anyway. All guesses become one tree, one forward pass verifies the tree, and the walk over it is
plain decoding replayed: greedy text and seeded samples are those of plain ``generate``.

>>> import lookahead
>>> lookahead.accelerate(model)                 # doctest: +SKIP
>>> model.generate(**inputs)                    # doctest: +SKIP

Everything heavy is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lookahead.version import __version__

if TYPE_CHECKING:
    from lookahead.calls import generate
    from lookahead.config import Config
    from lookahead.drafters.base import Drafter, Guesses
    from lookahead.errors import (
        ConfigError,
        LookaheadError,
        LookaheadWarning,
        TreeError,
        UnsupportedError,
        VersionError,
    )
    from lookahead.outcome import Outcome
    from lookahead.stats import DecodeStats, SourceStats, StepRecord
    from lookahead.tree import DraftTree
    from lookahead.wrapping import (
        Handle,
        accelerate,
        accelerated,
        forget,
        last_stats,
        quantize,
        restore,
    )

_HOMES = {
    "lookahead.wrapping": (
        "Handle",
        "accelerate",
        "accelerated",
        "forget",
        "last_stats",
        "quantize",
        "restore",
    ),
    "lookahead.calls": ("generate",),
    "lookahead.config": ("Config",),
    "lookahead.drafters.base": ("Drafter", "Guesses"),
    "lookahead.errors": (
        "ConfigError",
        "LookaheadError",
        "LookaheadWarning",
        "TreeError",
        "UnsupportedError",
        "VersionError",
    ),
    "lookahead.outcome": ("Outcome",),
    "lookahead.stats": ("DecodeStats", "SourceStats", "StepRecord"),
    "lookahead.tree": ("DraftTree",),
}

__all__ = [
    "Config",
    "ConfigError",
    "DecodeStats",
    "DraftTree",
    "Drafter",
    "Guesses",
    "Handle",
    "LookaheadError",
    "LookaheadWarning",
    "Outcome",
    "SourceStats",
    "StepRecord",
    "TreeError",
    "UnsupportedError",
    "VersionError",
    "__version__",
    "accelerate",
    "accelerated",
    "forget",
    "generate",
    "last_stats",
    "restore",
    "quantize",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'lookahead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
