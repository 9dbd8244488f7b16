"""Whether hidden states and attentions cut out of a tree pass are those of single-token passes.

Asked of the model itself, like the self-test of its logits, before the first call that returns
them: a model may give them in a form of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_argument, device_of, vocab_size
from lookahead.hf.encoder_decoder import (
    made_up_encoder_outputs,
    self_attention_part,
    whole_cache,
)
from lookahead.hf.outputs import StepOutputs, fields_of, layer_types
from lookahead.hf.selftest import EXACT, made_up_call, positions_of, tokens_of
from lookahead.hf.target import HFTarget
from lookahead.tree import DraftTree

__all__ = ["find_outputs_fault"]

#: Last bits of a value, in its own precision, by which passes of different sizes may differ. Where
#: all values are nearly the same, as in attention that looks everywhere alike, this is more than
#: the share of their spread that is rounding elsewhere.
ROUNDING_STEPS = 16


def find_outputs_fault(model: Any, fields: Sequence[str]) -> str | None:
    """Compare what a tree pass gives for two tokens with two single-token passes.

    Parameters
    ----------
    model : PreTrainedModel
        Has passed the self-test of its logits. Not changed.
    fields : sequence of str
        Of those of :func:`~lookahead.hf.outputs.fields_of`.

    Returns
    -------
    str or None
        What differs, as half a sentence, or None if all is well.
    """
    prompt, (root, a, b, c, _) = tokens_of(vocab_size(model))
    wanted = {name: True for name, given in fields_of(model).items() if set(given) & set(fields)}
    with torch.no_grad():
        try:
            found = _of_a_tree(model, prompt, [root, a, b, c], fields, wanted)
        except Exception as error:  # noqa: BLE001 - a model may give them in any form
            return f"rows of its {' and '.join(fields)} cannot be told: {type(error).__name__}"
        right = _of_single_tokens(model, prompt, [root, c], fields, wanted)
    for field in fields:
        if not _same(found[field], right[field], model.dtype == torch.float32):
            return f"{field} of a tree pass differ from those of single-token passes"
    return None


def _of_a_tree(
    model: Any, prompt: list[int], tokens: list[int], fields: Sequence[str], wanted: dict[str, bool]
) -> dict[str, Any]:
    """Return the fields for the prompt, the root, and the last node, a child of the root."""
    given: Any = _plain_cache(model)
    cache = SlotCache(self_attention_part(given), 1)
    outputs = StepOutputs(fields, cache, 1, layer_types(model))
    call = made_up_call(model, prompt, cache, whole_cache(cache, given), **wanted)
    target = HFTarget(*call, outputs=outputs)
    target.prefill()
    target.verify([0], [DraftTree.from_parents(tokens, [0, 0, 1, 0])])
    target.keep(0, [0, 3])
    return outputs.joined()


def _of_single_tokens(
    model: Any, prompt: list[int], tokens: list[int], fields: Sequence[str], wanted: dict[str, bool]
) -> dict[str, Any]:
    """Return the same by plain passes, one token at a time behind the prompt."""
    cache = _plain_cache(model)
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    always = made_up_encoder_outputs(model) | {cache_argument(model): cache, **wanted}
    found: dict[str, list[Any]] = {field: [] for field in fields}
    length = 0
    for part in (prompt, *([token] for token in tokens)):
        ids = torch.tensor([part], device=device_of(model))
        positions = {
            name: numbers + length for name, numbers in positions_of(model, len(part)).items()
        }
        length += len(part)
        given = {name: ids, **positions, **always}
        outputs = model(**given, use_cache=True, return_dict=True)
        for field in fields:
            found[field].append(outputs.get(field))
    return found


def _plain_cache(model: Any) -> Cache:
    own = DynamicCache(config=model.config.get_text_config(decoder=True))
    return EncoderDecoderCache(own, DynamicCache()) if model.config.is_encoder_decoder else own


def _same(found: Sequence[Any], right: Sequence[Any], exact: bool) -> bool:
    """Compare tuples of tuples of tensors: shapes always, values where they must be equal."""
    for mine, theirs in zip(found, right, strict=True):
        if mine is None or theirs is None:
            if mine is not theirs:
                return False
            continue
        if len(mine) != len(theirs):
            return False
        if not all(_close(one, other, exact) for one, other in zip(mine, theirs, strict=True)):
            return False
    return True


def _close(one: Tensor | None, other: Tensor | None, exact: bool) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # In 16 bits rounding moves them by more than can be told from a fault.
    if not exact or not other.numel():
        return True
    spread = max(float(other.float().std()), 1e-6) if other.numel() > 1 else 1.0
    last_bits = ROUNDING_STEPS * torch.finfo(other.dtype).eps * float(other.abs().max())
    return bool((one - other).abs().max() <= max(EXACT * spread, last_bits))
