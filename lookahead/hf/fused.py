"""Decoder layers whose small operations run in a few native functions.

Between its matrix products a layer does dozens of small things to a few rows, each of which costs
more to start than to do. They are recorded from the model's own code (:mod:`.recording`), put into
segments (:mod:`.segments`), and compiled aside (:mod:`.libraries`); matrix layers, cache and
attention are called as ever. The first passes run a layer both ways: its own result is used, and
the other must be the same, and faster.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import is_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lookahead.hf import libraries
from lookahead.hf.grouped import attend
from lookahead.hf.layers import ROUNDING_16, ROUNDING_32
from lookahead.hf.libraries import Builder, Library
from lookahead.hf.prepack import quick_call
from lookahead.hf.recording import Count, Program, flat
from lookahead.hf.segments import LayerSource, Segment, layer_source

__all__ = ["FusedLayers", "Written", "is_fused", "ordinary_layers", "tried_seconds"]

#: Rows that a pass with fused layers may have.
MOST_ROWS = 512

#: Passes in which every layer is run both ways, for one row and for several.
NUM_TRIALS = 2

_active: ContextVar[_Use | None] = ContextVar("lookahead_fused", default=None)


class _Use:
    """One call that runs fused layers, and what was found out of what its layers are given."""

    def __init__(
        self, owner: FusedLayers, functions: dict[FusedLayer, Any], *, always: bool
    ) -> None:
        self.owner = owner
        self.functions = functions
        self.always = always
        self.tried_s = 0.0  # spent on running layers the other way, too
        self._given: tuple[Any, ...] = ()
        self._hidden: tuple[torch.Size, torch.dtype] | None = None
        self._rows: int | None = None

    def rows(self, layer: FusedLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Return the rows of a pass, or None if it is not one like those that were recorded.

        All layers of a pass are given the same objects besides hidden states of the same shape;
        so what was found out for one holds for the others.
        """
        given = (*args[1:], *kwargs.values(), layer.written)
        hidden = args[0] if args else None
        if (
            isinstance(hidden, Tensor)
            and len(given) == len(self._given)
            and all(map(is_, given, self._given))
            and self._hidden == (hidden.shape, hidden.dtype)
            and hidden.is_contiguous()
        ):
            return self._rows
        rows = layer.written.rows_of(args, kwargs)
        if isinstance(hidden, Tensor):
            self._given, self._hidden, self._rows = given, (hidden.shape, hidden.dtype), rows
        return rows


