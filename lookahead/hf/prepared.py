"""A call of ``generate`` as the library has prepared it for a decoding loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from transformers import MaxTimeCriteria

from lookahead.config import Config
from lookahead.drafters.window_choice import most_window_rows
from lookahead.hf.chain import MOST_AGAIN
from lookahead.hf.compat import cache_argument
from lookahead.hf.prompts import prompt_mask, prompt_positions
from lookahead.hf.ropes import furthest_guess

__all__ = ["Prepared", "ends_in_time", "keeps_cache"]


@dataclass(frozen=True)
class Prepared:
    """A call as the library prepared it for a decoding loop."""

    model: Any
    input_ids: Tensor
    logits_processor: Any
    stopping_criteria: Any
    generation_config: Any
    model_kwargs: dict[str, Any]

    @property
    def batch(self) -> int:
        """Rows after expansion."""
        return int(self.input_ids.shape[0])

    @property
    def cache_name(self) -> str:
        """The name under which the model's forward takes its cache."""
        return cache_argument(self.model)

    @cached_property
    def positions(self) -> Tensor:
        """Positions of the prompt, int64, [..., batch or 1, tokens]."""
        return prompt_positions(
            self.model, self.input_ids, self.generation_config, self.model_kwargs
        )

    @property
    def bound(self) -> int | None:
        """Length of what the library calls input_ids at which the run ends, whatever the model.

        The library compares with what it was given, be it a tensor or infinite.
        """
        given = self.stopping_criteria.max_length
        if given is None or math.isinf(given):
            return None
        return math.ceil(given if isinstance(given, int) else float(given))

    @property
    def num_new(self) -> int | None:
        """Most tokens that the call can add."""
        return None if self.bound is None else self.bound - self.input_ids.shape[1]

    @property
    def contexts(self) -> list[list[int]]:
        """Return the prompt of every row without its padding."""
        mask = prompt_mask(self.model, self.model_kwargs)
        rows: list[list[int]] = self.input_ids.tolist()
        if mask is None:
            return rows
        live = mask.tolist()
        # A mask longer than the ids also covers what a cache that was passed in holds.
        return [
            [t for t, m in zip(ids, keep[len(keep) - len(ids) :], strict=True) if m]
            for ids, keep in zip(rows, live, strict=True)
        ]

    @cached_property
    def max_length(self) -> int | None:
        """Length of what the library calls input_ids at which the run ends or positions run out."""
        limits = [limit for limit in (self.bound, self.max_positions) if limit is not None]
        return min(limits, default=None)

    @cached_property
    def max_positions(self) -> int | None:
        """Length of what the library calls input_ids at which positions run out."""
        text = self.model.config.get_text_config(decoder=True)
        positions = self.positions
        limits = [
            getattr(text, "max_position_embeddings", None),
            getattr(text, "max_target_positions", None),  # Whisper's
            getattr(text, "max_decoder_position_embeddings", None),  # LED's
            furthest_guess(text, positions),
        ]
        known = [limit for limit in limits if limit is not None]
        if not known:
            return None
        # Where the prompt came as embeddings or in a cache, ids are fewer than positions.
        last = int(positions[..., -1].max())
        return int(min(known) - (last + 1) + self.input_ids.shape[1])

    def slot_limit(self, config: Config) -> int | None:
        """Return the most slots that the cache can need, tree and window included."""
        if self.num_new is None:
            return None
        prompt = int(self.positions.shape[-1])
        return (
            prompt
            + self.num_new
            + config.draft_budget
            + most_window_rows(config.window)
            + MOST_AGAIN
        )


def keeps_cache(call: Prepared, given: Any) -> bool:
    """Say whether the cache outlives the call."""
    returned = call.generation_config.return_dict_in_generate
    return bool(returned or getattr(given, "_is_user_defined", False))


def ends_in_time(call: Prepared) -> bool:
    """Say whether a limit of time may end the call."""
    return any(isinstance(rule, MaxTimeCriteria) for rule in call.stopping_criteria)
