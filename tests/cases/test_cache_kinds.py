"""Kind E: kinds of cache and of layers."""

from __future__ import annotations

import pytest
import transformers
from transformers import DynamicCache, StaticCache

import lookahead
from tests.drafters import ALL, Oracle
from tests.helpers import (
    CACHE,
    WINDOW,
    cache_of,
    check,
    fresh,
    make_model,
    make_moshi,
    new_ids,
    prompt,
    shared,
    skip_if_earlier,
)
from tests.oracles import assert_cache_from_scratch


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.parametrize("length", [5, 20])
@pytest.mark.parametrize("drafter", ["all", "oracle-20", "half", "none"])
def test_e1_a_sliding_window_is_passed_without_a_difference(drafter, length, family, attention):
    """E1: at the window eager failed on a shape and SDPA gave wrong text without a word."""
    model, ids = shared(family, attention=attention), prompt(length)
    text = ids[0].tolist() + new_ids(model, ids, 40)
    runs = check(
        model,
        ids,
        settings=ALL[drafter](text) | {"nodes": 12},
        max_new_tokens=40,
        do_sample=False,
        return_dict_in_generate=True,
    )
    assert_cache_from_scratch(model, cache_of(runs.fast), runs.fast.sequences[0].tolist())


@pytest.mark.parametrize("window", [2, 3, WINDOW, 300])
@pytest.mark.parametrize("length", [1, 6, 30])
def test_e2_any_size_of_window_gives_the_same(length, window):
    """E1, with windows smaller than a guess and larger than the text."""
    model, ids = make_model("mistral", sliding_window=window), prompt(length)
    text = ids[0].tolist() + new_ids(model, ids, 110)
    settings = {"drafters": (Oracle(text, 12, 7),), "nodes": 16}
    check(model, ids, settings=settings, max_new_tokens=110, do_sample=False)


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_e3_all_wrong_guesses_are_rolled_back_after_the_window_wraps(family):
    """E3: once the window had wrapped, roll-back quietly did nothing."""
    model, ids = shared(family), prompt(6)
    text = ids[0].tolist() + new_ids(model, ids, 30)
    settings = {"sources": (), "drafters": (Oracle(text, 6, 0),)}
    runs = check(
        model,
        ids,
        settings=settings,
        max_new_tokens=30,
        do_sample=False,
        return_dict_in_generate=True,
    )
    assert runs.stats.accepted == 0
    assert runs.stats.drafted > 30
    assert_cache_from_scratch(model, cache_of(runs.fast), runs.fast.sequences[0].tolist())


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("how", ["implementation", "object"])
def test_e5_a_static_cache_gives_what_plain_gives(how, family):
    """E5: cropping made a shorter cache, which a static cache does not bear."""
    model, ids = shared(family), prompt(20, repeat=4)

    def make():
        if how == "implementation":
            return {"cache_implementation": "static"}
        return {CACHE: StaticCache(config=model.config, max_cache_len=60)}

    check(model, ids, make=make, max_new_tokens=30, do_sample=False)


def test_e6_a_static_cache_too_small_for_the_answer_is_left_to_the_library():
    """E5: what does not fit fails as in plain, and the reason names the cache."""
    model = shared()
    cache = StaticCache(config=model.config, max_cache_len=24)
    with (
        lookahead.accelerate(model, strict=True),
        pytest.raises(lookahead.UnsupportedError, match="static cache may be too small"),
    ):
        model.generate(prompt(20), max_new_tokens=30, **{CACHE: cache})


def _lfm2():
    config = transformers.Lfm2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        conv_L_cache=3,
        layer_types=["conv", "full_attention"],
        block_auto_adjust_ff_dim=False,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.Lfm2ForCausalLM(config).eval()


def test_e7_states_of_a_hybrid_are_taken_back():
    """E7: a conv and attention hybrid was not marked stateful and diverged without a word."""
    model, ids = _lfm2(), prompt(12, repeat=4)
    text = ids[0].tolist() + new_ids(model, ids)
    for wrong_at in (None, 0, 2):
        drafter = Oracle(text, 4, wrong_at)
        runs = check(model, ids, settings={"drafters": (drafter,)}, max_new_tokens=24)
        assert runs.stats.shape == "chain"


def test_e7_a_model_whose_state_cannot_be_taken_back_runs_plain_with_a_reason():
    """E7, of the kind that reads one token at a time."""
    model = fresh("mamba")
    ids = prompt(12, repeat=4)
    plain = model.generate(ids, max_new_tokens=8, do_sample=False)
    with lookahead.accelerate(model), pytest.warns(lookahead.LookaheadWarning, match="runs plain"):
        fast = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert fast.tolist() == plain.tolist()
    assert not lookahead.last_stats(model) or not lookahead.last_stats(model).accelerated


def test_e9_the_message_names_the_layer_at_fault():
    """E9: the message says which layer cannot be taken back."""
    model, ids = shared(), prompt(12)
    cache = DynamicCache(config=model.config)
    kind = type(cache.layers[1])
    cache.layers[1] = type("OddLayer", (kind,), {"update": lambda self, k, v: (k, v)})()
    with (
        lookahead.accelerate(model, strict=True),
        pytest.raises(lookahead.UnsupportedError, match="layer 1 of the cache is a OddLayer"),
    ):
        model.generate(ids, max_new_tokens=4, **{CACHE: cache})


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [3, 24, 40])
@pytest.mark.parametrize("nodes", [0, 16])
def test_e1_a_window_that_only_the_cache_keeps_is_kept(attention, length, nodes):
    """Moshi makes no mask for its window: in plain decoding its cache holds no more than that."""
    model = make_moshi(16, attention=attention)
    ids = prompt(length, repeat=min(length // 4, 6)) % 97
    plain = model.generate(ids, max_new_tokens=40, do_sample=False)
    with lookahead.accelerate(model, nodes=nodes, strict=True), skip_if_earlier():
        fast = model.generate(ids, max_new_tokens=40, do_sample=False)
    assert fast.tolist() == plain.tolist()
