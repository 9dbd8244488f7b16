"""Logits processors and stopping criteria of a batch, one row at a time.

Plain decoding shows them all rows of a batch in step. Ours decodes each row at its own speed, so
only rules that treat rows apart, and keep nothing from one token to the next, can be used.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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
        "EncoderRepetitionPenaltyLogitsProcessor",
        "EncoderNoRepeatNGramLogitsProcessor",
        "MaxLengthCriteria",
        "MaxTimeCriteria",
        "EosTokenCriteria",
        "StopStringCriteria",
    )
    if hasattr(generation, name)
)


#: Processors that hold something for every row of a batch, and where.
BY_ROW = {
    generation.RepetitionPenaltyLogitsProcessor: "prompt_ignore_length",
    generation.EncoderRepetitionPenaltyLogitsProcessor: "encoder_input_ids",
    generation.EncoderNoRepeatNGramLogitsProcessor: "generated_ngrams",
}


def reason_for_rules(rules: Sequence[Any]) -> str | None:
    """Say which rule keeps a batch from being decoded row by row, or return None."""
    has_end = any(hasattr(rule, "eos_token_id") for rule in rules)
    for rule in rules:
        if type(rule) not in ROW_WISE:
            return f"{type(rule).__name__} in a batch may look at several rows at once"
        if isinstance(rule, generation.StopStringCriteria) and not has_end:
            return "without an end token, rows of a batch go on behind their stop strings"
    return None


def of_row(processors: Any, row: int, batch: int) -> Any:
    """Return the processors of a batch as they treat one of its rows.

    Parameters
    ----------
    processors : LogitsProcessorList
        Of a batch; :func:`reason_for_rules` has nothing against them.
    row, batch : int
        Which row, and of how many.

    Returns
    -------
    LogitsProcessorList
        To be called with ids and scores of this row alone, [1, ...] each.
    """
    if batch == 1:
        return processors
    return LogitsProcessorList([_of_row(processor, row, batch) for processor in processors])


def _of_row(processor: Any, row: int, batch: int) -> Any:
    if isinstance(processor, generation.PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        mine = copy.copy(processor)
        mine._prefix_allowed_tokens_fn = lambda _, ids: allowed(row, ids)
        return mine
    name = BY_ROW.get(type(processor))
    rows = None if name is None else getattr(processor, name)
    if name is None or not isinstance(rows, (Tensor, list)):
        return processor
    place = row * len(rows) // batch  # several answers to one prompt stand together
    mine = copy.copy(processor)
    setattr(mine, name, rows[place : place + 1])
    if hasattr(mine, "batch_size"):
        mine.batch_size = 1
    return mine
