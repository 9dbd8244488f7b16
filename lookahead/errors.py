"""What can go wrong, as one tree of exceptions.

::

    LookaheadError
    ├── ConfigError        (also ValueError)   an option has a value that cannot be used
    ├── TreeError          (also ValueError)   a draft tree is not a tree
    ├── UnsupportedError   (also ValueError)   this model, mode or option cannot be accelerated
    └── VersionError       (also ImportError)  a dependency is outside the tested range

    LookaheadWarning       (UserWarning)       a run goes on, but slower; the message says why

A message says what was expected, what came, and what to do.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "LookaheadError",
    "LookaheadWarning",
    "TreeError",
    "UnsupportedError",
    "VersionError",
]


class LookaheadError(Exception):
    """Base of every exception that this package raises on purpose."""


class ConfigError(LookaheadError, ValueError):
    """Raised on construction of a :class:`~lookahead.Config` with a value that cannot be used."""


class TreeError(LookaheadError, ValueError):
    """Raised when tokens and parents do not describe a draft tree."""


class UnsupportedError(LookaheadError, ValueError):
    """Raised instead of running plain when ``strict=True`` was asked for."""


class VersionError(LookaheadError, ImportError):
    """Raised at import when a dependency is outside the range that the tests run on."""


class LookaheadWarning(UserWarning):
    """Given once per reason when a run is not accelerated, or when a drafter had to be dropped."""
