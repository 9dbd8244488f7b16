"""What a model object remembers between calls: how good guesses were, and what passes cost.

Counts and times only; no text of a prompt or an answer outlives its call.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

from lookahead.budget import CostCurve
from lookahead.drafters.window_choice import WindowChooser
from lookahead.stats import DecodeStats
from ngram_pool import Calibration

__all__ = ["Applied", "Session"]


class Applied(NamedTuple):
    """A wrapper in force, and its handle: gone once nobody can end its block any more."""

    wrapper: Any
    handle: weakref.ref[Any]


class Session:
    """State of one accelerated model, shared by all its calls and threads.

    A copy or an unpickled session starts empty: what was measured belongs to one model object in
    one process.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # let go of from a finaliser, too
        #: What was applied and may still have to be put back, newest last.
        self.applied: list[Applied] = []
        self.warned: set[str] = set()
        self.verdicts: dict[tuple[object, ...], str | None] = {}
        self.last: DecodeStats | None = None
        self.forget()

    def __reduce__(self) -> tuple[type[Session], tuple[()]]:
        return Session, ()

    def forget(self) -> None:
        """Drop calibration, costs and what windows earned; the verdict of the self-test stays."""
        with self.lock:
            self.calibration = Calibration()
            self.window_chooser = WindowChooser()
            self._curves: dict[tuple[object, ...], CostCurve] = {}

    def drop_replaced(self) -> None:
        """Forget wrappers that a later one has replaced for good.

        One whose handle is gone was applied in place; of these only the newest can come back.
        """
        with self.lock:
            in_place = [one for one in self.applied if one.handle() is None]
            for one in in_place[:-1]:
                self.applied.remove(one)

    def curve(self, key: tuple[object, ...], kind: str) -> CostCurve:
        """Return the cost curve for one device, dtype, attention and thread count."""
        with self.lock:
            return self._curves.setdefault(key, CostCurve(kind))

    def curves(self) -> dict[tuple[object, ...], CostCurve]:
        """Return all cost curves measured so far."""
        with self.lock:
            return dict(self._curves)
