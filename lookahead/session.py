"""What a model object remembers between calls: how good guesses were, and what passes cost.

Counts, times and sums only; no text of a prompt or an answer outlives its call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from lookahead.drafters.exits import ExitChooser
from lookahead.drafters.window_choice import WindowChooser
from lookahead.learnt import Identity, Learnt, Remember
from lookahead.stats import DecodeStats
from ngram_pool import Calibration

__all__ = ["Applied", "Session"]

#: Sets of weights, such as those with one adapter or another, whose learning is kept at a time.
MAX_LEARNT = 4


class Applied(NamedTuple):
    """A wrapper in force, and its handle: gone once nobody can end its block any more."""

    wrapper: Any
    handle: weakref.ref[Any]
    bits: str | None = None  # the form of the weights under it, its own or that of those before it


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
        #: What passes can verify, by what that depends on.
        self.shapes: dict[tuple[object, ...], object] = {}
        #: The copies of :mod:`lookahead.hf.prepack`, once they were made.
        self.prepacked: Any = None
        #: The layers of :mod:`lookahead.hf.fused`, with what they were made for.
        self.fused: Any = None
        #: The layers of :mod:`lookahead.hf.quantised` that are in place, if they can be undone.
        self.quantised: Any = None
        #: Spent in accelerated calls.
        self.seconds = 0.0
        self.last: DecodeStats | None = None
        #: Threads in which the library's own loop runs; calls that it makes itself run plain, too.
        self.plain_in: set[int] = set()
        self._learnt: dict[Hashable, Learnt] = {}  # used last comes last
        self._at_end: dict[Hashable, weakref.finalize[..., Any]] = {}
        self.forget()

    def __reduce__(self) -> tuple[type[Session], tuple[()]]:
        return Session, ()

    def forget(self) -> None:
        """Drop what was learnt, unsaved; files and the verdict of the self-test stay."""
        with self.lock:
            self.calibration = Calibration()
            self.window_chooser = WindowChooser()
            self.exit_choosers: dict[int | str, ExitChooser] = {}
            learnt, self._learnt = self._learnt, {}
            at_end, self._at_end = self._at_end, {}
        for finalizer in at_end.values():
            finalizer.detach()
        for one in learnt.values():
            one.discard()

    def learnt(
        self, remember: Remember, weights: Hashable, identify: Callable[[], Identity]
    ) -> Learnt:
        """Return what was learnt with these weights.

        What is gathered in calls with one value of ``remember`` is never mixed with that of
        another: a call that must leave no trace leaves none through a later call either.

        Parameters
        ----------
        remember : bool or "calibrated"
            The setting of the call.
        weights : hashable
            Changes when another adapter is switched on, or the model is trained.
        identify : callable
            Returns the identity of the model with these weights.
        """
        key = (remember, weights)
        with self.lock:
            found = self._learnt.pop(key, None)
            if found is None:
                found = Learnt(remember, identify)
                # At the end of this object's life or of the process, whichever comes first.
                self._at_end[key] = weakref.finalize(self, found.close)
            self._learnt[key] = found
            old = list(self._learnt)[: max(0, len(self._learnt) - MAX_LEARNT)]
            for k in old:
                del self._learnt[k]
            finalizers = [self._at_end.pop(k) for k in old]
        for finalizer in finalizers:
            finalizer()
        return found

    def drop_replaced(self) -> None:
        """Forget wrappers that a later one has replaced for good.

        One whose handle is gone was applied in place; of these only the newest can come back.
        """
        with self.lock:
            in_place = [one for one in self.applied if one.handle() is None]
            for one in in_place[:-1]:
                self.applied.remove(one)
