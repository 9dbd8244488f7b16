"""The decoding loop of ``generate``, with everything around it left to the library.

The library validates arguments, merges configurations, builds cache, processors and criteria, and
calls a function in place of its own loop. What it drops on that way (streamer, tokenizer) the
caller of :func:`decode` hands over in :class:`Extras`.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, StoppingCriteriaList
from transformers.generation.stopping_criteria import StopStringCriteria
from transformers.generation.utils import GENERATION_MODES_MAPPING, GenerateDecoderOnlyOutput

from lookahead.budget import Budget, CostCurve
from lookahead.choose import NodeChooser
from lookahead.config import Config
from lookahead.drafters.window_choice import most_window_rows
from lookahead.engine import Engine
from lookahead.errors import UnsupportedError
from lookahead.hf.adapters import reason_for_adapter
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_argument, device_of, is_compiled
from lookahead.hf.drafting import exit_fault, layer_split, merged_drafter
from lookahead.hf.fingerprint import identify, weights_key
from lookahead.hf.layers import precision, reason_for_layers
from lookahead.hf.masks import install
from lookahead.hf.parallel import in_step, ranks_of, reason_for_ranks, share
from lookahead.hf.selftest import find_fault, verdict_key
from lookahead.hf.support import reason_for_call, reason_for_model
from lookahead.hf.target import HFTarget
from lookahead.learnt import Learnt
from lookahead.machine import machine_name
from lookahead.sequence import Sequence, TokenBuffer, TreeDrafter
from lookahead.session import Session
from lookahead.stats import DecodeStats

__all__ = [
    "Extras",
    "Prepared",
    "by_name",
    "decode",
    "library_loop",
    "prepare",
    "with_stop_strings",
]


@dataclass(frozen=True)
class Extras:
    """What the library does not hand on to a custom loop."""

    streamer: Any = None


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


def prepare(call: Prepared, config: Config, session: Session, extras: Extras) -> SlotCache:
    """Make the cache for an accelerated run, or refuse it.

    Raises
    ------
    UnsupportedError
        With the reason, as half a sentence, why the call has to run plain.
    """
    cache = call.model_kwargs.get(call.cache_name)
    rules = [*call.logits_processor, *call.stopping_criteria]
    reason = reason_for_model(call.model) or reason_for_call(
        call.model, call.generation_config, call.model_kwargs, cache, call.batch, rules
    )
    if reason is None and extras.streamer is not None and call.batch > 1:
        reason = "a streamer of a batch gets all rows in step"
    reason = reason or reason_for_ranks(call.model) or reason_for_adapter(call.model)
    if reason is not None:
        raise UnsupportedError(reason)
    install()
    slots = SlotCache(cache, call.batch, _slot_limit(call, config))
    if fault := _verdict(call.model, session):
        raise UnsupportedError(fault)
    return slots


def decode(
    call: Prepared,
    cache: SlotCache,
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
    Tensor, int64, [batch, tokens], or GenerateDecoderOnlyOutput
        What the library's own loop returns for the same call.
    """
    start = time.perf_counter()
    given = call.model_kwargs[call.cache_name]
    call.model_kwargs[call.cache_name] = cache
    if extras.streamer is not None:
        extras.streamer.put(call.input_ids.cpu())
    contexts = _contexts(call)
    stats.rows = call.batch
    stats.prompt_tokens = sum(map(len, contexts))
    ranks = ranks_of(call.model)
    config = in_step(config, ranks, stats)
    learnt = session.learnt(
        config.remember, weights_key(call.model), functools.partial(identify, call.model)
    )
    split = layer_split(call.model, config, call.batch, stats)
    target = HFTarget(
        call.model,
        call.input_ids,
        contexts,
        call.generation_config,
        call.model_kwargs,
        cache,
        call.cache_name,
        split,
        exit_fault(call.model, session, split),
    )
    curve = _curve(call.model, learnt)
    sequences = []
    for slot, context in enumerate(contexts):
        make = functools.partial(
            merged_drafter, call.model, config, session, learnt, target, slot, split, curve, stats
        )
        drafter = share(ranks, config.draft_budget, make)
        sequences.append(_sequence(call, slot, context, drafter, extras))
    ready = getattr(call.model, "_optimize_model_for_decode", nullcontext)
    with ready():
        Engine(target, Budget(config, curve), config, stats).run(sequences)
    if extras.streamer is not None:
        extras.streamer.end()
    stats.seconds = time.perf_counter() - start
    learnt.save_if_due()
    for note in learnt.notes():
        stats.note(note)
    if stats.steps:
        rows = 1 + round(stats.nodes_per_pass + stats.window_rows_per_pass)
        stats.break_even = float(curve.relative(rows)[-1])
        stats.is_fixed = config.nodes != "auto"
    return _result(call, sequences, cache, given, stats)


