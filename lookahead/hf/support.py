"""What can be accelerated, and the reason for what cannot.

Every check answers with half a sentence that fits behind "runs plain, because"; an answer of None
lets the run through. A model that passes all of them is still asked by the self-test.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import StaticCache, generation
from transformers.generation.configuration_utils import GenerationMode

from lookahead.hf.kinds import room_of
from lookahead.hf.masks import SUPPORTED
from lookahead.hf.outputs import wanted_outputs
from lookahead.hf.results import Prepared, ends_in_time, keeps_cache

__all__ = ["reason_for_cache", "reason_for_call", "reason_for_model", "reason_for_time"]

#: Ropes whose angles depend on how long the text is, so that a row of a tree is not what one
#: step would compute.
LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")

#: Processors and criteria that look at one row of a batch at a time and keep nothing in between.
#: Anything else could tell a batch decoded row by row from one decoded in step.
ROW_WISE = tuple(
    getattr(generation, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
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
        "SequenceBiasLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "TopHLogitsWarper",
        "LogitNormalization",
        "ExponentialDecayLengthPenalty",
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


def reason_for_model(model: Any) -> str | None:
    """Say why a model runs plain whatever it is asked, or None."""
    config = model.config
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        return "encoder-decoder models are not supported yet"
    if model.training:
        return "the model is in training mode; call model.eval() first"
    if model._is_stateful:
        return f"{type(model).__name__} keeps a recurrent state, which cannot be taken back"
    if text._attn_implementation not in SUPPORTED:
        return (
            f"attention implementation {text._attn_implementation!r} takes no tree mask; load "
            "the model with attn_implementation='sdpa' or 'eager'"
        )
    if rope := _length_dependent_rope(text):
        return f"rope type {rope!r} depends on the length of the text"
    if "local" in getattr(text, "attention_layers", ()):
        return f"{type(model).__name__} cuts its local windows by slot, in code of its own"
    if model.get_output_embeddings() is None:
        return f"{type(model).__name__} has no output layer"
    return None


def reason_for_call(
    model: Any,
    generation_config: Any,
    model_kwargs: dict[str, Any],
    cache: Any,
    batch: int,
    rules: Iterable[Any],
) -> str | None:
    """Say why this call runs plain, or None.

    Parameters
    ----------
    model : PreTrainedModel
        Has passed :func:`reason_for_model`.
    generation_config, model_kwargs
        As the library prepared them.
    cache : Cache or None
        The cache that the library prepared or the caller passed in.
    batch : int
        Rows after expansion.
    rules : iterable
        All logits processors and stopping criteria of the call.
    """
    mode = generation_config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        return f"{mode.value.replace('_', ' ')} is not greedy search or sampling"
    if model_kwargs.get("attention_mask") is not None and _padding_shows(generation_config, cache):
        return "what is computed for padding depends on the size of the cache"
    if cache is None or model_kwargs.get("use_cache") is False:
        return "it was called with use_cache=False, and a tree needs a cache"
    positions = model_kwargs.get("position_ids")
    if positions is None or positions.ndim != 2:
        return f"{type(model).__name__} takes no plain position ids"
    if positions.shape[-1] == 0:
        return "the prompt is empty"
    if model_kwargs.get("mm_encoder_outputs") is not None:
        return "prompts with images or sound are not supported yet"
    if batch > 1:
        return _reason_for_batch(generation_config, list(rules))
    return None


def reason_for_cache(call: Prepared, cache: Any) -> str | None:
    """Say what about the cache of this call lets it run plain, or None."""
    room = room_of(cache)
    if room is None:
        return None
    if call.model._valid_auto_compile_criteria(call.model_kwargs, call.generation_config):
        return "generate compiles single-token passes for this cache here"
    bound = call.stopping_criteria.max_length
    prompt = int(call.model_kwargs["position_ids"].shape[-1])
    if bound is None or bound - call.input_ids.shape[1] + prompt - 1 > room:
        return "the static cache may be too small for the whole answer"
    return None


def reason_for_time(call: Prepared, cache: Any, streams: bool) -> str | None:
    """Say why a limit of time lets this call run plain, or None.

    Parameters
    ----------
    call : Prepared
        Has passed :func:`reason_for_call`.
    cache : Cache
        Of this call.
    streams : bool
        Whether there is a streamer.
    """
    shows = streams or keeps_cache(call, cache)
    if call.batch > 1 and shows and ends_in_time(call):
        return "max_time ends all rows of a batch in the same step"
    return None


def _reason_for_batch(generation_config: Any, rules: list[Any]) -> str | None:
    if generation_config.do_sample:
        return "sampling in a batch is not supported yet"
    has_end = any(hasattr(rule, "eos_token_id") for rule in rules)
    for rule in rules:
        if type(rule) not in ROW_WISE:
            return f"{type(rule).__name__} in a batch may look at several rows at once"
        if isinstance(rule, generation.StopStringCriteria) and not has_end:
            return "without an end token, rows of a batch go on behind their stop strings"
    return None


def _padding_shows(generation_config: Any, cache: Any) -> bool:
    """Say whether rows are returned that see nothing, and so see all slots of the cache alike."""
    in_parts = generation_config.prefill_chunk_size is not None
    return (in_parts or isinstance(cache, StaticCache)) and bool(wanted_outputs(generation_config))


def _length_dependent_rope(config: Any) -> str | None:
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(parameters, dict):
        return None
    candidates = [parameters, *(p for p in parameters.values() if isinstance(p, dict))]
    for one in candidates:
        kind = one.get("rope_type", one.get("type"))
        if kind in LENGTH_DEPENDENT_ROPES:
            return str(kind)
    return None
