"""The decoding loop of ``generate``, with everything around it left to the library.

The library validates arguments, merges configurations, builds cache, processors and criteria, and
calls a function in place of its own loop. What it drops on that way (streamer, tokenizer) the
caller of :func:`decode` hands over in :class:`Extras`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lookahead.budget import Budget
from lookahead.choose import NodeChooser
from lookahead.config import Config
from lookahead.engine import Engine
from lookahead.errors import UnsupportedError
from lookahead.hf.adapters import reason_for_adapter
from lookahead.hf.cache import SlotCache
from lookahead.hf.chain import ChainTarget
from lookahead.hf.costs import cost_curve
from lookahead.hf.drafting import exit_fault, layer_split, merged_drafter
from lookahead.hf.encoder_decoder import self_attention_part, whole_cache
from lookahead.hf.fingerprint import identify, weights_key
from lookahead.hf.in_step import BatchStream, fill_up
from lookahead.hf.masks import install
from lookahead.hf.outputs import StepOutputs, layer_types, wanted_outputs
from lookahead.hf.outputs_check import find_outputs_fault
from lookahead.hf.parallel import in_step, ranks_of, reason_for_ranks, share
from lookahead.hf.prepack import saved_by_prepacking
from lookahead.hf.prepared import Prepared, keeps_cache
from lookahead.hf.results import result_of
from lookahead.hf.rules import RowEnd, of_row
from lookahead.hf.selftest import verdict_key
from lookahead.hf.shape import Shape, reason_for_shape, shape_of
from lookahead.hf.support import (
    reason_for_cache,
    reason_for_call,
    reason_for_model,
    reason_for_time,
)
from lookahead.hf.target import HFTarget
from lookahead.noise import Draws
from lookahead.sequence import Sequence, TokenBuffer, TreeDrafter
from lookahead.session import Session
from lookahead.stats import DecodeStats

__all__ = ["Extras", "decode", "prepare"]

#: Of the share of time that prepacking saves in the matrices: what drafting may lose in trying.
SPARE = 0.3


@dataclass(frozen=True)
class Extras:
    """What the library does not hand on to a custom loop."""

    streamer: Any = None


def prepare(
    call: Prepared, config: Config, session: Session, extras: Extras
) -> tuple[SlotCache, Shape]:
    """Make the cache for an accelerated run and say what its passes verify, or refuse it.

    Raises
    ------
    UnsupportedError
        With the reason, as half a sentence, why the call has to run plain.
    """
    cache = call.model_kwargs.get(call.cache_name)
    reason = reason_for_model(call.model) or reason_for_call(call, cache)
    shows = extras.streamer is not None
    reason = reason or reason_for_cache(call, cache) or reason_for_time(call, cache, shows)
    reason = reason or reason_for_ranks(call.model) or reason_for_adapter(call.model)
    if reason is not None:
        raise UnsupportedError(reason)
    install()
    slots = SlotCache(self_attention_part(cache), call.batch, call.slot_limit(config))
    fields = wanted_outputs(call.model, call.generation_config)
    shape = shape_of(call.model, session)
    reason = reason_for_shape(call, shape, slots, fields)
    if reason is None and fields and shape.name == "tree":
        reason = _outputs_verdict(call.model, session, fields)
    if reason is not None:
        raise UnsupportedError(reason)
    return slots, shape


def decode(
    call: Prepared,
    cache: SlotCache,
    shape: Shape,
    config: Config,
    session: Session,
    stats: DecodeStats,
    extras: Extras,
) -> Any:
    """Decode like the library's own loop, several tokens a pass.

    Parameters
    ----------
    call : Prepared
        Its cache argument is replaced by ``cache``.
    cache : SlotCache
        From :func:`prepare`.
    shape : Shape
        The same.
    config : Config
        Settings of the model, or of this call.
    session : Session
        What the model remembers between calls.
    stats : DecodeStats
        Filled.
    extras : Extras
        What the library did not hand on.

    Returns
    -------
    Tensor, int64, [batch, tokens], or GenerateDecoderOnlyOutput or GenerateEncoderDecoderOutput
        What the library's own loop returns for the same call.
    """
    start = time.perf_counter()
    given = call.model_kwargs[call.cache_name]
    call.model_kwargs[call.cache_name] = whole_cache(cache, given)
    if extras.streamer is not None:
        extras.streamer.put(call.input_ids.cpu())
    contexts = call.contexts
    stats.rows = call.batch
    stats.prompt_tokens = sum(map(len, contexts))
    ranks = ranks_of(call.model)
    config = in_step(config, ranks, stats)
    learnt = session.learnt(
        config.remember, weights_key(call.model), functools.partial(identify, call.model)
    )
    outputs = _outputs(call, cache)
    stats.shape = shape.name
    if shape.name == "chain":
        config = _one_branch(config, stats, str(shape.reason))
    split = layer_split(call.model, config, call.batch, stats, whole_passes=outputs is not None)
    target = _target_kind(shape)(
        call.model,
        call.input_ids,
        contexts,
        call.generation_config,
        call.model_kwargs,
        cache,
        call.cache_name,
        split,
        exit_fault(call.model, session, split),
        outputs,
        lets_go=not keeps_cache(call, given) and not call.model.config.is_encoder_decoder,
    )
    curve = cost_curve(call.model, learnt)
    draws = _draws(call)
    stream = None
    if extras.streamer is not None and call.batch > 1:
        stream = BatchStream(extras.streamer, call.generation_config._pad_token_tensor)
    sequences = []
    for slot, context in enumerate(contexts):
        make = functools.partial(
            merged_drafter,
            call.model,
            config,
            session,
            learnt,
            target,
            slot,
            split,
            curve,
            stats,
            alone=call.batch == 1,
        )
        drafter = share(ranks, config.draft_budget, make)
        emit = _emitter(extras, stream, slot)
        sequences.append(_sequence(call, slot, context, drafter, draws, emit))
    if stream is not None:
        stream.watch(sequences)
    ready = getattr(call.model, "_optimize_model_for_decode", nullcontext)
    with ready():
        # Processes that share a model would cut trees by times of their own.
        budget = Budget(
            config,
            curve,
            is_chain=shape.name == "chain",
            shares=call.batch > 1 and ranks is None,
            spare=saved_by_prepacking() * SPARE,
        )
        Engine(target, budget, config, stats).run(sequences)
        if keeps_cache(call, given):
            target.settle()
            pad = call.generation_config._pad_token_tensor
            stats.passes += fill_up(target, sequences, pad)
    _end(extras, stream)
    stats.seconds = time.perf_counter() - start
    learnt.save_if_due()
    for note in learnt.notes():
        stats.note(note)
    if stats.steps:
        rows = 1 + round(stats.nodes_per_pass + stats.window_rows_per_pass)
        stats.break_even = float(curve.relative(rows)[-1])
        stats.is_fixed = config.nodes != "auto"
    return result_of(call, sequences, cache, given, stats, outputs)


def _sequence(
    call: Prepared,
    slot: int,
    context: list[int],
    drafter: TreeDrafter,
    draws: Draws | None,
    emit: Callable[[int], None] | None,
) -> Sequence:
    settings = call.generation_config
    returns = settings.return_dict_in_generate
    scores: list[Tensor] | None = [] if returns and settings.output_scores else None
    logits: list[Tensor] | None = [] if returns and settings.output_logits else None
    processors = of_row(call.logits_processor, slot, call.batch)
    chooser = NodeChooser(
        processors if len(processors) else None,
        sample=settings.do_sample,
        draws=draws,
        row=slot,
        scores=scores,
        logits=logits,
    )
    return Sequence(
        slot=slot,
        context=context,
        seen=TokenBuffer(call.input_ids[slot : slot + 1]),
        drafter=drafter,
        chooser=chooser,
        should_stop=RowEnd(call.stopping_criteria, slot, call.batch),
        max_length=call.max_length,
        max_positions=call.max_positions,
        emit=emit,
        scores=scores,
        logits=logits,
    )


def _draws(call: Prepared) -> Draws | None:
    """Return the draws of a call; None where there are none, or they cannot be foretold."""
    settings, device = call.generation_config, call.input_ids.device
    if not settings.do_sample or not Draws.are_known(device):
        return None
    return Draws(device, call.batch, settings.temperature or 1.0)


def _emitter(extras: Extras, stream: BatchStream | None, slot: int) -> Callable[[int], None] | None:
    if stream is not None:
        return stream.emitter(slot)
    if extras.streamer is None:
        return None

    def emit(token: int) -> None:
        extras.streamer.put(torch.tensor([token]))

    return emit


def _end(extras: Extras, stream: BatchStream | None) -> None:
    if stream is not None:
        stream.watch(())  # rows and stream know each other, and hold what the passes computed
    if extras.streamer is not None:
        extras.streamer.end()


def _target_kind(shape: Shape) -> Callable[..., HFTarget]:
    if shape.name == "tree":
        return HFTarget
    return functools.partial(ChainTarget, takes_mask=shape.takes_mask)


def _one_branch(config: Config, stats: DecodeStats, reason: str) -> Config:
    """Leave out what needs a tree; a note says why."""
    left = [name for name in ("exit",) if name in config.sources]
    left += ["window"] if config.window is not None else []
    stats.note(f"one branch is drafted, because {reason}")
    if left:
        stats.note(f"off, because they need a tree: {', '.join(left)}")
    sources = tuple(name for name in config.sources if name != "exit")
    return replace(config, sources=sources, window=None)


def _outputs_verdict(model: Any, session: Session, fields: tuple[str, ...]) -> str | None:
    """Return the verdict on what is cut out of a tree pass, asked once."""
    key = ("outputs", fields, *verdict_key(model))
    if key not in session.verdicts:
        session.verdicts[key] = find_outputs_fault(model, fields)
    return session.verdicts[key]


def _outputs(call: Prepared, cache: SlotCache) -> StepOutputs | None:
    fields = wanted_outputs(call.model, call.generation_config)
    if not fields:
        return None
    return StepOutputs(fields, cache, call.batch, layer_types(call.model))
