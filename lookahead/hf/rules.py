"""Logits processors and stopping criteria of a batch, one row at a time.

Plain decoding shows them all rows of a batch in step. Ours decodes each row at its own speed, so
only rules that treat rows apart, and keep nothing from one token to the next, can be used.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from transformers import LogitsProcessorList, generation

__all__ = ["of_row", "reason_for_rules"]

#: Rules that look at one row of a batch at a time and keep nothing in between. Anything else could
#: tell a batch decoded row by row from one decoded in step.
ROW_WISE = tuple(
    getattr(generation, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TopHLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "RepetitionPenaltyLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "ExponentialDecayLengthPenalty",
        "SequenceBiasLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "PrefixConstrainedLogitsProcessor",
        "WatermarkLogitsProcessor",
        "MaxLengthCriteria",
        "MaxTimeCriteria",
        "EosTokenCriteria",
        "StopStringCriteria",
    )
    if hasattr(generation, name)
)


def reason_for_rules(rules: Iterable[Any]) -> str | None:
    """Say which rule keeps a batch from being decoded row by row, or return None."""
    for rule in rules:
        if type(rule) not in ROW_WISE:
            return f"{type(rule).__name__} in a batch may look at several rows at once"
    return None


def of_row(processors: Any, row: int) -> Any:
    """Return the processors of a batch as they treat one of its rows.

    Parameters
    ----------
    processors : LogitsProcessorList
        Of a batch; :func:`reason_for_rules` has nothing against them.
    row : int
        Which one.

    Returns
    -------
    LogitsProcessorList
        To be called with ids and scores of this row alone, [1, ...] each.
    """
    return LogitsProcessorList([_of_row(processor, row) for processor in processors])


def _of_row(processor: Any, row: int) -> Any:
    padding = getattr(processor, "prompt_ignore_length", None)
    if isinstance(padding, Tensor):
        mine = copy.copy(processor)
        mine.prompt_ignore_length = padding[row : row + 1]
        return mine
    if isinstance(processor, generation.PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        mine = copy.copy(processor)
        mine._prefix_allowed_tokens_fn = lambda _, ids: allowed(row, ids)
        return mine
    return processor
