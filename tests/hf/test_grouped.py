"""Grouped queries: the numbers of the library's attention, without its copies of K/V."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.modeling_utils import AttentionInterface

from lookahead.hf import grouped
from lookahead.hf.grouped import FoldedMasks, grouped_queries
from tests.helpers import check, prompt, shared

grouped.install()
HOOK = AttentionInterface._global_mapping["sdpa"]
LIBRARY = HOOK.lookahead_original


#: Of prompts and trees here: what has more slots than that stands behind a prompt.
MOST_ROWS = 18


def _made(groups=3, rows=5, slots=24, batch=2, dtype=torch.float32):
    torch.manual_seed(0)
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
    query = torch.randn(batch, rows, 2 * groups, 16).transpose(1, 2).to(dtype)
    key, value = (torch.randn(batch, 2, slots, 16).to(dtype) for _ in range(2))
    mask = torch.rand(batch, 1, rows, slots) < 0.5
    mask[..., 0] = True
    return module, query, key, value, mask


def _calls(monkeypatch):
    """Note the heads of K in each call of the kernel over several rows behind others."""
    heads, real = [], torch.nn.functional.scaled_dot_product_attention

    def kernel(query, key, *args, attn_mask=None, **kwargs):
        if query.shape[2] > 1 and key.shape[2] > MOST_ROWS:
            heads.append(key.shape[1])
        return real(query, key, *args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
    return heads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize(("groups", "rows"), [(3, 5), (4, 17), (2, 70)])
def test_it_is_the_attention_of_the_library(monkeypatch, groups, rows, kind, dtype):
    module, query, key, value, mask = _made(groups, rows, rows + 20, dtype=dtype)
    if kind == "float":
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
    right, _ = LIBRARY(module, query, key, value, mask, scaling=0.3, dropout=0.0)
    heads = _calls(monkeypatch)
    with grouped_queries():
        given, weights = HOOK(module, query, key, value, mask, scaling=0.3, dropout=0.0)
    assert weights is None
    assert heads == [2], "K/V are copied"
    assert given.shape == right.shape
    assert given.is_contiguous()
    torch.testing.assert_close(given, right)


LEFT = {
    "no pass of ours": {},
    "a single row": {"rows": 1},
    "nothing to group": {"groups": 1},
}


@pytest.mark.parametrize("changes", LEFT.values(), ids=LEFT)
def test_all_else_is_left_to_the_library(monkeypatch, changes):
    made = _made(**changes)
    seen = []
    hook = grouped._hook(lambda *args, **kwargs: seen.append((args, kwargs)) or "theirs")
    if changes:
        with grouped_queries():
            assert hook(*made, scaling=1.0) == "theirs"
    else:
        assert hook(*made, scaling=1.0) == "theirs"
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("argument", "mine"),
    [("softcap", False), ("output_attentions", False), ("novelty", False), ("unread", True)],
)
def test_arguments_that_change_what_is_computed_are_left_to_the_library(argument, mine):
    def library(module, query, key, value, attention_mask, novelty=None, **kwargs):
        return "theirs"

    hook = grouped._hook(library)
    with grouped_queries():
        result = hook(*_made(), **{argument: 5.0})
        assert (result != "theirs") is mine
        assert hook(*_made(), **{argument: None}) != "theirs"


def test_a_mask_without_a_row_for_each_query_is_left_to_the_library():
    module, query, key, value, mask = _made()
    hook = grouped._hook(lambda *args, **kwargs: "theirs")
    with grouped_queries():
        for other in (None, mask[:, :, :1], mask.expand(-1, 6, -1, -1), mask[:, 0]):
            assert hook(module, query, key, value, other) == "theirs"


def test_masks_are_folded_once_for_all_layers_of_a_pass():
    mask, other = (
        torch.ones(1, 1, 2, 3, dtype=torch.bool),
        torch.zeros(1, 1, 2, 3, dtype=torch.bool),
    )
    masks = FoldedMasks()
    first = masks.of(mask, 2, torch.float32)
    assert masks.of(mask, 2, torch.float32) is first
    assert first.tolist() == [[[[0.0] * 3] * 4]]
    assert masks.of(other, 2, torch.float32)[0, 0, 0, 0] == -torch.inf
    assert masks.of(mask, 3, torch.float32).shape == (1, 1, 6, 3)
    assert masks.of(mask, 2, torch.bfloat16).dtype == torch.bfloat16


def test_tree_passes_copy_no_kv(monkeypatch):
    model = shared("llama")
    heads = _calls(monkeypatch)
    runs = check(model, prompt(MOST_ROWS, repeat=4), max_new_tokens=16, do_sample=False)
    assert runs.stats.passes > 0
    kv_heads = model.config.num_key_value_heads
    assert set(heads) == {kv_heads}
