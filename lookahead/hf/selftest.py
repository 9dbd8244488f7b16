"""Does a tree pass of this model give what plain passes give? Asked of the model itself.

Three nodes on two branches are compared with a plain pass along each branch, then one branch is
committed and a further token compared. Whatever a release or a family does differently shows here
as a difference, and the model runs plain with that reason.

The tree stands behind a gap of unused slots, wider than any window of the model. Nothing may depend
on the slot that a row happens to have, only on its position; a model that cuts its windows by slot,
in code of its own, gives itself away.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache

from lookahead.errors import UnsupportedError
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_argument, vocab_size
from lookahead.hf.early import Corner
from lookahead.hf.masks import Visibility
from lookahead.hf.split import LayerSplit
from lookahead.hf.target import HFTarget
from lookahead.session import Session
from lookahead.tree import DraftTree

__all__ = ["exit_verdict", "find_exit_fault", "find_fault"]

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
    prompt, (root, a, b, c, d) = _tokens(vocab_size(model))
    with torch.no_grad():
        try:
            tree_logits, after = _tree_pass(model, prompt, root, (a, b, c), d)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it then runs plain
            return f"a pass over a tree raised {type(error).__name__}: {_first_line(error)}"
        left = _plain(model, [*prompt, root, a, b])[-3:]
        right = _plain(model, [*prompt, root, c, d])[-2:]
        confused = _plain(model, [*prompt, root, a, c])[-1]
    right_logits = torch.cat([left, right])
    return _difference(
        model, "a tree pass", torch.cat([tree_logits, after]), right_logits, confused
    )


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
    prompt, (root, a, b, c, d) = _tokens(vocab_size(model))
    with torch.no_grad():
        try:
            found = _tree_pass(model, prompt, root, (a, b, c), d, _Peeks(split, exit_layer))
        except UnsupportedError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it has no exit
            what = f"{type(error).__name__}: {_first_line(error)}"
            return f"a pass over {exit_layer} layers raised {what}"
        right = _tree_pass(model, prompt, root, (a, b, c), d)
        confused = _plain(model, [*prompt, root, a, c])[-1]
    what = f"a pass over {exit_layer} layers and one over the rest"
    return _difference(model, what, torch.cat(found), torch.cat(right), confused)


def exit_verdict(model: Any, session: Session, split: LayerSplit, exit_layer: int) -> str | None:
    """Return what :func:`find_exit_fault` finds, asked once per layer, attention and dtype."""
    text = model.config.get_text_config(decoder=True)
    key = ("exit", exit_layer, text._attn_implementation, model.dtype, str(model.device))
    if key not in session.verdicts:
        session.verdicts[key] = find_exit_fault(model, split, exit_layer)
    return session.verdicts[key]


def _difference(
    model: Any, what: str, found: Tensor, right: Tensor, confused: Tensor
) -> str | None:
    """Say by how much logits differ if it is more than rounding, or return None.

    ``confused`` is what the last node of the tree, the fourth row, gives with a wrong mask.
    """
    worst = (found - right).abs().max().item()
    effect = (confused - right[3]).abs().max().item()
    spread = max(right.std().item(), 1e-6)
    if model.dtype == torch.float32 and not worst <= EXACT * spread:
        return f"logits of {what} differ from plain ones by {worst:.2g}, not by rounding"
    if model.dtype != torch.float32 and not worst <= max(ROUNDING_SHARE * effect, EXACT * spread):
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
    ids = torch.tensor([prompt], device=model.device)
    cache = SlotCache(DynamicCache(), 1)
    name = cache_argument(model)
    kwargs: dict[str, Any] = {
        name: cache,
        "position_ids": torch.arange(len(prompt), device=model.device)[None],
        "attention_mask": None,
        "use_cache": True,
    }
    settings = SimpleNamespace(prefill_chunk_size=None, _mask_length=len(prompt))
    split = None if peeks is None else peeks.split
    target = _GappedTarget(model, ids, [prompt], settings, kwargs, cache, name, split)
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
        seen.key_slots[:, :prompt] += self.gap
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


def _plain(model: Any, ids: list[int]) -> Tensor:
    tokens = torch.tensor([ids], device=model.device)
    # As plain generation does: left to itself, RoBERTa counts from behind its padding id.
    places = {"position_ids": torch.arange(len(ids), device=model.device)[None]}
    if "position_ids" not in inspect.signature(model.forward).parameters:
        places = {}
    logits: Tensor = model(input_ids=tokens, use_cache=False, return_dict=True, **places).logits[0]
    return logits.float()


def _tokens(vocab: int) -> tuple[list[int], list[int]]:
    """Choose eleven tokens that are spread over the vocabulary and differ where they can."""
    ids = [(3 + 7919 * i) % vocab for i in range(11)]
    return ids[:6], ids[6:]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160]
