"""Ways to switch it on: in place, in a block, around a function, or for one call.

A model is changed by attributes on that one object, and put back. The wrapper calls the library's
own ``generate`` with our loop; whatever the loop cannot do runs through the original, untouched.
"""

from __future__ import annotations

import copy
import functools
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, overload

import torch

import ngram_pool
from lookahead.config import Config
from lookahead.errors import ConfigError, LookaheadWarning, UnsupportedError
from lookahead.hf.arguments import by_name, library_loop, with_stop_strings
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import check_version, drop_empty_cache, mark_given_cache
from lookahead.hf.fingerprint import identify
from lookahead.hf.generate import Extras, decode, prepare
from lookahead.hf.prepared import Prepared
from lookahead.hf.shape import Shape
from lookahead.memory import Memory
from lookahead.session import Applied, Session
from lookahead.stats import DecodeStats

__all__ = [
    "AcceleratedGenerate",
    "Handle",
    "accelerate",
    "accelerated",
    "forget",
    "generate",
    "last_stats",
    "restore",
]

SESSION = "_lookahead_session"
P = ParamSpec("P")
R = TypeVar("R")

#: Arguments with which a caller asks for another way of decoding.
OTHER_WAYS = ("custom_generate", "assistant_model", "synced_gpus")


class _RunPlain(Exception):  # noqa: N818 - carries a decision, not an error
    """Carries a reason out of the library's ``generate``, past nothing that catches it."""


