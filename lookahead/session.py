"""What a model object remembers between calls: how good guesses were, and what passes cost.

Counts and times only; no text of a prompt or an answer outlives its call.
"""

from __future__ import annotations

import threading
from typing import Any

from lookahead.budget import CostCurve
from lookahead.stats import DecodeStats
from ngram_pool import Calibration

__all__ = ["Session"]


class Session:
    """State of one accelerated model, shared by all its calls and threads.

    A copy or an unpickled session starts empty: what was measured belongs to one model object in
    one process.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: Wrappers in force, newest last; blocks in several threads may end in any order.
        self.applied: list[Any] = []
        self.warned: set[str] = set()
        self.verdicts: dict[tuple[object, ...], str | None] = {}
        self.last: DecodeStats | None = None
        self.forget()

    def __reduce__(self) -> tuple[type[Session], tuple[()]]:
        return Session, ()

    def forget(self) -> None:
        """Drop calibration and cost curves; the verdict of the self-test stays."""
        with self.lock:
            self.calibration = Calibration()
            self._curves: dict[tuple[object, ...], CostCurve] = {}

    def curve(self, key: tuple[object, ...], kind: str) -> CostCurve:
        """Return the cost curve for one device, dtype, attention and thread count."""
        with self.lock:
            return self._curves.setdefault(key, CostCurve(kind))

    def curves(self) -> dict[tuple[object, ...], CostCurve]:
        """Return all cost curves measured so far."""
        with self.lock:
            return dict(self._curves)
