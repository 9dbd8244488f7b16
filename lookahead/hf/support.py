"""What can be accelerated, and the reason for what cannot.

Every check answers with half a sentence that fits behind "runs plain, because"; an answer of None
lets the run through. A model that passes all of them is still asked by the self-test.
"""

from __future__ import annotations

from typing import Any

from transformers import StaticCache
from transformers.generation.configuration_utils import GenerationMode

from lookahead.hf.compat import KNOWS_FIRST, PREPARES_POSITIONS, cache_dropped_behind
from lookahead.hf.encoder_decoder import self_attention_part
from lookahead.hf.kinds import room_of
from lookahead.hf.masks import SUPPORTED
from lookahead.hf.outputs import wanted_outputs
from lookahead.hf.prepared import Prepared, ends_in_time, keeps_cache
from lookahead.hf.prompts import prompt_mask, prompt_positions_name
from lookahead.hf.ropes import reason_for_rope
from lookahead.hf.rules import reason_for_rules
from lookahead.noise import Draws

__all__ = [
    "reason_for_cache",
    "reason_for_call",
    "reason_for_model",
    "reason_for_no_tree",
    "reason_for_time",
]


#: Attention implementations that are compiled, for minutes, for each number of rows of a pass.
COMPILED = ("flex_attention",)


#: Types that make room in the mask of padding for the tokens of an image, whether there is one or
#: not, from the second token on: what a row sees of its padding then is what nobody asked for.
SHIFTED_PADDING = ("git",)


def reason_for_model(model: Any) -> str | None:
    """Say why a model runs plain whatever it is asked, or None."""
    if model.training:
        return "the model is in training mode; call model.eval() first"
    if model.get_output_embeddings() is None:
        return f"{type(model).__name__} has no output layer"
    if model.config.get_text_config(decoder=True)._attn_implementation in COMPILED:
        return "its attention is compiled anew for each number of rows"
    return None


def reason_for_no_tree(model: Any) -> str | None:
    """Say why a model cannot read trees, whatever the self-test would find, or None."""
    text = model.config.get_text_config(decoder=True)
    if model._is_stateful:
        return f"{type(model).__name__} keeps a recurrent state, which cannot branch"
    if text._attn_implementation not in SUPPORTED:
        return (
            f"attention implementation {text._attn_implementation!r} takes no tree mask; load "
            "the model with attn_implementation='sdpa' or 'eager'"
        )
    return None


def reason_for_call(call: Prepared, cache: Any) -> str | None:
    """Say why this call runs plain, or None.

    Parameters
    ----------
    call : Prepared
        Of a model that has passed :func:`reason_for_model`.
    cache : Cache or None
        The cache that the library prepared or the caller passed in.
    """
    generation_config, model_kwargs = call.generation_config, call.model_kwargs
    mode = generation_config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        return f"{mode.value.replace('_', ' ')} is not greedy search or sampling"
    if reason := _reason_for_padding(call, cache):
        return reason
    if cache is None and call.model._is_stateful and model_kwargs.get("use_cache"):
        return f"{type(call.model).__name__} keeps a recurrent state, which cannot branch"
    if cache is None or model_kwargs.get("use_cache") is False:
        return "there is no cache to decode with; use_cache=False leaves it out"
    if call.model.config.is_encoder_decoder and getattr(cache, "_is_user_defined", False):
        return "a cache passed in with an encoder-decoder model is not supported yet"
    if not PREPARES_POSITIONS and (reason := _reason_for_positions(call)):
        return reason
    if call.positions.shape[-1] == 0:
        return "the prompt is empty"
    text = call.model.config.get_text_config(decoder=True)
    reason = reason_for_rope(text, call.positions, call.num_new, call.batch)
    if reason := reason or _reason_for_dropped_cache(call, text):
        return reason
    return _reason_for_batch(call) if call.batch > 1 else None


def _reason_for_padding(call: Prepared, cache: Any) -> str | None:
    if prompt_mask(call.model, call.model_kwargs) is None:
        return None
    if call.model.config.model_type in SHIFTED_PADDING:
        return f"{type(call.model).__name__} does not keep the padding of a prompt in its place"
    if _padding_shows(call, cache):
        return "what is computed for padding depends on the size of the cache"
    return None


def _reason_for_dropped_cache(call: Prepared, text: Any) -> str | None:
    behind, prompt = cache_dropped_behind(text), int(call.positions.shape[-1])
    if behind is None or prompt > behind:
        return None
    # The last token of a run goes through no pass.
    if call.num_new is not None and prompt + call.num_new - 1 <= behind:
        return None
    return f"in this release of transformers the model drops its cache behind {behind} tokens"


def _reason_for_batch(call: Prepared) -> str | None:
    device = call.positions.device
    if call.generation_config.do_sample and not Draws.are_known(device):
        return f"the order of a batch's draws on {device.type} is not known"
    return reason_for_rules(call.logits_processor, call.stopping_criteria)


def _reason_for_positions(call: Prepared) -> str | None:
    """Say what an old release does with positions that cannot be told from outside, or None."""
    if call.model_kwargs.get(prompt_positions_name(call.model)) is not None:
        return "this release of transformers gives new tokens the last of the positions passed in"
    if any(hasattr(module, "rope_deltas") for module in call.model.modules()):
        return "in this release of transformers the model works out positions of images by itself"
    embeddings = call.model_kwargs.get("inputs_embeds")
    if not KNOWS_FIRST and embeddings is not None and embeddings.shape[1] == 1:
        return "this release of transformers reads a single embedding again in each step"
    return None


def reason_for_cache(call: Prepared, cache: Any) -> str | None:
    """Say what about the cache of this call lets it run plain, or None."""
    room = room_of(self_attention_part(cache))
    if room is None:
        return None
    if call.model._valid_auto_compile_criteria(call.model_kwargs, call.generation_config):
        return "generate compiles single-token passes for this cache here"
    prompt = int(call.positions.shape[-1])
    if call.num_new is None or prompt + call.num_new - 1 > room:
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


def _padding_shows(call: Prepared, cache: Any) -> bool:
    """Say whether rows are returned that see nothing, and so see all slots of the cache alike."""
    in_parts = call.generation_config.prefill_chunk_size is not None
    if not (in_parts or isinstance(cache, StaticCache)):
        return False
    # A prompt of nothing but padding is continued from what was computed for it.
    mask = prompt_mask(call.model, call.model_kwargs)
    is_empty = mask is not None and not bool(mask.any(dim=-1).all())
    return is_empty or bool(wanted_outputs(call.model, call.generation_config))
