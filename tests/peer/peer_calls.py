"""Every call of ``generate`` in this process, accelerated; and, if wanted, compared with plain.

This is the one place that replaces a method of the library for a whole process: its own tests
call ``generate`` on models of their own making, and nothing else can get between the two.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import warnings
from typing import Any

import peer_compare
import torch
import transformers

import lookahead

#: Set while a call is being served: what it calls itself is the library's own business.
_is_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("is_inside", default=False)

#: Asked for in these tests, these options are taken out, so that our engine answers in their place.
MAPPED_TESTS = (
    "test_prompt_lookup_decoding_matches_greedy_search",
    "test_assisted_decoding_matches_greedy_search",
    "test_assisted_decoding_sample",
    "test_speculative_decoding_equals_regular_decoding",
)
MAPPED_OPTIONS = (
    "assistant_model",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)


class Calls:
    """Serves ``generate`` in place of the library, and counts how it went.

    ``compare`` runs each call plainly first, on copies of its arguments, and keeps what differs;
    the accelerated run then gets the plain answer as guesses, some of them made wrong.
    """

    def __init__(self, nodes: int, compare: bool) -> None:
        self.settings: dict[str, Any] = {"nodes": nodes, "remember": False}
        self.compare = compare
        self.test = ""
        self.counts: collections.Counter[str] = collections.Counter()
        self.plain: collections.Counter[str] = collections.Counter()
        self.not_compared: collections.Counter[str] = collections.Counter()
        self.differences: list[dict[str, str]] = []
        self._original = transformers.GenerationMixin.generate

    def install(self) -> None:
        """Take the place of the library's ``generate``."""
        calls, original = self, self._original

        @functools.wraps(original)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_inside.get():
                return original(model, *args, **kwargs)
            token = _is_inside.set(True)
            try:
                return calls.serve(model, args, kwargs)
            finally:
                _is_inside.reset(token)

        transformers.GenerationMixin.generate = generate

    def report(self) -> dict[str, Any]:
        """Return the figures, ready for JSON."""
        return {
            "calls": dict(self.counts),
            "plain": dict(self.plain.most_common()),
            "not_compared": dict(self.not_compared.most_common()),
            "differences": self.differences,
        }

    def serve(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer one call."""
        if any(name in self.test for name in MAPPED_TESTS):
            kept = {n: v for n, v in kwargs.items() if n not in MAPPED_OPTIONS}
            self.counts["mapped to our engine"] += len(kept) < len(kwargs)
            kwargs = kept
        if not self.compare:
            return self._fast(model, args, kwargs)
        try:
            copied = peer_compare.copied(model, (args, kwargs))
        except Exception as error:
            self.not_compared[f"arguments cannot be copied: {type(error).__name__}"] += 1
            return self._fast(model, args, kwargs)
        before = torch.get_rng_state()
        plain = peer_compare.Answer.of(self._original, model, *copied)
        torch.set_rng_state(before)
        oracle = peer_compare.Oracle(plain.ids, model.config.get_text_config(decoder=True))
        fast = peer_compare.Answer.of(
            lambda m, *a, **k: self._fast(m, a, k, drafters=(oracle,)), model, args, kwargs
        )
        for what in peer_compare.differences(plain, fast):
            self._keep_difference(model, kwargs, what)
        if fast.error is not None:
            raise fast.error
        return fast.result

    def _fast(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **settings: Any
    ) -> Any:
        before = lookahead.last_stats(model)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lookahead.LookaheadWarning)
                with lookahead.accelerate(model, **self.settings, **settings):
                    return model.generate(*args, **kwargs)
        finally:
            self._count(lookahead.last_stats(model), before)

    def _count(self, stats: Any, before: Any) -> None:
        if stats is None or stats is before:
            self.counts["raised before decoding"] += 1
        elif stats.accelerated:
            self.counts["accelerated"] += 1
            self.counts["passes"] += stats.passes
            self.counts["nodes verified"] += stats.drafted
            self.counts["nodes accepted"] += stats.accepted
            for note in stats.notes:
                self.plain[f"(note) {note}"] += 1
        else:
            self.counts["plain"] += 1
            self.plain[stats.plain_reason] += 1

    def _keep_difference(self, model: Any, kwargs: dict[str, Any], what: str) -> None:
        stats = lookahead.last_stats(model)
        self.differences.append(
            {
                "test": self.test,
                "model": type(model).__name__,
                "what": what,
                "ran": "accelerated" if stats is not None and stats.accelerated else "plain",
                "arguments": ", ".join(f"{n}={peer_compare.shown(v)}" for n, v in kwargs.items()),
            }
        )
