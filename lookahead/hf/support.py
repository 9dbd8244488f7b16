"""What can be accelerated, and the reason for what cannot.

Every check answers with half a sentence that fits behind "runs plain, because"; an answer of None
lets the run through. A model that passes all of them is still asked by the self-test.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from transformers import generation
from transformers.generation.configuration_utils import GenerationMode

from lookahead.hf.masks import SUPPORTED
from lookahead.hf.ropes import reason_for_rope

__all__ = ["reason_for_call", "reason_for_model"]

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
    text = model.config.get_text_config(decoder=True)
    if model.training:
        return "the model is in training mode; call model.eval() first"
    if model._is_stateful:
        return f"{type(model).__name__} keeps a recurrent state, which cannot be taken back"
    if text._attn_implementation not in SUPPORTED:
        return (
            f"attention implementation {text._attn_implementation!r} takes no tree mask; load "
            "the model with attn_implementation='sdpa' or 'eager'"
        )
    if model.get_output_embeddings() is None:
        return f"{type(model).__name__} has no output layer"
    return None


def reason_for_call(
    model: Any,
    generation_config: Any,
    model_kwargs: dict[str, Any],
    cache: Any,
    positions: Tensor,
    num_new: int | None,
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
    positions : Tensor, int64, [..., batch or 1, tokens]
        Those of the prompt.
    num_new : int or None
        Most tokens that the call can add.
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
    if model.config.is_encoder_decoder and getattr(cache, "_is_user_defined", False):
        return "a cache passed in with an encoder-decoder model is not supported yet"
    if positions.shape[-1] == 0:
        return "the prompt is empty"
    text = model.config.get_text_config(decoder=True)
    if reason := reason_for_rope(text, positions, num_new, batch):
        return reason
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
