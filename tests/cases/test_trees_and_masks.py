"""Kind F: masks, trees, positions and attention back ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from transformers import DynamicCache

import lookahead
from lookahead import DraftTree
from lookahead.hf import masks, selftest
from lookahead.hf.cache import SlotCache
from lookahead.hf.target import HFTarget
from tests.drafters import Oracle
from tests.helpers import FAMILIES, check, fresh, make_bloom, make_model, new_ids, prompt, shared
from tests.oracles import next_logits


def tree_pass(model, ids, trees):
    """Verify trees one after another, keeping only the root of each; return all logits."""
    cache = SlotCache(DynamicCache(config=model.config), 1)
    kwargs = {
        "cache": cache,
        "position_ids": torch.arange(len(ids) - 1)[None],
        "attention_mask": None,
        "use_cache": True,
    }
    settings = type("Settings", (), {"prefill_chunk_size": None, "_mask_length": len(ids) - 1})
    target = HFTarget(model, torch.tensor([ids[:-1]]), [ids[:-1]], settings, kwargs, cache, "cache")
    masks.install()
    with torch.no_grad():
        target.prefill()
        found = []
        for tree in trees:
            found.append(target.verify([0], [tree])[0].logits)
            target.keep(0, [0])
    return found


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_f1_the_logits_of_a_tree_are_those_of_plain_passes(family, attention):
    """F1: a release replaced 4-D masks, and logits changed without an error."""
    model, ids = shared(family, attention=attention), prompt(11)[0].tolist()
    tree = DraftTree.from_parents([ids[-1], 5, 6], [0, 0, 0])
    (found,) = tree_pass(model, ids, [tree])
    for row, path in enumerate([[], [5], [6]]):
        torch.testing.assert_close(found[row], next_logits(model, ids + path), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
@pytest.mark.parametrize("seed", range(2))
def test_f2_any_tree_gives_the_logits_of_plain_passes(seed, family, attention):
    """F1 for random trees of 9 nodes, before and behind a sliding window."""
    random = np.random.default_rng(seed)
    model = shared(family, attention=attention)
    for length in (2, 9, 30):
        ids = prompt(length, seed=seed)[0].tolist()
        parents = [0, *(int(random.integers(0, n)) for n in range(1, 10))]
        tokens = [ids[-1], *random.integers(0, 128, 9).tolist()]
        tree = DraftTree.from_parents(tokens, parents)
        (found,) = tree_pass(model, ids, [tree])
        for node in range(10):
            text = ids + [tokens[n] for n in tree.path(node)]
            torch.testing.assert_close(found[node], next_logits(model, text), atol=2e-4, rtol=1e-3)


def test_f1_a_wrong_mask_is_found_and_the_model_runs_plain(monkeypatch):
    """F1: a mismatch is detected and reported, never silently trusted."""
    monkeypatch.setattr(masks, "_tree_rule", lambda rule, visibility: rule)
    model, ids = fresh(), prompt(20, repeat=4)
    assert "differ" in selftest.find_fault(model)
    plain = model.generate(ids, max_new_tokens=10, do_sample=False)
    with lookahead.accelerate(model), pytest.warns(lookahead.LookaheadWarning, match="differ"):
        fast = model.generate(ids, max_new_tokens=10, do_sample=False)
    assert fast.tolist() == plain.tolist()


def _falcon(attention):
    config = transformers.FalconConfig(
        vocab_size=128,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        alibi=True,
        new_decoder_architecture=False,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    config._attn_implementation = attention
    return transformers.FalconForCausalLM(config).eval()


def _mpt(attention):
    config = transformers.MptConfig(
        vocab_size=128,
        d_model=64,
        n_heads=4,
        n_layers=2,
        expansion_ratio=2,
        max_seq_len=256,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    config._attn_implementation = attention
    return transformers.MptForCausalLM(config).eval()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["bloom", "falcon", "mpt"])
def test_f3_a_bias_from_the_slot_of_a_key_runs_plain_or_exactly(kind, attention):
    """F3: a family skipped its ALiBi bias whenever a mask was given."""
    make = {"bloom": lambda a: make_bloom(attention=a), "falcon": _falcon, "mpt": _mpt}[kind]
    try:
        model = make(attention)
    except ValueError as error:  # this family has no such attention
        pytest.skip(str(error).splitlines()[0])
    ids = prompt(20, repeat=4)
    text = ids[0].tolist() + new_ids(model, ids)
    plain = model.generate(ids, max_new_tokens=20, do_sample=False)
    with (
        lookahead.accelerate(model, drafters=(Oracle(text),), sources=()),
        pytest.warns(lookahead.LookaheadWarning, match="runs plain"),
    ):
        fast = model.generate(ids, max_new_tokens=20, do_sample=False)
    assert fast.tolist() == plain.tolist()


def test_f5_a_fully_matched_guess_also_gives_the_bonus_token():
    """F5: k matched tokens give k + 1."""
    model, ids = shared(), prompt(12)
    text = ids[0].tolist() + new_ids(model, ids, 24)
    runs = check(
        model,
        ids,
        settings={"sources": (), "drafters": (Oracle(text, 3),)},
        max_new_tokens=21,
        do_sample=False,
    )
    assert [(s.accepted, s.emitted) for s in runs.stats.steps] == [(3, 4)] * 5


def test_f7_an_attention_that_takes_no_mask_runs_plain_with_advice():
    """F7: no stack trace from inside the model."""
    model, ids = fresh(), prompt(12)
    with lookahead.accelerate(model):
        model.config._attn_implementation = "flash_attention_2"
        with (
            pytest.warns(lookahead.LookaheadWarning, match="attn_implementation='sdpa'"),
            pytest.raises(Exception),  # noqa: B017, PT011 - plain needs the kernel as well
        ):
            model.generate(ids, max_new_tokens=4)
        model.config._attn_implementation = "eager"
        assert model.generate(ids, max_new_tokens=4).shape[1] == 16


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_f8_switching_attention_between_calls_goes_right(attention):
    """F7: the attention of the moment counts."""
    model, ids = fresh(), prompt(20, repeat=4)
    with lookahead.accelerate(model, strict=True):
        for implementation in ("sdpa", "eager", attention):
            model.set_attn_implementation(implementation)
            fast = model.generate(ids, max_new_tokens=12, do_sample=False)
            assert lookahead.last_stats(model).accelerated
            plain = type(model).generate(model, ids, max_new_tokens=12, do_sample=False)
            assert fast.tolist() == plain.tolist()


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_f9_a_rope_that_depends_on_the_length_runs_plain(rope):
    """F9: a block saw another frequency base than single steps do."""
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    if rope == "longrope":
        scaling = {
            "rope_type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 16,
            "factor": 2.0,
        }
    model = make_model("llama", max_position_embeddings=32, rope_parameters=scaling)
    ids = prompt(20, repeat=4)
    plain = model.generate(ids, max_new_tokens=40, do_sample=False)
    with lookahead.accelerate(model), pytest.warns(lookahead.LookaheadWarning, match=rope):
        fast = model.generate(ids, max_new_tokens=40, do_sample=False)
    assert fast.tolist() == plain.tolist()


@pytest.mark.parametrize("rope", ["linear", "yarn", "llama3"])
def test_f9_other_ropes_give_the_same(rope):
    """F9: what does not depend on the length is accelerated."""
    scaling = {
        "rope_type": rope,
        "factor": 2.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 16,
    }
    if rope == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = make_model("llama", max_position_embeddings=64, rope_parameters=scaling)
    check(model, prompt(20, repeat=4), max_new_tokens=40, do_sample=False)
