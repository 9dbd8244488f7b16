"""Does a tree pass of this model give what plain passes give? Asked of the model itself.

Three nodes on two branches are compared with a plain pass along each branch, then one branch is
committed and a further token compared. Whatever a release or a family does differently shows here
as a difference, and the model runs plain with that reason.

The tree stands behind a gap of unused slots, wider than any window of the model. Nothing may depend
on the slot that a row happens to have, only on its position; a model that cuts its windows by slot,
in code of its own, gives itself away.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_argument, vocab_size
from lookahead.hf.masks import Visibility
from lookahead.hf.target import HFTarget
from lookahead.rows import Rows
from lookahead.tree import DraftTree

__all__ = ["find_fault"]

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
    found = torch.cat([tree_logits, after])
    right_logits = torch.cat([left, right])
    worst = (found - right_logits).abs().max().item()
    effect = (confused - right_logits[3]).abs().max().item()
    spread = max(right_logits.std().item(), 1e-6)
    if model.dtype == torch.float32 and not worst <= EXACT * spread:
        return f"logits of a tree pass differ from plain ones by {worst:.2g}, not by rounding"
    if model.dtype != torch.float32 and not worst <= max(ROUNDING_SHARE * effect, EXACT * spread):
        return (
            f"logits of a tree pass differ from plain ones by {worst:.2g}, where a wrong mask "
            f"changes them by {effect:.2g}"
        )
    return None


def _tree_pass(
    model: Any, prompt: list[int], root: int, nodes: tuple[int, int, int], later: int
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
    target = _GappedTarget(model, ids, [prompt], settings, kwargs, cache, name)
    target.gap = _gap(model, len(prompt))
    target.prefill()
    a, b, c = nodes
    tree = DraftTree.from_parents([root, a, b, c], [0, 0, 1, 0])
    seen = target.verify([0], [tree])[0].logits
    target.keep(0, [0, 3])
    after = target.verify([0], [DraftTree.only_root(later)])[0].logits
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
        self, by_slot: Sequence[Rows | None], depths: np.ndarray[Any, Any]
    ) -> Visibility:
        seen = super()._visibility(by_slot, depths)
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
    logits: Tensor = model(input_ids=tokens, use_cache=False, return_dict=True).logits[0]
    return logits.float()


def _tokens(vocab: int) -> tuple[list[int], list[int]]:
    """Choose eleven tokens that are spread over the vocabulary and differ where they can."""
    ids = [(3 + 7919 * i) % vocab for i in range(11)]
    return ids[:6], ids[6:]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160]