class AcceleratedGenerate:
    """Stands in for the ``generate`` of one model object.

    Copies and pickles with its model. ``__wrapped__`` is the original.
    """

    def __init__(self, model: Any, config: Config) -> None:
        self._model = model
        self.config = config
        # A function that somebody set on the object is kept and put back; else the class's is used.
        current = vars(model).get("generate")
        self.replaced: Callable[..., Any] | None = (
            current.replaced if isinstance(current, AcceleratedGenerate) else current
        )
        functools.update_wrapper(self, type(model).generate)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._model, self.config, self.replaced)

    @property
    def original(self) -> Callable[..., Any]:
        """The library's ``generate``, or what stood in its place, bound to the model."""
        if self.replaced is not None:
            return self.replaced
        bound: Callable[..., Any] = type(self._model).generate.__get__(self._model)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as the model's own ``generate`` does; same arguments, same result."""
        if getattr(kwargs.get("custom_generate"), "is_lookahead", False):
            return self.original(*args, **kwargs)  # another wrapper of ours stands around this one
        session = _session(self._model)
        if threading.get_ident() in session.plain_in:
            return self.original(*args, **kwargs)  # part of a call that runs plain
        try:
            return self._accelerated(session, args, kwargs)
        except _RunPlain as plain:
            reason = str(plain)
        _refuse_or_warn(session, reason, self.config.strict)
        return _timed_plain(session, reason, self.original, args, kwargs)

    def _accelerated(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = by_name(self._model, args, kwargs)
        if call.get("custom_generate") is generate:
            del call["custom_generate"]
        for name in OTHER_WAYS:
            if call.get(name) not in (None, False):
                raise _RunPlain(f"{name} asks for another way of decoding")
        if call.get("cache_implementation") == "paged":
            raise _RunPlain("a paged cache asks for continuous batching")
        self._resolve_stop_strings(call)
        if _setting(self._model, call, "token_healing"):
            raise _RunPlain("token_healing rewrites the prompt")
        mark_given_cache(self._model, call)
        extras = Extras(streamer=call.pop("streamer", None))
        call.pop("tokenizer", None)

        def loop(
            model: Any,
            input_ids: Any,
            logits_processor: Any,
            stopping_criteria: Any,
            generation_config: Any,
            **model_kwargs: Any,
        ) -> Any:
            prepared = Prepared(
                model,
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                model_kwargs,
            )
            return _decode(prepared, self.config, session, extras, _RunPlain)

        loop.is_lookahead = True  # type: ignore[attr-defined]
        try:
            return self.original(**call, custom_generate=loop)
        except ValueError as error:
            # A generate with a loop of its own (MusicGen) refuses the argument before it begins.
            if "['custom_generate']" not in str(error):
                raise
        raise _RunPlain(f"{type(self._model).__name__} has a generate of its own")

    def _resolve_stop_strings(self, call: dict[str, Any]) -> None:
        """Turn stop strings into a criterion here: the library would look for the tokenizer."""
        strings = _setting(self._model, call, "stop_strings")
        if strings is None:
            return
        tokenizer = call.get("tokenizer")
        if tokenizer is None:
            raise _RunPlain("stop_strings came without a tokenizer")
        given = call.get("stopping_criteria")
        call["stopping_criteria"] = with_stop_strings(given, strings, tokenizer)
        call.pop("stop_strings", None)
        if call.get("generation_config") is not None:
            call["generation_config"] = copy.deepcopy(call["generation_config"])
            call["generation_config"].stop_strings = None
        if self._model.generation_config.stop_strings is not None:
            call["stop_strings"] = None


def _rebuild(model: Any, config: Config, replaced: Any) -> AcceleratedGenerate:
    wrapper = AcceleratedGenerate(model, config)
    wrapper.replaced = replaced
    return wrapper


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
        session = _session(self.model)
        with session.lock:
            session.applied = [a for a in session.applied if a.wrapper is not self._wrapper]
            _put_back(self.model, session.applied)


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
    session = _session(model)
    handle = Handle(model, wrapper)
    with session.lock:
        current = vars(model).get("generate")
        if not session.applied and isinstance(current, AcceleratedGenerate):
            # A copy of a model brings its wrapper along, and nobody has a handle on that.
            session.applied.append(Applied(current, weakref.ref(Handle(model, current))))
        replaced = weakref.WeakMethod(session.drop_replaced)
        ref = weakref.ref(handle, lambda _: (drop := replaced()) and drop())
        session.applied.append(Applied(wrapper, ref))
        model.generate = wrapper
    return handle


def restore(model: Any) -> None:
    """Give a model its own ``generate`` back, and forget what was learnt; harmless if plain."""
    _check_model(model)
    model = _unwrapped(model)
    _put_back(model, [])
    vars(model).pop(SESSION, None)


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
        included.
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


def _decorate(function: Callable[P, R], config: Config) -> Callable[P, R]:
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
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
            return function(*args, **kwargs)

    return wrapper


def generate(
    model: Any,
    input_ids: Any,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode one call: ``model.generate(ids, custom_generate=lookahead.generate)``.

    Called by the library with everything prepared. On this way the library drops ``streamer``,
    ``tokenizer`` (so ``stop_strings`` raises) and ``assistant_model``; use :func:`accelerate`
    where they are needed.

    Returns
    -------
    Tensor or GenerateDecoderOnlyOutput
        As ``generate`` without ``custom_generate``.

    Raises
    ------
    ConfigError
        If it is called directly.
    """
    if generation_config is None or logits_processor is None or stopping_criteria is None:
        raise ConfigError(
            "lookahead.generate is called by the library, with everything prepared: write "
            "model.generate(ids, custom_generate=lookahead.generate)."
        )
    check_version()
    ngram_pool.warm_up()
    session = _session(model)
    mark_given_cache(model, model_kwargs)  # whose it is cannot be told here
    call = Prepared(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        model_kwargs,
    )
    try:
        return _decode(call, Config(), session, Extras(), _RunPlain)
    except _RunPlain as plain:
        reason = str(plain)
    _refuse_or_warn(session, reason, strict=False)
    loop = library_loop(call)
    kwargs = {
        "logits_processor": logits_processor,
        "stopping_criteria": stopping_criteria,
        "generation_config": generation_config,
        **model_kwargs,
    }
    return _timed_plain(session, reason, loop, (input_ids,), kwargs)


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


def _decode(
    call: Prepared, config: Config, session: Session, extras: Extras, refuse: type[Exception]
) -> Any:
    with _tensors_here():
        try:
            cache, shape = _prepared_or_refused(call, config, session, extras, refuse)
            stats = DecodeStats()
            session.last = stats
            return decode(call, cache, shape, config, session, stats, extras)
        finally:
            drop_empty_cache(call.model)


def _prepared_or_refused(
    call: Prepared, config: Config, session: Session, extras: Extras, refuse: type[Exception]
) -> tuple[SlotCache, Shape]:
    try:
        return prepare(call, config, session, extras)
    except UnsupportedError as error:
        raise refuse(str(error)) from None


def _tensors_here() -> AbstractContextManager[Any]:
    """Make tensors of ours in main memory, whatever default device the caller has set."""
    here = torch.device("cpu")
    return nullcontext() if torch.get_default_device() == here else here


def _timed_plain(
    session: Session,
    reason: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    stats = DecodeStats(accelerated=False, plain_reason=reason)
    session.last = stats
    start = time.perf_counter()
    # A loop of the caller's own may call generate for its own ends; the library's loops do it for
    # drafts and the like.
    thread = threading.get_ident() if kwargs.get("custom_generate") is None else None
    if thread is not None:
        session.plain_in.add(thread)
    try:
        result = function(*args, **kwargs)
    finally:
        session.plain_in.discard(-1 if thread is None else thread)
    stats.seconds = time.perf_counter() - start
    ids = result if isinstance(result, torch.Tensor) else getattr(result, "sequences", None)
    if isinstance(ids, torch.Tensor) and ids.ndim == 2:
        stats.rows = int(ids.shape[0])
        prompt = _prompt_length(function, args, kwargs)
        stats.prompt_tokens = stats.rows * prompt
        stats.new_tokens = stats.rows * (int(ids.shape[1]) - prompt)
        stats.passes = max(0, int(ids.shape[1]) - prompt - 1)
    return result


def _prompt_length(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many tokens of a result were there before, for the statistics of a plain run."""
    config = getattr(getattr(function, "__self__", None), "config", None)
    if getattr(config, "is_encoder_decoder", False):
        given, unknown = kwargs.get("decoder_input_ids"), 1  # the token that a decoder starts with
    else:
        given, unknown = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids")), 0
    if isinstance(given, torch.Tensor) and given.ndim == 2:
        return int(given.shape[-1])
    return unknown


def _refuse_or_warn(session: Session, reason: str, strict: bool) -> None:
    if strict:
        raise UnsupportedError(
            f"this call cannot be accelerated, because {reason}. Leave strict=True out to let it "
            "run plain."
        )
    if reason not in session.warned:
        session.warned.add(reason)
        warnings.warn(f"generate runs plain, because {reason}.", LookaheadWarning, stacklevel=3)


def _setting(model: Any, call: dict[str, Any], name: str) -> Any:
    """Return a generation option as the library will resolve it."""
    if name in call:
        return call[name]
    value = getattr(call.get("generation_config"), name, None)
    return getattr(model.generation_config, name, None) if value is None else value


def _session(model: Any) -> Session:
    session = vars(model).get(SESSION)
    if session is None:
        session = Session()
        setattr(model, SESSION, session)
    found: Session = session
    return found


def _config(settings: dict[str, Any]) -> Config:
    known = Config.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise ConfigError(f"there is no setting {name!r}; the settings are {', '.join(known)}.")
    return replace(Config(), **settings)


def _is_model(value: object) -> bool:
    return isinstance(value, torch.nn.Module) and callable(getattr(value, "generate", None))


def _unwrapped(model: Any) -> Any:
    """Return the model inside of what ``torch.compile(model)`` made: its ``generate`` is called."""
    return vars(model).get("_modules", {}).get("_orig_mod", model)


def _check_model(model: object) -> None:
    if not _is_model(model):
        raise ConfigError(
            f"this needs a model of transformers that has generate; it was given "
            f"{type(model).__name__}."
        )
