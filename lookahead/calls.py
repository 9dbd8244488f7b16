"""One call of ``generate``: accelerated, or run plain with the reason.

The wrapper that stands in a model's place calls the library's own ``generate`` with our loop;
whatever the loop cannot do runs through the original, untouched.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

import ngram_pool
from lookahead.config import Config
from lookahead.errors import ConfigError, UnsupportedError
from lookahead.hf.arguments import by_name, library_loop, takes_loop, with_stop_strings
from lookahead.hf.compat import check_version, device_of, drop_empty_cache, mark_given_cache
from lookahead.hf.fusing import fused_layers
from lookahead.hf.generate import Extras, decode, prepare
from lookahead.hf.prepack import prepacked_weights
from lookahead.hf.prepared import Prepared
from lookahead.hf.random_numbers import random_states, set_random_states
from lookahead.plain import refuse_or_warn, timed_plain
from lookahead.session import Session
from lookahead.stats import DecodeStats

__all__ = ["SESSION", "AcceleratedGenerate", "generate", "session_of"]

#: Attribute of a model object that holds what it remembers.
SESSION = "_lookahead_session"

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
        session = session_of(self._model)
        if threading.get_ident() in session.plain_in:
            return self.original(*args, **kwargs)  # part of a call that runs plain
        device = device_of(self._model)
        states = random_states(device)
        try:
            return self._accelerated(session, args, kwargs)
        except _RunPlain as plain:
            reason = str(plain)
        set_random_states(device, states)  # an encoder may have run, and draw random numbers
        refuse_or_warn(session, reason, self.config.strict)
        return timed_plain(session, reason, self.original, args, kwargs)

    def _accelerated(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not takes_loop(self.original):
            raise _RunPlain(f"{type(self._model).__name__} has a generate of its own")
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
            return _decode(prepared, self.config, session, extras)

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
    session = session_of(model)
    mark_given_cache(model, model_kwargs)  # whose it is cannot be told here
    call = Prepared(
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
    )
    try:
        return _decode(call, Config(), session, Extras())
    except _RunPlain as plain:
        reason = str(plain)
    refuse_or_warn(session, reason, strict=False)
    loop = library_loop(call)
    kwargs = {
        "logits_processor": logits_processor,
        "stopping_criteria": stopping_criteria,
        "generation_config": generation_config,
        **model_kwargs,
    }
    return timed_plain(session, reason, loop, (input_ids,), kwargs)


def _decode(call: Prepared, config: Config, session: Session, extras: Extras) -> Any:
    with _tensors_here(), ExitStack() as stack:
        stack.callback(drop_empty_cache, call.model)
        try:
            cache, shape = prepare(call, config, session, extras)
        except UnsupportedError as error:
            raise _RunPlain(str(error)) from None
        stats = DecodeStats()
        session.last = stats
        stack.enter_context(prepacked_weights(call.model, config, session, stats))
        if shape.name == "tree":
            stack.enter_context(fused_layers(call.model, config, session, stats))
        result = decode(call, cache, shape, config, session, stats, extras)
        session.seconds += stats.seconds
        return result


def _tensors_here() -> AbstractContextManager[Any]:
    """Make tensors of ours in main memory, whatever default device the caller has set."""
    here = torch.device("cpu")
    return nullcontext() if torch.get_default_device() == here else here


def _setting(model: Any, call: dict[str, Any], name: str) -> Any:
    """Return a generation option as the library will resolve it."""
    if name in call:
        return call[name]
    value = getattr(call.get("generation_config"), name, None)
    return getattr(model.generation_config, name, None) if value is None else value


def session_of(model: Any) -> Session:
    """Return what a model object remembers between calls; begun if there is nothing yet."""
    session = vars(model).get(SESSION)
    if session is None:
        session = Session()
        setattr(model, SESSION, session)
    found: Session = session
    return found