def _sequence(
    call: Prepared,
    slot: int,
    context: list[int],
    drafter: TreeDrafter,
    extras: Extras,
) -> Sequence:
    settings = call.generation_config
    returns = settings.return_dict_in_generate
    scores: list[Tensor] | None = [] if returns and settings.output_scores else None
    logits: list[Tensor] | None = [] if returns and settings.output_logits else None
    chooser = NodeChooser(
        call.logits_processor if len(call.logits_processor) else None,
        sample=settings.do_sample,
        temperature=settings.temperature or 1.0,
        scores=scores,
        logits=logits,
    )
    criteria = call.stopping_criteria

    def should_stop(ids: Tensor, so_far: tuple[Tensor, ...] | None) -> bool:
        return bool(criteria(ids, so_far).all())

    return Sequence(
        slot=slot,
        context=context,
        seen=TokenBuffer(call.input_ids[slot : slot + 1]),
        drafter=drafter,
        chooser=chooser,
        should_stop=should_stop,
        max_length=_max_length(call),
        max_positions=_max_positions(call),
        emit=_emitter(extras.streamer),
        scores=scores,
        logits=logits,
    )


def _emitter(streamer: Any) -> Callable[[int], None] | None:
    if streamer is None:
        return None

    def emit(token: int) -> None:
        streamer.put(torch.tensor([token]))

    return emit


def _contexts(call: Prepared) -> list[list[int]]:
    """Return the prompt of every row without its padding."""
    mask = call.model_kwargs.get("attention_mask")
    rows: list[list[int]] = call.input_ids.tolist()
    if mask is None:
        return rows
    live = mask.tolist()
    # A mask longer than the ids also covers what a cache that was passed in holds.
    return [
        [t for t, m in zip(ids, keep[len(keep) - len(ids) :], strict=True) if m]
        for ids, keep in zip(rows, live, strict=True)
    ]


def _max_length(call: Prepared) -> int | None:
    """Length of what the library calls input_ids at which the run ends or positions run out."""
    bound: int | None = call.stopping_criteria.max_length
    room = _max_positions(call)
    if bound is None or room is None:
        return room if bound is None else bound
    return min(bound, room)


def _max_positions(call: Prepared) -> int | None:
    """Length of what the library calls input_ids at which positions run out."""
    text = call.model.config.get_text_config(decoder=True)
    positions = getattr(text, "max_position_embeddings", None)
    if positions is None:
        return None
    # Where the prompt came as embeddings or in a cache, ids are fewer than positions.
    last = int(call.model_kwargs["position_ids"][..., -1].max())
    return int(positions - (last + 1) + call.input_ids.shape[1])


def _slot_limit(call: Prepared, config: Config) -> int | None:
    """Return the most slots that the cache can need, tree and window included."""
    bound = call.stopping_criteria.max_length
    if bound is None:
        return None
    prompt = int(call.model_kwargs["position_ids"].shape[-1])
    rows = config.draft_budget + most_window_rows(config.window)
    return int(bound - call.input_ids.shape[1] + prompt + rows)


def _verdict(model: Any, session: Session) -> str | None:
    """Return the self-test's verdict on a model, tested once for layers of these kinds."""
    key = verdict_key(model)
    if key not in session.verdicts:
        session.verdicts[key] = reason_for_layers(model) or find_fault(model)
    return session.verdicts[key]


def _curve(model: Any, learnt: Learnt) -> CostCurve:
    device, dtype = device_of(model), precision(model)
    half = dtype in (torch.bfloat16, torch.float16)
    kind = ("cpu-16bit" if half else "cpu") if device.type == "cpu" else "other"
    text = model.config.get_text_config(decoder=True)
    key = (
        machine_name(device),
        str(device),
        str(dtype),
        text._attn_implementation,
        f"{torch.get_num_threads()} threads",
        *(["compiled"] if is_compiled(model) else []),
    )
    return learnt.curve(key, kind)


def _result(
    call: Prepared, sequences: list[Sequence], cache: SlotCache, given: Any, stats: DecodeStats
) -> Any:
    wants_cache = call.generation_config.return_dict_in_generate or getattr(
        given, "_is_user_defined", False
    )
    returned = cache.give_back() if wants_cache else None
    ids = _join([s.seen.ids for s in sequences], call.generation_config._pad_token_tensor)
    if not call.generation_config.return_dict_in_generate:
        return ids
    one = sequences[0]
    result = GenerateDecoderOnlyOutput(
        sequences=ids,
        scores=None if one.scores is None else tuple(one.scores),
        logits=None if one.logits is None else tuple(one.logits),
        **{call.cache_name: returned},
    )
    result.lookahead_stats = stats
    return result


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
