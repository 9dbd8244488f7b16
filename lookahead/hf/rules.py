"""Logits processors and stopping criteria of a batch, one row at a time.

Plain decoding shows them all rows of a batch in step. Ours decodes each row at its own speed, so
only rules that treat rows apart, and keep nothing from one token to the next, can be used; and
those that say themselves what they are for one row.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    generation,
)

__all__ = ["RowEnd", "of_row", "reason_for_rules"]

#: A rule that has a method of this name says with it what it is for one row of a batch. It cannot
#: be found out from outside: one that treats rows apart in ten calls may join them in the eleventh.
FOR_ROW = "lookahead_row"

#: Criteria that end all rows in the same step.
AT_ONCE = (MaxLengthCriteria, MaxTimeCriteria)

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


def reason_for_rules(processors: Sequence[Any], criteria: Sequence[Any]) -> str | None:
    """Say which rule keeps a batch from being decoded row by row, or return None.

    Parameters
    ----------
    processors, criteria : sequence
        Logits processors and stopping criteria of the call.
    """
    for rule in [*processors, *criteria]:
        if type(rule) not in ROW_WISE and not callable(getattr(rule, FOR_ROW, None)):
            return f"{type(rule).__name__} in a batch may look at several rows at once"
    if any(hasattr(rule, "eos_token_id") for rule in criteria):  # plain decoding asks just this
        return None
    for rule in criteria:
        if isinstance(rule, generation.StopStringCriteria):
            return "without an end token, rows of a batch go on behind their stop strings"
        if not isinstance(rule, AT_ONCE):
            name = type(rule).__name__
            return f"without an end token, rows of a batch go on behind the end that {name} sets"
    return None


class RowEnd:
    """Asks the stopping criteria after each token of one row.

    Parameters
    ----------
    criteria : StoppingCriteriaList
        Of a batch; :func:`reason_for_rules` has nothing against them.
    row, batch : int
        Which row, and of how many.
    """

    def __init__(self, criteria: Any, row: int, batch: int) -> None:
        rules = [_of_row(rule, row, batch) for rule in criteria] if batch > 1 else criteria
        timed = [rule for rule in rules if isinstance(rule, MaxTimeCriteria)]
        others = [rule for rule in rules if not isinstance(rule, MaxTimeCriteria)]
        self._time, self._others = StoppingCriteriaList(timed), StoppingCriteriaList(others)
        self.in_time = False  # True when nothing but a limit of time has ended the row

    def __call__(self, ids: Tensor, scores: tuple[Tensor, ...] | None) -> bool:
        """Say whether the row ends; ``ids``, int64, [1, tokens], and what was kept of scores."""
        ended = bool(self._others(ids, scores).all())
        out_of_time = bool(self._time(ids, scores).all())
        self.in_time = out_of_time and not ended
        return ended or out_of_time


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
    if callable(own := getattr(processor, FOR_ROW, None)):
        return own(row, batch)
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
