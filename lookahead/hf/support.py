"""What can be accelerated, and the reason for what cannot.

Every check answers with half a sentence that fits behind "runs plain, because"; an answer of None
lets the run through. A model that passes all of them is still asked by the self-test.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import generation
from transformers.generation.configuration_utils import GenerationMode

from lookahead.hf.masks import SUPPORTED

__all__ = ["reason_for_call", "reason_for_model"]

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
        "MaxLengthCriteria",
        "MaxTimeCriteria",
        "EosTokenCriteria",
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
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(generation_config, name, None):
            return f"{name}=True asks for the tensors of single-token passes"
    if cache is None or model_kwargs.get("use_cache") is False:
        return "it was called with use_cache=False, and a tree needs a cache"
    positions = model_kwargs.get("position_ids")
    if positions is None or positions.ndim != 2:
        return f"{type(model).__name__} takes no plain position ids"
    if positions.shape[-1] == 0:
        return "the prompt is empty"
    if model_kwargs.get("mm_encoder_outputs"):  # empty for text alone
        return "prompts with images or sound are not supported yet"
    if batch > 1:
        return _reason_for_batch(generation_config, model_kwargs, rules)
    return None


def _reason_for_batch(
    generation_config: Any, model_kwargs: dict[str, Any], rules: Iterable[Any]
) -> str | None:
    if generation_config.do_sample:
        return "sampling in a batch is not supported yet"
    if generation_config.return_dict_in_generate:
        return "return_dict_in_generate in a batch is not supported yet"
    if getattr(model_kwargs.get("cache"), "_is_user_defined", False):
        return "a cache passed in with a batch is not supported yet"
    for rule in rules:
        if type(rule) not in ROW_WISE:
            return f"{type(rule).__name__} in a batch may look at several rows at once"
    return None


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
