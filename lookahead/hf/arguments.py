"""Arguments of ``generate`` on their way through the wrapper around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from transformers import GenerationMixin, StoppingCriteriaList
from transformers.generation.stopping_criteria import StopStringCriteria
from transformers.generation.utils import GENERATION_MODES_MAPPING

from lookahead.errors import UnsupportedError
from lookahead.hf.prepared import Prepared

__all__ = ["by_name", "library_loop", "takes_loop", "with_stop_strings"]


def by_name(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``generate`` by name.

    A wrapper such as an adapter passes on whatever it is given; its arguments are those of the
    library's own ``generate``.

    Raises
    ------
    TypeError
        As the call itself would, if the arguments do not fit.
    """
    signature = inspect.signature(type(model).generate)
    if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        signature = inspect.signature(GenerationMixin.generate)
    call = dict(signature.bind(model, *args, **kwargs).arguments)
    del call["self"]
    call.update(call.pop("kwargs", {}))
    return call


def takes_loop(generate: Callable[..., Any]) -> bool:
    """Say whether a ``generate`` lets a decoding loop be handed in, or hands arguments on."""
    parameters = inspect.signature(generate).parameters
    hands_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return hands_on or "custom_generate" in parameters


def with_stop_strings(criteria: Any, strings: Any, tokenizer: Any) -> Any:
    """Return stopping criteria with one more for strings, as the library would make it."""
    criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)
    return StoppingCriteriaList([criterion, *(criteria or [])])


def library_loop(call: Prepared) -> Callable[..., Any]:
    """Return the library's own loop for a call that it has prepared.

    Raises
    ------
    UnsupportedError
        For modes that need more than what a custom loop is handed.
    """
    mode = call.generation_config.get_generation_mode()
    name = GENERATION_MODES_MAPPING[mode]
    if not hasattr(call.model, name) or mode.value.startswith("assisted"):
        raise UnsupportedError(
            f"custom_generate=lookahead.generate cannot hand {mode.value.replace('_', ' ')} back "
            "to the library; leave custom_generate out of this call."
        )
    loop: Callable[..., Any] = getattr(call.model, name)
    return loop
