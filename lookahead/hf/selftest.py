"""Does a tree pass of this model give what plain passes give? Asked of the model itself.

Three nodes on two branches are compared with a plain pass along each branch, then one branch is
committed and a further token compared. Whatever a release or a family does differently shows here
as a difference, and the model runs plain with that reason.

The tree stands behind a gap of unused slots, wider than any window of the model. Nothing may depend
on the slot that a row happens to have, only on its position; a model that cuts its windows by slot,
in code of its own, gives itself away.

One text is read, not a padded batch: that would take as many passes again, one to two seconds with
135 million weights on a busy core, in each process that answers several prompts at once. A test
runs such a batch on every registered type instead (tests/zoo/batches.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)

from lookahead.errors import UnsupportedError
from lookahead.hf.adapters import active_adapters
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_argument, device_of, vocab_size
from lookahead.hf.early import Corner
from lookahead.hf.encoder_decoder import (
    made_up_encoder_outputs,
    self_attention_part,
    whole_cache,
)
from lookahead.hf.layers import kinds_of_layers, precision
from lookahead.hf.masks import Visibility
from lookahead.hf.prompts import prompt_positions_name, takes_positions
from lookahead.hf.split import LayerSplit
from lookahead.hf.target import HFTarget
from lookahead.session import Session
from lookahead.tree import DraftTree

__all__ = [
    "difference",
    "exit_verdict",
    "find_exit_fault",
    "find_fault",
    "first_line",
    "made_up_call",
    "plain_logits",
    "positions_of",
    "tokens_of",
    "verdict_key",
]

#: Largest difference of logits, relative to their spread, that is rounding in 32 bits.
EXACT = 1e-3

#: Wider windows than this are left to the library's own mask rules: a gap costs memory.
WIDEST_GAP = 1024

#: In 16 bits rounding is told from a wrong mask by being this much smaller than its effect.
ROUNDING_SHARE = 0.25


def find_fault(model: Any) -> str | None:
    """Compare a tree pass with plain passes.

    Parameters
    ----------
    model : PreTrainedModel
        In eval mode. Not changed.

    Returns
    -------
    str or None
        What differs, as half a sentence, or None if all is well.
    """
    prompt, (root, a, b, c, d) = tokens_of(vocab_size(model))
    with torch.no_grad():
        try:
            tree_logits, after = _tree_pass(model, prompt, root, (a, b, c), d)
            left = plain_logits(model, [*prompt, root, a, b])[-3:]
            right = plain_logits(model, [*prompt, root, c, d])[-2:]
            confused = plain_logits(model, [*prompt, root, a, c])[-1]
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it then runs plain
            return f"a pass over a tree raised {type(error).__name__}: {first_line(error)}"
    right_logits = torch.cat([left, right])
    return difference(model, "a tree pass", torch.cat([tree_logits, after]), right_logits, confused)


def find_exit_fault(model: Any, split: LayerSplit, exit_layer: int) -> str | None:
    """Compare a tree some rows of which were peeked at with the same tree run whole.

    Parameters
    ----------
    model : PreTrainedModel
        Has passed :func:`find_fault`. Not changed.
    split : LayerSplit
        Of this model.
    exit_layer : int
        Layers that the peeks run.

    Returns
    -------
    str or None
        What differs, as half a sentence, or None if all is well.
    """
    if split.reason is not None:
        return split.reason
    prompt, (root, a, b, c, d) = tokens_of(vocab_size(model))
    with torch.no_grad():
        try:
            found = _tree_pass(model, prompt, root, (a, b, c), d, _Peeks(split, exit_layer))
        except UnsupportedError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it has no exit
            what = f"{type(error).__name__}: {first_line(error)}"
            return f"a pass over {exit_layer} layers raised {what}"
        right = _tree_pass(model, prompt, root, (a, b, c), d)
        confused = plain_logits(model, [*prompt, root, a, c])[-1]
    what = f"a pass over {exit_layer} layers and one over the rest"
    return difference(model, what, torch.cat(found), torch.cat(right), confused)


def exit_verdict(model: Any, session: Session, split: LayerSplit, exit_layer: int) -> str | None:
    """Return what :func:`find_exit_fault` finds, asked once per exit layer and kinds of layers."""
    key = ("exit", exit_layer, *verdict_key(model))
    if key not in session.verdicts:
        session.verdicts[key] = find_exit_fault(model, split, exit_layer)
    return session.verdicts[key]


def verdict_key(model: Any) -> tuple[object, ...]:
    """Return what a verdict depends on: another one is asked for when it changes."""
    text = model.config.get_text_config(decoder=True)
    layers = (kinds_of_layers(model), active_adapters(model))
    return text._attn_implementation, precision(model), str(device_of(model)), *layers


def difference(
    model: Any, what: str, found: Tensor, right: Tensor, confused: Tensor, row: int = 3
) -> str | None:
    """Say by how much logits differ if it is more than rounding, or return None.

    ``confused`` is what one row gives when it sees what it must not see.
    """
    if found.shape != right.shape:
        return f"{what} gives logits of shape {list(found.shape)}, and not {list(right.shape)}"
    worst = (found - right).abs().max().item()
    effect = (confused - right[row]).abs().max().item()
    spread = max(right.std().item(), 1e-6)
    dtype = precision(model)
    if dtype == torch.float32 and not worst <= EXACT * spread:
        return f"logits of {what} differ from plain ones by {worst:.2g}, not by rounding"
    if dtype != torch.float32 and not worst <= max(ROUNDING_SHARE * effect, EXACT * spread):
        return (
            f"logits of {what} differ from plain ones by {worst:.2g}, where a wrong mask "
            f"changes them by {effect:.2g}"
        )
    return None


class _Peeks(NamedTuple):
    """That the first layers are run before the rest, and how many."""

    split: LayerSplit
    exit_layer: int


def _tree_pass(
    model: Any,
    prompt: list[int],
    root: int,
    nodes: tuple[int, int, int],
    later: int,
    peeks: _Peeks | None = None,
) -> tuple[Tensor, Tensor]:
    """Return logits of root, a, a-b and c in one pass, and of a token after c is committed."""
    given: Any = _untrimmed(model)
    if model.config.is_encoder_decoder:
        given = EncoderDecoderCache(given, DynamicCache())
    cache = SlotCache(self_attention_part(given), 1)
    split = None if peeks is None else peeks.split
    arguments = made_up_call(model, prompt, cache, whole_cache(cache, given))
    target = _GappedTarget(*arguments, split)
    target.gap = _gap(model, len(prompt))
    target.prefill()
    a, b, c = nodes
    tree = DraftTree.from_parents([root, a, b, c], [0, 0, 1, 0])
    if peeks is not None:
        # Two looks at a tree that is then grown another way: the token ``later`` is not in it.
        target.peek(0, DraftTree.from_parents([root, later, a], [0, 0, 0]), [1], peeks.exit_layer)
        target.peek(0, DraftTree.from_parents([root, a, c], [0, 0, 0]), [2, 1], peeks.exit_layer)
    seen = target.verify([0], [tree])[0].logits
    target.keep(0, [0, 3])
    end = DraftTree.only_root(later)
    if peeks is not None:
        target.peek(0, end, [0], peeks.exit_layer)
    after = target.verify([0], [end])[0].logits
    return seen, after


def made_up_call(
    model: Any,
    prompt: list[int],
    cache: SlotCache,
    whole: Any = None,
    batch: int = 1,
    **more: Any,
) -> tuple[Any, Tensor, list[list[int]], Any, dict[str, Any], SlotCache, str]:
    """Return what a target is made with to read a prompt, as the library would prepare it.

    Parameters
    ----------
    model : PreTrainedModel
        Not changed.
    prompt : list of int
        Without padding.
    cache : SlotCache
        For so many sequences.
    whole : Cache or None
        What the model is given, where ``cache`` is only a part of it.
    batch : int
        Sequences, all with this prompt.
    **more
        Arguments of the model besides.
    """
    name = cache_argument(model)
    kwargs = {
        name: cache if whole is None else whole,
        "attention_mask": None,
        "use_cache": True,
        **{name: p.expand(batch, -1) for name, p in positions_of(model, len(prompt)).items()},
        **made_up_encoder_outputs(model),
        **more,
    }
    settings = SimpleNamespace(prefill_chunk_size=None, _mask_length=len(prompt))
    ids = torch.tensor([prompt] * batch, device=device_of(model))
    return model, ids, [prompt] * batch, settings, kwargs, cache, name


def _untrimmed(model: Any) -> DynamicCache:
    """Return a cache of the model's own kinds of layers, which lets go of nothing.

    Behind the gap a window would be past the prompt; ours keep their windows by their masks.
    """
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    cache.layers = [
        DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
        for layer in cache.layers
    ]
    return cache


class _GappedTarget(HFTarget):
    """Leaves slots unused between the prompt and what follows."""

    gap = 0

    def prefill(self) -> Tensor:
        """Run the prompt, and skip the gap."""
        logits = super().prefill()
        self._cache.skip(self.gap)
        self._prompt_slots += self.gap
        # As for a padded prompt: then a single row gets a mask, too, and does not see the gap.
        self._live_prompt = torch.ones_like(self._input_ids, dtype=torch.bool)
        return logits

    def _visibility(
        self, corners: Sequence[Corner | None], depths: NDArray[np.int64], num_rows: int
    ) -> Visibility:
        seen = super()._visibility(corners, depths, num_rows)
        prompt = len(self._contexts[0])
        seen.may_see[:, :, prompt : prompt + self.gap] = False
        seen.key_slots[:, prompt + self.gap :] -= self.gap
        seen.row_slots.sub_(self.gap)
        return seen


def _gap(model: Any, num_prompt: int) -> int:
    """Choose a gap wider than the windows of a model, as far as its positions reach."""
    config = model.config.get_text_config(decoder=True)
    windows = [
        value
        for name, value in config.to_dict().items()
        if "window" in name and isinstance(value, int) and not isinstance(value, bool)
    ]
    gap = max([w for w in windows if 0 < w <= WIDEST_GAP], default=0) + 8
    chunk = getattr(config, "attention_chunk_size", None) or 1
    if 1 < chunk <= WIDEST_GAP:
        gap = -(-gap // chunk) * chunk  # whole chunks, so that their borders stay where they are
    positions = getattr(config, "max_position_embeddings", None)
    return gap if positions is None else max(0, min(gap, positions - num_prompt - 8))


def positions_of(model: Any, number: int) -> dict[str, Any]:
    """Return positions by name as plain generation hands them in: a model might count otherwise."""
    if not takes_positions(model):
        return {}
    return {prompt_positions_name(model): torch.arange(number, device=device_of(model))[None]}


def plain_logits(model: Any, ids: list[int]) -> Tensor:
    """Return what a plain pass without a cache gives for some tokens, float32, [tokens, vocab]."""
    tokens = torch.tensor([ids], device=device_of(model))
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    inputs = positions_of(model, len(ids)) | made_up_encoder_outputs(model) | {name: tokens}
    logits: Tensor = model(**inputs, use_cache=False, return_dict=True).logits[0]
    return logits.float()


def tokens_of(vocab: int, behind: int = 5) -> tuple[list[int], list[int]]:
    """Choose six tokens for a prompt and some to stand behind it, all different where they can."""
    ids = [(3 + 7919 * i) % vocab for i in range(6 + behind)]
    return ids[:6], ids[6:]


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, cut to a readable length."""
    return (str(error).splitlines() or [""])[0][:160]
