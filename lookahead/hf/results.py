"""The result that the library's own loop returns for a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import (
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)

from lookahead.hf.cache import SlotCache
from lookahead.hf.encoder_decoder import whole_cache
from lookahead.hf.outputs import StepOutputs
from lookahead.hf.prepared import Prepared, ends_in_time, keeps_cache
from lookahead.hf.rules import RowEnd
from lookahead.sequence import Sequence
from lookahead.stats import DecodeStats

__all__ = ["result_of"]


def result_of(
    call: Prepared,
    sequences: list[Sequence],
    cache: SlotCache,
    given: Any,
    stats: DecodeStats,
    outputs: StepOutputs | None,
) -> Any:
    """Return what the library's own loop returns.

    Parameters
    ----------
    call : Prepared
        What was asked for.
    sequences : list of Sequence
        Finished; as long as one another where the cache outlives the call.
    cache : SlotCache
        Handed back in ``given`` if it outlives the call, and of no use from then on.
    given : Cache
        What the library or the caller prepared.
    stats : DecodeStats
        Becomes an attribute of a dictionary-like result.
    outputs : StepOutputs or None
        Hidden states and attentions, where they are wanted.

    Returns
    -------
    Tensor, int64, [batch, tokens], or GenerateDecoderOnlyOutput or GenerateEncoderDecoderOutput
    """
    returned = whole_cache(cache.give_back(), given) if keeps_cache(call, given) else None
    rows = [s.seen.ids for s in sequences]
    if len(rows) > 1 and ends_in_time(call):
        rows = _until_the_same_step(rows, [_ran_out_of_time(s) for s in sequences])
    ids = _join(rows, call.generation_config._pad_token_tensor)
    if not call.generation_config.return_dict_in_generate:
        return ids
    two = call.model.config.is_encoder_decoder
    result = (GenerateEncoderDecoderOutput if two else GenerateDecoderOnlyOutput)(
        sequences=ids,
        **(_of_encoder(call) if two else {}),
        scores=_stack([s.scores for s in sequences]),
        logits=_stack([s.logits for s in sequences]),
        **({} if outputs is None else outputs.joined()),
        **{call.cache_name: returned},
    )
    result.lookahead_stats = stats
    return result


def _of_encoder(call: Prepared) -> dict[str, Any]:
    """Return what the encoder said besides, as the library had it before decoding began."""
    settings, said = call.generation_config, call.model_kwargs["encoder_outputs"]
    return {
        "encoder_attentions": said.get("attentions") if settings.output_attentions else None,
        "encoder_hidden_states": (
            said.get("hidden_states") if settings.output_hidden_states else None
        ),
    }


def _stack(rows: list[list[Tensor] | None]) -> tuple[Tensor, ...] | None:
    """Join what every row has for each token, [1, vocab], to [batch, vocab]."""
    lists = [row for row in rows if row is not None]
    if not lists:
        return None
    if len(lists) == 1:
        return tuple(lists[0])
    return tuple(torch.cat(step) for step in zip(*lists, strict=True))


def _ran_out_of_time(sequence: Sequence) -> bool:
    return isinstance(sequence.should_stop, RowEnd) and sequence.should_stop.in_time


def _until_the_same_step(rows: list[Tensor], timed: list[bool]) -> list[Tensor]:
    """Cut rows of a batch where the first one ended that nothing but time had ended.

    A limit of time ends all rows of plain decoding in the same step.
    """
    lengths = [row.shape[1] for row, ended in zip(rows, timed, strict=True) if ended]
    return [row[:, : min(lengths)] for row in rows] if lengths else rows


def _join(rows: list[Tensor], pad: Tensor | None) -> Tensor:
    """Stack rows of different lengths, filled up with the padding token as plain does."""
    longest = max(row.shape[1] for row in rows)
    if all(row.shape[1] == longest for row in rows):
        return torch.cat(rows)
    assert pad is not None  # rows end apart only through an end token, which needs padding
    joined = rows[0].new_full((len(rows), longest), int(pad))
    for i, row in enumerate(rows):
        joined[i, : row.shape[1]] = row[0]
    return joined
