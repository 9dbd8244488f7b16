"""Calls that run plain: refused or told of, run, and counted."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from lookahead.errors import LookaheadWarning, UnsupportedError
from lookahead.session import Session
from lookahead.stats import DecodeStats

__all__ = ["refuse_or_warn", "timed_plain"]


def timed_plain(
    session: Session,
    reason: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call plainly, and fill in its statistics.

    Parameters
    ----------
    session : Session
        Of the model. Calls that the library makes itself on the way run plain, too.
    reason : str
        Why it runs plain, as half a sentence.
    function : callable
        The library's ``generate``, or a loop of it.
    args, kwargs : tuple, dict
        Of the call.
    """
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


def refuse_or_warn(session: Session, reason: str, strict: bool) -> None:
    """Warn that a call runs plain, once for each reason and model.

    The warning is shown where the caller of this function was called.

    Raises
    ------
    UnsupportedError
        In place of the warning, if ``strict``.
    """
    if strict:
        raise UnsupportedError(
            f"this call cannot be accelerated, because {reason}. Leave strict=True out to let it "
            "run plain."
        )
    if reason not in session.warned:
        session.warned.add(reason)
        warnings.warn(f"generate runs plain, because {reason}.", LookaheadWarning, stacklevel=3)
