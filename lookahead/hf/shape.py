"""What a pass of a model can verify: a tree, one branch, or nothing but the next token.

Asked of the model itself. One that cannot read a tree exactly may still read a chain: a model with
a recurrent state, one that takes the place of a row from its slot, or attention without masks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from lookahead.hf.cache import SlotCache
from lookahead.hf.chain import ChainTarget
from lookahead.hf.compat import COUNTS_SLOTS, device_of, vocab_size
from lookahead.hf.layers import changed_part, reason_for_layers
from lookahead.hf.masks import SUPPORTED
from lookahead.hf.prepared import Prepared
from lookahead.hf.prompts import prompt_mask
from lookahead.hf.random_numbers import random_states
from lookahead.hf.selftest import (
    difference,
    find_fault,
    first_line,
    made_up_call,
    plain_logits,
    tokens_of,
    verdict_key,
)
from lookahead.hf.support import reason_for_no_tree
from lookahead.session import Session
from lookahead.tree import DraftTree

__all__ = ["Shape", "find_chain_fault", "reason_for_shape", "shape_of"]


@dataclass(frozen=True)
class Shape:
    """What a pass can verify.

    Parameters
    ----------
    name : str
        "tree", "chain" or "plain".
    reason : str or None
        Why it is no tree, as half a sentence.
    takes_mask : bool
        Whether a mask of ours reaches the attention.
    draws : bool
        Whether passes draw random numbers, as layers do that then drop nothing.
    """

    name: str
    reason: str | None = None
    takes_mask: bool = True
    draws: bool = False


def shape_of(model: Any, session: Session) -> Shape:
    """Return what a model's passes can verify, tested once for layers of these kinds."""
    key = verdict_key(model)
    if key not in session.shapes:
        device = device_of(model)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            shape = _find_shape(model)
            draws = shape.name != "plain" and _draws(model)
            session.shapes[key] = replace(shape, draws=draws)
    found = session.shapes[key]
    assert isinstance(found, Shape)
    return found


def _draws(model: Any) -> bool:
    """Say whether a plain pass draws random numbers, though in eval mode nothing comes of them."""
    before = random_states(device_of(model))
    with torch.no_grad():
        plain_logits(model, tokens_of(vocab_size(model))[0])
    return not all(map(torch.equal, before, random_states(device_of(model))))


def _find_shape(model: Any) -> Shape:
    if (reason := reason_for_layers(model)) is not None:
        return Shape("plain", reason)
    reason = reason_for_no_tree(model) or find_fault(model)
    if reason is None:
        return Shape("tree")
    for takes_mask in _ways(model):
        if find_chain_fault(model, takes_mask=takes_mask) is None:
            return Shape("chain", reason, takes_mask)
    changed = changed_part(model)
    return Shape("plain", reason if changed is None else f"{reason}; {changed}")


def _ways(model: Any) -> tuple[bool, ...]:
    """Return the ways to read a chain that are worth trying: with masks of ours, or without."""
    if model.config.is_encoder_decoder:
        return ()
    text = model.config.get_text_config(decoder=True)
    attention = text._attn_implementation
    if COUNTS_SLOTS and attention in SUPPORTED and True in DynamicCache(config=text).is_sliding:
        return ()  # before 5.4 many models make masks of their own, for a cache that slides
    return (True, False) if attention in SUPPORTED else (False,)


def find_chain_fault(model: Any, *, takes_mask: bool = True) -> str | None:
    """Compare passes over chains with plain passes.

    One chain is accepted in part, a second one whole, and a further token read behind both.

    Parameters
    ----------
    model : PreTrainedModel
        In eval mode. Not changed.
    takes_mask : bool
        Whether to hand masks to its attention.

    Returns
    -------
    str or None
        What differs, as half a sentence, or None if all is well.
    """
    prompt, (root, a, b, c, d, e) = tokens_of(vocab_size(model), 6)
    with torch.no_grad():
        try:
            found = _chain_passes(model, prompt, (root, a, b, c, d, e), takes_mask)
            first = plain_logits(model, [*prompt, root, a, b])[-3:]
            second = plain_logits(model, [*prompt, root, a, c, d, e])[-3:]
            confused = plain_logits(model, [*prompt, root, a, b, c, d])[-1]
            right = torch.cat([first, second])
            return difference(model, "a chain", found, right, confused, row=4)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it then runs plain
            return f"a pass over a chain raised {type(error).__name__}: {first_line(error)}"


def _chain_passes(
    model: Any, prompt: list[int], tokens: tuple[int, ...], takes_mask: bool
) -> Tensor:
    """Return logits of root, a and b; of c and d behind a; and of e, [6, vocab]."""
    root, a, b, c, d, e = tokens
    cache = SlotCache(DynamicCache(config=model.config.get_text_config(decoder=True)), 1)
    target = ChainTarget(*made_up_call(model, prompt, cache), takes_mask=takes_mask)
    target.prefill()
    found = []
    for chain, kept in (([root, a, b], 2), ([c, d], 2), ([e], 1)):
        tree = DraftTree.from_parents(chain, [0, *range(len(chain) - 1)])
        found.append(target.verify([0], [tree])[0].logits)
        target.keep(0, range(kept))
    return torch.cat(found)


def reason_for_shape(
    call: Prepared, shape: Shape, cache: SlotCache, fields: tuple[str, ...]
) -> str | None:
    """Say why a call of a model of this shape runs plain, or None.

    Parameters
    ----------
    call : Prepared
        What is asked for.
    shape : Shape
        Of its model.
    cache : SlotCache
        Made for the call.
    fields : tuple of str
        Outputs of single passes that are to be returned.
    """
    if shape.name == "plain":
        return shape.reason
    if shape.draws and call.generation_config.do_sample:
        return f"passes of {type(call.model).__name__} draw random numbers, too"
    if shape.name == "tree":
        return None
    if call.batch > 1:
        return f"{shape.reason}; one sequence at a time would be accelerated"
    if prompt_mask(call.model, call.model_kwargs) is not None:
        return f"{shape.reason}; a prompt without padding would be accelerated"
    if fields and cache.has_states:
        return f"{shape.reason}; without {' and '.join(fields)} it would be accelerated"
    return None
