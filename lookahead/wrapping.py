"""Ways to switch it on, and off again: in place, in a block, or around a function.

A model is changed by attributes on that one object, and put back. What a call then does is told in
:mod:`lookahead.calls`.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, overload

import torch

import ngram_pool
from lookahead.calls import SESSION, AcceleratedGenerate, session_of
from lookahead.config import Config
from lookahead.errors import ConfigError
from lookahead.hf.compat import check_version
from lookahead.hf.fingerprint import identify
from lookahead.hf.quantised import quantise
from lookahead.memory import Memory
from lookahead.session import Applied, Session
from lookahead.stats import DecodeStats

__all__ = ["Handle", "accelerate", "accelerated", "forget", "last_stats", "quantize", "restore"]

P = ParamSpec("P")
R = TypeVar("R")


class Handle:
    """What :func:`accelerate` returns: the model's settings, and a block to use it in.

    As a context manager it puts back what was before the call that made it. What was learnt, and
    the statistics of the last run, stay with the model until :func:`restore`.
    """

    def __init__(self, model: Any, wrapper: AcceleratedGenerate) -> None:
        self.model = model
        self.config = wrapper.config
        self._wrapper = wrapper

    def __enter__(self) -> Any:
        """Return the accelerated model."""
        return self.model

    def __exit__(self, *_: object) -> None:
        """Put back what was before, whatever happened in the block."""
        session = session_of(self.model)
        with session.lock:
            session.applied = [a for a in session.applied if a.wrapper is not self._wrapper]
            _put_back(self.model, session.applied)
            _quantise(self.model, session, session.applied[-1].bits if session.applied else None)


def accelerate(model: Any, **settings: Any) -> Handle:
    """Make every later ``model.generate(...)`` faster, with the same output.

    Parameters
    ----------
    model : PreTrainedModel or PeftModel
        Any causal language model of transformers. Gets two attributes and nothing else; what
        cannot be accelerated runs plain, with one warning that names the reason.
    **settings
        Fields of :class:`~lookahead.Config`. Applying again changes the settings.

    Returns
    -------
    Handle
        Usable as a context manager, which restores at its end.

    Raises
    ------
    ConfigError
        If a setting has a value that cannot be used, or the object is no generating model.
    UnsupportedError
        With ``strict=True``, later, in place of a plain run.
    VersionError
        If the installed transformers is outside the tested range.

    Examples
    --------
    >>> lookahead.accelerate(model)                      # doctest: +SKIP
    >>> with lookahead.accelerate(model): ...            # doctest: +SKIP
    """
    config = _config(settings)
    check_version()
    _check_model(model)
    model = _unwrapped(model)
    ngram_pool.warm_up()
    wrapper = AcceleratedGenerate(model, config)
    session = session_of(model)
    handle = Handle(model, wrapper)
    with session.lock:
        if config.quantize is not None:
            _quantise(model, session, config.quantize)
        current = vars(model).get("generate")
        if not session.applied and isinstance(current, AcceleratedGenerate):
            # A copy of a model brings its wrapper along, and nobody has a handle on that.
            session.applied.append(Applied(current, weakref.ref(Handle(model, current))))
        replaced = weakref.WeakMethod(session.drop_replaced)
        ref = weakref.ref(handle, lambda _: (drop := replaced()) and drop())
        bits = None if session.quantised is None else session.quantised.kind
        session.applied.append(Applied(wrapper, ref, bits))
        model.generate = wrapper
    return handle


def restore(model: Any) -> None:
    """Give a model its own ``generate`` back, and forget what was learnt; harmless if plain."""
    _check_model(model)
    model = _unwrapped(model)
    _put_back(model, [])
    session = vars(model).pop(SESSION, None)
    if session is not None:
        _quantise(model, session, None)


def quantize(model: Any, kind: str) -> None:
    """Quantise the weights of a model's decoder layers for good, and let go of what they were.

    ``accelerate(model, quantize=kind)`` can be undone, and keeps the weights for that.

    Parameters
    ----------
    model : PreTrainedModel or PeftModel
        Changed in place: it takes less memory, and what it generates is that of the quantised
        model, accelerated or not.
    kind : str
        ``"int8"``: a scale for each output; ``"int4"``: a scale and an offset for every 32 inputs.

    Raises
    ------
    ConfigError
        If there is nothing that could be quantised; nothing is changed then.
    """
    _config({"quantize": kind})
    _check_model(model)
    model = _unwrapped(model)
    if kind is None:
        raise ConfigError('quantize takes "int8" or "int4" here; to undo it, restore the model.')
    session = vars(model).get(SESSION)
    if session is None:
        quantise(model, kind)
        return
    with session.lock:
        _quantise(model, session, kind)
        session.quantised = None


def _quantise(model: Any, session: Session, kind: str | None) -> None:
    """Bring the layers of a model into a form, from that in which they are."""
    before = session.quantised
    if (before.kind if before is not None else None) == kind:
        return
    if before is not None:
        before.undo()
        session.quantised = None
    if kind is not None:
        try:
            session.quantised = quantise(model, kind)
        except ConfigError:
            if before is not None:
                session.quantised = quantise(model, before.kind)
            raise


def _put_back(model: Any, applied: list[Applied]) -> None:
    current = vars(model).get("generate")
    if applied:
        model.generate = applied[-1].wrapper
    elif isinstance(current, AcceleratedGenerate):
        if current.replaced is None:
            del model.generate
        else:
            model.generate = current.replaced


@overload
def accelerated(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def accelerated(**settings: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def accelerated(function: Any = None, /, **settings: Any) -> Any:
    """Accelerate, during a function's calls, every model that it is given as an argument.

    Parameters
    ----------
    function : callable
        Calls ``generate`` on a model among its arguments, ``self.model`` of its first argument
        included. A coroutine or a generator accelerates it from its first step to its last.
    **settings
        Fields of :class:`~lookahead.Config`, as ``@accelerated(nodes=8)``.

    Examples
    --------
    >>> @lookahead.accelerated                           # doctest: +SKIP
    ... def answer(model, ids):
    ...     return model.generate(ids, max_new_tokens=200)
    """
    config = _config(settings)  # a bad setting is reported where it is written
    if function is None:
        return functools.partial(_decorate, config=config)
    return _decorate(function, config)


def _decorate(function: Any, config: Config) -> Any:
    if not callable(function) or isinstance(function, (type, torch.nn.Module)):
        raise ConfigError(
            "the decorator accelerated stands above a function that is given a model; it was put "
            f"on {function if isinstance(function, type) else type(function).__name__}. For a "
            "model itself, call lookahead.accelerate(model)."
        )
    within = functools.partial(_accelerating, function, config)

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with within(args, kwargs):
            return await function(*args, **kwargs)

    async def async_generator(*args: Any, **kwargs: Any) -> Any:
        with within(args, kwargs):
            async for value in function(*args, **kwargs):
                yield value

    def generator(*args: Any, **kwargs: Any) -> Any:
        with within(args, kwargs):
            return (yield from function(*args, **kwargs))

    def plain_function(*args: Any, **kwargs: Any) -> Any:
        with within(args, kwargs):
            return function(*args, **kwargs)

    # What runs later than its function is called computes inside the block as well.
    kinds: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
        (inspect.iscoroutinefunction, coroutine),
        (inspect.isasyncgenfunction, async_generator),
        (inspect.isgeneratorfunction, generator),
    )
    wrapper = next((made for is_such, made in kinds if is_such(function)), plain_function)
    return functools.wraps(function)(wrapper)


@contextmanager
def _accelerating(
    function: Callable[..., Any], config: Config, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """Accelerate the models among a function's arguments, in this block."""
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    values = [*args, *kwargs.values()]
    values += [vars(v)["model"] for v in args[:1] if "model" in getattr(v, "__dict__", {})]
    models = [value for value in values if _is_model(value)]
    if not models:
        raise ConfigError(
            f"{getattr(function, '__name__', function)!r} was given no model: the decorator "
            "accelerates a model among the function's arguments. Pass the model in, or call "
            "lookahead.accelerate(model) once."
        )
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(accelerate(model, **fields))
        yield


