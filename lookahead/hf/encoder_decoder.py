"""Encoder-decoder models: the tree enters the decoder's self-attention, the rest stays as it is.

Their cache has two parts. What the encoder said is read once and never taken back, so only the part
of the self-attention is ours.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from lookahead.hf.cache import SlotCache

__all__ = ["made_up_encoder_outputs", "self_attention_part", "whole_cache"]

#: States of an encoder that the self-test makes up.
NUM_STATES = 5


def self_attention_part(given: Any) -> Any:
    """Return the cache that decoding adds rows to."""
    return given.self_attention_cache if isinstance(given, EncoderDecoderCache) else given


def whole_cache(own: Cache, given: Any) -> Cache:
    """Return a cache of the kind that was given, with ``own`` as its part of the self-attention.

    Parameters
    ----------
    own : SlotCache, or the part that was given
        The latter gives back what was given, read now.
    given : Cache
        As the library prepared it. Its part of the cross-attention is shared.
    """
    if not isinstance(given, EncoderDecoderCache):
        return own
    if not isinstance(own, SlotCache):
        layers = range(len(given.cross_attention_cache.layers))
        read = [given.cross_attention_cache.get_seq_length(layer) > 0 for layer in layers]
        given.is_updated.update(enumerate(read))
        return given
    return EncoderDecoderCache(own, given.cross_attention_cache)


def made_up_encoder_outputs(model: Any) -> dict[str, Any]:
    """Return outputs of an encoder by argument name; empty for a model that has none.

    Random, but the same each time. The encoder itself is not run: it may want images or sound.
    """
    if not model.config.is_encoder_decoder:
        return {}
    config = getattr(model.config, "encoder", None) or model.config
    generator = torch.Generator().manual_seed(0)
    states = torch.randn((1, NUM_STATES, config.hidden_size), generator=generator)
    states = states.to(device=model.device, dtype=model.dtype)
    outputs = BaseModelOutput(last_hidden_state=states)
    outputs.router_logits = None  # mixtures of experts ask for them
    return {"encoder_outputs": outputs}
