"""Kind F: masks, trees, positions and attention back ends."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
import transformers
from transformers import DynamicCache

import lookahead
from lookahead import DraftTree
from lookahead.hf import masks, selftest
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_dropped_behind
from lookahead.hf.target import HFTarget
from tests.drafters import ALL, Oracle
from tests.helpers import (
    CACHE,
    FAMILIES,
    _finish,
    cache_of,
    check,
    fresh,
    make_model,
    new_ids,
    prompt,
    shared,
)
from tests.oracles import next_logits
from tests.slot_families import make_slot_family


def tree_pass(model, ids, trees):
    """Verify trees one after another, keeping only the root of each; return all logits."""
    cache = SlotCache(DynamicCache(config=model.config), 1)
    kwargs = {
        CACHE: cache,
        "position_ids": torch.arange(len(ids) - 1)[None],
        "attention_mask": None,
        "use_cache": True,
    }
    settings = type("Settings", (), {"prefill_chunk_size": None, "_mask_length": len(ids) - 1})
    target = HFTarget(model, torch.tensor([ids[:-1]]), [ids[:-1]], settings, kwargs, cache, CACHE)
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


def test_f1_a_wrong_mask_is_found_and_chains_are_read(monkeypatch):
    """F1: a mismatch is detected and reported, never silently trusted."""
    monkeypatch.setattr(masks, "_tree_rule", lambda rule, visibility: rule)
    model, ids = fresh(), prompt(20, repeat=4)
    assert "differ" in selftest.find_fault(model)
    plain = model.generate(ids, max_new_tokens=10, do_sample=False)
    with lookahead.accelerate(model, strict=True):
        fast = model.generate(ids, max_new_tokens=10, do_sample=False)
        stats = lookahead.last_stats(model)
    assert fast.tolist() == plain.tolist()
    assert stats.shape == "chain"
    assert "differ from plain ones" in stats.notes[0]


@pytest.mark.parametrize("kind", ["bloom", "falcon", "mpt"])
def test_f3_a_bias_from_the_slot_of_a_key_is_made_from_its_place(kind):
    """F3: a family skipped its ALiBi bias whenever a mask was given."""
    model, ids = make_slot_family(kind), prompt(20, repeat=4)
    text = ids[0].tolist() + new_ids(model, ids)
    check(model, ids, settings={"drafters": (Oracle(text),)}, max_new_tokens=20, do_sample=False)


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


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
    "factor": 2.0,
}


def _roped(rope, limit=32):
    length = limit if rope["rope_type"] == "dynamic" else 128
    return make_model("llama", max_position_embeddings=length, rope_parameters=dict(rope))


@pytest.mark.parametrize("rope", [DYNAMIC, LONG], ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("drafter", ["half", "random", "all"])
@pytest.mark.parametrize("sample", [False, True])
def test_f9_a_run_that_ends_before_its_angles_change_is_accelerated(rope, drafter, sample):
    """F9: a block saw another frequency base than single steps do."""
    model, ids = _roped(rope), prompt(12, repeat=4)
    text = model.generate(ids, max_new_tokens=21, do_sample=False)[0].tolist()
    settings = {"window": (5, 3, 4)} | ALL[drafter](text)
    for num in (5, 21):  # the last token of 33 goes through no pass
        check(model, ids, settings=settings, max_new_tokens=num, do_sample=sample)


@pytest.mark.parametrize("drafter", ["half", "random", "all"])
@pytest.mark.parametrize("sample", [False, True])
def test_f9_angles_that_grow_get_single_steps_from_there_on(drafter, sample):
    """F9: the guesses of a dynamic rope end where its angles begin to change."""
    model, ids = _roped(DYNAMIC), prompt(12, repeat=4)
    text = model.generate(ids, max_new_tokens=48, do_sample=False)[0].tolist()
    settings = {"window": (5, 3, 4)} | ALL[drafter](text)
    runs = check(model, ids, settings=settings, max_new_tokens=48, do_sample=sample)
    assert all(s.drafted == 0 for s in runs.stats.steps[-20:])
    if drafter == "half" and not sample:
        assert runs.stats.accepted >= 12


@pytest.mark.parametrize("drafter", ["half", "random", "all"])
def test_f9_long_angles_from_the_first_pass_on_are_accelerated(drafter):
    """F9: beyond its original length a longrope has fixed angles again."""
    model, ids = _roped(LONG), prompt(40, repeat=4)
    text = model.generate(ids, max_new_tokens=30, do_sample=False)[0].tolist()
    settings = {"window": (5, 3, 4)} | ALL[drafter](text)
    check(model, ids, settings=settings, max_new_tokens=30, do_sample=False)


@pytest.mark.parametrize(
    ("rope", "length", "batch"), [(LONG, 20, 1), (LONG, 20, 2), (DYNAMIC, 20, 2), (DYNAMIC, 40, 1)]
)
def test_f9_a_rope_whose_angles_may_change_on_the_way_runs_plain(rope, length, batch):
    """F9: all sequences of a batch share the angles of a pass."""
    model = _roped(rope)
    # The library keeps the angles of the last call where a prompt is longer than the limit.
    untouched = copy.deepcopy(model)
    ids = torch.cat([prompt(length, seed=seed, repeat=4) for seed in range(batch)])
    plain = untouched.generate(ids, max_new_tokens=40, do_sample=False)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="changes its angles behind 32 positions"),
    ):
        fast = model.generate(ids, max_new_tokens=40, do_sample=False)
    assert fast.tolist() == plain.tolist()


@pytest.mark.parametrize("rope", ["default", "longrope"])
@pytest.mark.parametrize("length", [10, 16, 17, 24])
def test_f9_a_model_that_reads_a_long_prompt_into_a_cache_of_its_own(rope, length):
    """Phi-3 gave other ids than plain: it passes no cache in beyond its original length."""
    values = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "original_max_position_embeddings": 16,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    if rope == "longrope":
        values["rope_parameters"] = {k: v for k, v in LONG.items() if "original" not in k}
    torch.manual_seed(0)
    model = _finish(transformers.Phi3ForCausalLM(transformers.Phi3Config(**values)))
    ids = prompt(length, repeat=4)
    strict = length > 16 or (rope == "default" and cache_dropped_behind(model.config) is None)
    plain = model.generate(ids, max_new_tokens=20, do_sample=False, return_dict_in_generate=True)
    with warnings.catch_warnings(), lookahead.accelerate(model, strict=strict):
        warnings.simplefilter("ignore", lookahead.LookaheadWarning)
        fast = model.generate(ids, max_new_tokens=20, do_sample=False, return_dict_in_generate=True)
        assert lookahead.last_stats(model).accelerated == strict
    assert fast.sequences.tolist() == plain.sequences.tolist()
    torch.testing.assert_close(cache_of(fast).layers[1].keys, cache_of(plain).layers[1].keys)


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