class Written:
    """The function of one kind of layers, of which each has its own parts.

    Parameters
    ----------
    program : Program
        What such a layer does.
    """

    def __init__(self, program: Program) -> None:
        self.source: LayerSource = layer_source(program)
        self.code = compile(self.source.source, "<a fused layer>", "exec")
        self._paths = list(program.given)
        self._given = list(program.given.values())

    def rows_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Return the rows of a pass, or None if it is not one like those that were recorded."""
        given = list(flat(args, kwargs))
        paths, values = [path for path, _ in given], [value for _, value in given]
        if paths != self._paths:
            return None
        hidden = values[paths.index(self.source.hidden)]
        if not isinstance(hidden, Tensor) or hidden.ndim != 3:
            return None
        batch, rows, _ = hidden.shape
        counts = {"rows": rows, "batch": batch, "batch * rows": batch * rows}
        fits = all(_fits(v, known, counts) for v, known in zip(values, self._given, strict=True))
        return counts["batch * rows"] if fits and counts["batch * rows"] <= MOST_ROWS else None


class _Trial:
    """What running layers both ways has shown, for one row or for several."""

    def __init__(self, num_layers: int) -> None:
        self._left = NUM_TRIALS * num_layers
        self._own_s = self._fused_s = 0.0

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    @property
    def has_paid(self) -> bool:
        return self._fused_s < self._own_s

    def add(self, own_s: float, fused_s: float) -> None:
        self._left -= 1
        self._own_s += own_s
        self._fused_s += fused_s


class FusedLayer:
    """Stands in for the ``forward`` of one decoder layer during accelerated calls.

    Where no such call is active in the current context and thread, or the layer is given something
    else than it was recorded with, it does what the layer does. A copy that is made of the model in
    the meantime gets the layer's own ``forward``.
    """

    def __init__(
        self,
        module: nn.Module,
        owner: weakref.ref[FusedLayers],
        written: Written,
        cache_layers: Sequence[int],
    ) -> None:
        self.module = module
        self.written = written
        self._owner = owner
        self._plain = type(module).forward
        self._cache_layers = cache_layers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        use = _active.get()
        if use is None or use.owner is not self._owner():
            return self._plain(self.module, *args, **kwargs)
        rows = use.rows(self, args, kwargs)
        trial = None if rows is None else use.owner.trial(rows)
        if trial is None or (trial.is_over and not (trial.has_paid or use.always)):
            return self._plain(self.module, *args, **kwargs)
        if trial.is_over:
            return use.functions[self](*args, **kwargs)
        return self._tried(use, trial, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (self._plain, self.module)

    def bound(self, libraries: Sequence[Library]) -> Callable[..., Any]:
        """Return the layer's function for one call, with its parts as they are now."""
        source = self.written.source
        names: dict[str, Any] = {"torch": torch, "attend": attend}
        names |= {f"segment_{i}": library for i, library in enumerate(libraries)}
        names |= {f"cache_layer_{i}": layer for i, layer in enumerate(self._cache_layers)}
        for name, path in source.weights.items():
            parent, _, leaf = path.rpartition(".")
            names[name] = getattr(self.module.get_submodule(parent), leaf)
        for name, path in source.modules.items():
            names[name] = quick_call(self.module.get_submodule(path))
        exec(self.written.code, names)  # our own text, written from a record
        layer: Callable[..., Any] = names["layer"]
        return layer

    def _tried(
        self,
        use: _Use,
        trial: _Trial,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run both ways; the layer's own comes last, so that the K/V are its own, too."""
        start = time.perf_counter()
        try:
            fused = use.functions[self](*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - another's code, in an order of ours
            use.owner.fault = f"a fused layer raised {type(error).__name__}: {error}"
            return self._plain(self.module, *args, **kwargs)
        middle = time.perf_counter()
        own = self._plain(self.module, *args, **kwargs)
        end = time.perf_counter()
        trial.add(end - middle, middle - start)
        if not _is_same(fused, own):
            use.owner.fault = "a fused layer gives other numbers than the layer itself"
        use.tried_s += (middle - start) + (time.perf_counter() - end)
        return own


class FusedLayers:
    """The decoder layers of one model, with their small operations fused.

    Parameters
    ----------
    layers : sequence of (module, Written, sequence of int)
        Each layer, its kind, and where in the cache it writes.
    folder : Path, optional
        Where libraries are.

    Attributes
    ----------
    fault : str or None
        Why they cannot be used, as half a sentence, as far as it is known.
    """

    def __init__(
        self,
        layers: Sequence[tuple[nn.Module, Written, Sequence[int]]],
        folder: Path | None = None,
    ) -> None:
        self.fault: str | None = None
        self._folder = folder or libraries.default_folder()
        self._builder = Builder(self._folder)
        self._libraries: dict[str, Library] = {}
        me = weakref.ref(self)
        self._layers = [FusedLayer(module, me, written, at) for module, written, at in layers]
        self._lock = threading.Lock()
        self._num_calls = 0
        self._has_asked = False
        self._trials = {few: _Trial(len(self._layers)) for few in (True, False)}

    @property
    def missing(self) -> list[Segment]:
        """Segments whose libraries are not there yet, once each; loads those that are."""
        wanted = {s.key: s for layer in self._layers for s in layer.written.source.segments}
        for key, segment in wanted.items():
            if (
                key not in self._libraries
                and (library := libraries.find(segment, self._folder)) is not None
            ):
                self._libraries[key] = library
        return [segment for key, segment in wanted.items() if key not in self._libraries]

    def trial(self, rows: int) -> _Trial | None:
        """Return what is known of passes with so many rows; None if none is fused."""
        return None if self.fault is not None else self._trials[rows == 1]

    def get_ready(self, *, builds: bool, waits: bool) -> bool:
        """Load the libraries, and have missing ones built; say whether all are there."""
        with self._lock:
            if self.fault is not None or self._builder.is_at_work():
                if self.fault is None and waits:
                    self._builder.wait()
                else:
                    return False
            missing = self.missing
            if missing and builds and not self._has_asked:
                self._has_asked = True
                self._builder.start(missing)
                if waits:
                    self._builder.wait()
                    missing = self.missing
            self.fault = self.fault or self._builder.fault
            return not missing and self.fault is None

    @contextmanager
    def in_use(self, *, always: bool = False) -> Iterator[None]:
        """Run layers with their small operations fused, in this context and thread.

        Parameters
        ----------
        always : bool
            Also where the trial found that they are no faster.
        """
        with self._lock:
            self._num_calls += 1
            functions = {
                layer: layer.bound([self._libraries[s.key] for s in layer.written.source.segments])
                for layer in self._layers
            }
        token = _active.set(_Use(self, functions, always=always))
        try:
            for layer in self._layers:
                layer.module.forward = layer
            yield
        finally:
            _active.reset(token)
            with self._lock:
                self._num_calls -= 1
                if not self._num_calls:
                    self._take_out()

    def _take_out(self) -> None:
        for layer in self._layers:
            if vars(layer.module).get("forward") is layer:
                del layer.module.forward


def is_fused() -> bool:
    """Say whether passes in this context run fused layers."""
    return _active.get() is not None


def tried_seconds() -> float:
    """Return the seconds of trials in this context since they were asked for last."""
    use = _active.get()
    if use is None:
        return 0.0
    seconds, use.tried_s = use.tried_s, 0.0
    return seconds


@contextmanager
def ordinary_layers() -> Iterator[None]:
    """Run the layers as they are, in a part of a block with fused ones: for prompts."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def _fits(value: Any, known: Any, counts: dict[str, int]) -> bool:
    """Say whether a layer is given what it was recorded with."""
    if isinstance(known, tuple):
        shape, dtype = known
        if value is None:  # a mask
            return None in shape
        wanted = [one.times * counts[one.of] if isinstance(one, Count) else one for one in shape]
        return (
            isinstance(value, Tensor)
            and value.dtype is dtype
            and value.ndim == len(shape)
            and all(b in {a, None} for a, b in zip(value.shape, wanted, strict=True))
            and (value.is_contiguous() or None in shape)
        )
    return isinstance(value, known) if isinstance(known, type) else value == known


def _is_same(fused: Any, own: Any) -> bool:
    """Say whether two results are the same up to rounding."""
    if isinstance(own, tuple):
        return isinstance(fused, tuple) and all(map(_is_same, fused, own))
    if not isinstance(own, Tensor):
        return bool(fused == own)
    limit = ROUNDING_32 if own.dtype == torch.float32 else ROUNDING_16
    if fused.shape != own.shape or fused.dtype != own.dtype:
        return False
    right = own.float()
    return bool((fused.float() - right).norm() <= limit * right.norm())
