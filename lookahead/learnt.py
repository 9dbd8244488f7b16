"""What the calls on one model taught, and what of it outlives the process.

Cost curves and the sums of the least-squares head are loaded when they are first asked for, and
saved by a thread of their own as they grow: nobody waits, and nothing that goes wrong with a file
reaches the caller of ``generate`` as more than a sentence.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from lookahead.cost_curve import CostCurve
from lookahead.errors import LookaheadWarning
from lookahead.memory import Arrays, Memory, MemoryFileError, Stored

__all__ = ["CALIBRATED", "GATHERED", "Identity", "Learnt", "Remember", "Rememberable", "add_up"]

#: Kinds of files: sums that ``lookahead calibrate`` made, and those that processes gathered.
CALIBRATED, GATHERED = "calibrated", "sums"

#: True, False, or only what ``lookahead calibrate`` made, with nothing saved.
Remember: TypeAlias = bool | Literal["calibrated"]

#: What a cost depends on: machine, device, dtype, attention and threads.
CurveKey: TypeAlias = tuple[object, ...]

#: Saved when this much is new: at first, at most, and when the process or the model ends.
FIRST_ROWS, MOST_ROWS, LAST_ROWS = 512, 65_536, 128
FIRST_PASSES, MOST_PASSES, LAST_PASSES = 64, 4096, 16


class Identity(NamedTuple):
    """Which model it is: a fingerprint of its weights, and a name for people."""

    fingerprint: str
    label: str


class Rememberable(Protocol):
    """Sums over positions of text, which add up: over texts, over calls, over processes.

    Every array of a state is such a sum, a count included; so two states of one model, gathered
    apart, are joined by adding them array by array.
    """

    @property
    def rows(self) -> int:
        """Positions that were taken in, those loaded included."""

    def state(self) -> Mapping[str, Tensor]:
        """Return all sums by name, at one moment, in any thread; the caller only reads them."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take the place of an empty object's sums.

        Raises
        ------
        ValueError
            If the state does not fit; the object is as it was then.
        """


def add_up(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], less: Mapping[str, Tensor] | None = None
) -> Arrays | None:
    """Return ``one + other - less``, array by array, or None where they do not fit together."""
    parts = [one, other] if less is None else [one, other, less]
    shapes = [{name: (a.shape, a.dtype) for name, a in part.items()} for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        return None
    added = {name: array + other[name] for name, array in one.items()}
    return added if less is None else {name: a - less[name] for name, a in added.items()}


class _Saved(NamedTuple):
    """What has to be written: a copy of the sums, and curves that go on being measured."""

    sums: Arrays | None
    rows: int
    curves: dict[CurveKey, CostCurve]


class Learnt:
    """Cost curves and sums of one model with one set of weights.

    Parameters
    ----------
    remember : bool or "calibrated"
        False: nothing is read or written. ``"calibrated"``: only what was made by
        ``lookahead calibrate``, and the cost curves, are read, and nothing is written.
    identify : callable
        Returns the :class:`Identity` of the model; called here, and only if files are used.
    memory : Memory, optional
        Where files are.
    """

    def __init__(
        self, remember: Remember, identify: Callable[[], Identity], memory: Memory | None = None
    ) -> None:
        self.sums: Rememberable | None = None
        self._remember: Remember = remember
        self._identity: Identity | None = None
        self._memory = memory or Memory()
        self._lock = threading.RLock()  # closed from a finaliser, too
        self._curves: dict[CurveKey, CostCurve] = {}
        self._tried_passes: dict[CurveKey, int] = {}
        self._saved_passes: dict[CurveKey, int] = {}
        self._since: Arrays | None = None  # what is on disk already of what the sums hold
        self._saved_rows = 0
        self._tried_rows = 0
        self._first_rows = 0
        self._writer: threading.Thread | None = None
        self._told: list[str] = []
        self._untold: list[str] = []
        if remember:
            try:
                self._identity = identify()
            except Exception as error:  # noqa: BLE001 - any model may come, files are a help only
                self._remember = False
                self._tell(
                    f"Nothing is remembered of this model ({type(error).__name__}: {error}); pass "
                    "remember=False to leave it."
                )

    @property
    def fingerprint(self) -> str | None:
        """Under what name files are kept, or None if none are."""
        return self._identity.fingerprint if self._identity and self._remember else None

    def curve(self, key: CurveKey, kind: str) -> CostCurve:
        """Return the cost curve for one machine, device, dtype, attention and thread count."""
        with self._lock:
            if key not in self._curves:
                self._curves[key] = self._stored_curve(key, kind) or CostCurve(kind)
            return self._curves[key]

    def keep(self, sums: Rememberable) -> None:
        """Take new sums into care: filled with what is stored, and saved as they grow."""
        with self._lock:
            self.sums, self._since = sums, None
            stored = self._load(CALIBRATED)
            gathered = self._load(GATHERED) if self._remember is True else None
            if stored is None or gathered is None:
                stored = gathered if stored is None else stored
            else:
                # If a later release sums up something else, the calibrated ones are the better.
                stored = add_up(stored, gathered) or stored
            if stored is not None:
                try:
                    sums.load_state({name: array.clone() for name, array in stored.items()})
                    self._since = stored
                except Exception as error:  # noqa: BLE001 - stored sums are a help and no more
                    self._tell(f"Stored sums do not fit this model and are ignored ({error}).")
            self._saved_rows = self._tried_rows = self._first_rows = sums.rows

    def save_if_due(self) -> None:
        """Have a thread write what is new, if that has grown enough since the last time."""
        with self._lock, self._told_only():
            if self._remember is not True or (self._writer and self._writer.is_alive()):
                return
            saved = self._due(FIRST_ROWS, MOST_ROWS, FIRST_PASSES, MOST_PASSES)
            if saved is None:
                return
            writer = threading.Thread(
                target=self._write, args=(saved,), name="lookahead-memory", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # Python is ending: close() comes next
                writer.start()
                self._writer = writer

    def close(self) -> None:
        """Write what is new, here and now: the process or the model comes to its end."""
        self.wait()
        with self._lock, self._told_only():
            if self._remember is True:
                self._remember = False
                saved = self._due(LAST_ROWS, LAST_ROWS, LAST_PASSES, LAST_PASSES)
                if saved is not None:
                    self._write(saved)

    def discard(self) -> None:
        """Write nothing any more, and wait for what is being written."""
        with self._lock:
            self._remember = False
        self.wait()

    def wait(self) -> None:
        """Wait for the thread that writes, if there is one."""
        writer = self._writer
        if writer is not None and writer is not threading.current_thread():
            writer.join()

    def notes(self) -> list[str]:
        """Return what went wrong with files since the last time this was asked."""
        with self._lock:
            notes, self._untold = self._untold, []
        return notes

    def _due(
        self, first_rows: int, most_rows: int, first_passes: int, most_passes: int
    ) -> _Saved | None:
        """Return a snapshot of what has grown enough, or None if nothing has."""
        state, rows = None, 0
        if self.sums is not None:
            rows = self.sums.rows
            own = self._tried_rows - self._first_rows
            if rows - self._tried_rows >= min(max(first_rows, own), most_rows):
                self._tried_rows = rows
                # A copy, since decoding goes on while it is written.
                state = {k: v.detach().to("cpu", copy=True) for k, v in self.sums.state().items()}
        curves = {}
        for key, curve in self._curves.items():
            tried, measured = self._tried_passes.get(key, 0), curve.measurements
            if measured - tried >= min(max(first_passes, tried), most_passes):
                curves[key] = curve
                self._tried_passes[key] = measured
        return None if state is None and not curves else _Saved(state, rows, curves)

    def _write(self, saved: _Saved) -> None:
        for key, curve in saved.curves.items():
            with self._told_only():
                self._write_curve(key, curve)
        if saved.sums is not None:
            with self._told_only():
                self._write_sums(saved.sums, saved.rows)

    @contextlib.contextmanager
    def _told_only(self) -> Iterator[None]:
        """Turn whatever goes wrong into a sentence: a run that is otherwise sound goes on."""
        try:
            yield
        except MemoryFileError as error:
            self._tell(str(error))
        except Exception as error:  # noqa: BLE001 - sums are another's code, files another's disk
            self._tell(
                f"What was learnt could not be saved ({type(error).__name__}: {error}); pass "
                "remember=False to leave it."
            )

    def _write_sums(self, mine: Arrays, rows: int) -> None:
        assert self._identity is not None
        fingerprint, label = self._identity
        nothing = {name: torch.zeros_like(array) for name, array in mine.items()}
        known = nothing if self._since is None else self._since

        def change(old: Stored | None) -> Stored:
            # Others may have saved in the meantime: what is new here is added to what is there.
            joined = add_up(nothing if old is None else old.arrays, mine, less=known)
            before = _rows(old)
            if joined is None:  # what is there sums up something else, so it is of no use
                joined, before = add_up(nothing, mine, less=known) or mine, 0
            gathered = before + rows - self._saved_rows
            return Stored(joined, {"label": label, "rows": str(gathered)})

        self._memory.update(fingerprint, GATHERED, change)
        with self._lock:
            self._since, self._saved_rows = mine, rows

    def _write_curve(self, key: CurveKey, curve: CostCurve) -> None:
        assert self._identity is not None
        fingerprint, label = self._identity

        def change(old: Stored | None) -> Stored:
            stored = None if old is None else {k: v.numpy() for k, v in old.arrays.items()}
            state = {k: torch.from_numpy(v) for k, v in curve.state(stored).items()}
            rows = str(_rows(old) + curve.measurements - self._saved_passes.get(key, 0))
            return Stored(state, {"label": label, "rows": rows, "for": _words(key)})

        self._memory.update(fingerprint, _curve_kind(key), change)
        self._saved_passes[key] = curve.measurements

    def _stored_curve(self, key: CurveKey, kind: str) -> CostCurve | None:
        stored = self._load(_curve_kind(key))
        if stored is None:
            return None
        try:
            return CostCurve.from_state(kind, {k: v.numpy() for k, v in stored.items()})
        except (ValueError, TypeError) as error:
            self._tell(f"A stored cost curve cannot be used and is measured anew ({error}).")
            return None

    def _load(self, kind: str) -> Arrays | None:
        if self._identity is None or not self._remember:
            return None
        try:
            return self._memory.load(self._identity.fingerprint, kind)
        except MemoryFileError as error:
            self._tell(str(error))
            return None

    def _tell(self, text: str) -> None:
        with self._lock:
            if text in self._told:
                return
            self._told.append(text)
            self._untold.append(text)
        # Where warnings are errors, this one still must not end a run that is otherwise sound.
        with contextlib.suppress(LookaheadWarning):
            warnings.warn(f"{text} The output is not affected.", LookaheadWarning, stacklevel=2)


def _rows(stored: Stored | None) -> int:
    written = "" if stored is None else stored.meta.get("rows", "")
    return int(written) if written.isdecimal() else 0


def _words(key: CurveKey) -> str:
    return ", ".join(map(str, key))


def _curve_kind(key: CurveKey) -> str:
    return f"curve-{hashlib.blake2b(_words(key).encode(), digest_size=6).hexdigest()}"