def last_stats(model: Any) -> DecodeStats | None:
    """Return the statistics of the last ``generate`` on this model, or None before the first."""
    _check_model(model)
    model = _unwrapped(model)
    session = vars(model).get(SESSION)
    return None if session is None else session.last


def forget(model: Any, *, stored: bool = False) -> None:
    """Drop what the model's earlier calls taught: calibration, cost curve, sums of the head.

    Parameters
    ----------
    model : PreTrainedModel or PeftModel
        Stays accelerated.
    stored : bool
        Remove the model's files from the user's cache, too, those of ``lookahead calibrate``
        included; else the next call begins with them, as a new process does.

    Raises
    ------
    LookaheadError
        If files cannot be removed; the message says why.
    """
    _check_model(model)
    model = _unwrapped(model)
    session = vars(model).get(SESSION)
    if session is not None:
        session.forget()
    if stored:
        Memory().clear(identify(model).fingerprint)


def _config(settings: dict[str, Any]) -> Config:
    known = Config.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise ConfigError(f"there is no setting {name!r}; the settings are {', '.join(known)}.")
    return replace(Config(), **settings)


#: What a model of the library has beside ``generate``, and a module around one often has not.
PARTS = ("generate", "config", "device", "prepare_inputs_for_generation")


def _is_model(value: object) -> bool:
    if not isinstance(value, torch.nn.Module) or not all(hasattr(value, p) for p in PARTS):
        return False
    return callable(value.generate)


def _unwrapped(model: Any) -> Any:
    """Return the model inside of what ``torch.compile(model)`` made: its ``generate`` is called."""
    return vars(model).get("_modules", {}).get("_orig_mod", model)


def _check_model(model: object) -> None:
    if not _is_model(model):
        name, missing = type(model).__name__, [p for p in PARTS if not hasattr(model, p)]
        lacks = (
            f", which has no {missing[0]}" if isinstance(model, torch.nn.Module) and missing else ""
        )
        raise ConfigError(
            f"this needs a model of transformers that has generate; it was given {name}{lacks}."
        )
