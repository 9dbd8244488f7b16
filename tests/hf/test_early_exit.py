"""Whole calls that draft by early exit alone: the answer is that of plain generation."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from transformers import DynamicCache

import lookahead
from lookahead.hf.split import LayerSplit
from tests.exits import only_early_exit
from tests.families import EXIT_FAMILIES, make_family
from tests.helpers import (
    CACHE,
    Recorder,
    prompt,
)
from tests.oracles import assert_cache_from_scratch

IDS = prompt(40, repeat=6)
ARGUMENTS = {"max_new_tokens": 40, "do_sample": False}


def _check(model, layer, ids=IDS, **kwargs):
    arguments = ARGUMENTS | kwargs
    torch.manual_seed(0)
    plain = model.generate(ids, **arguments)
    before = [dict(vars(m)) for m in model.modules()]
    with (
        only_early_exit(model, layer) as (made, looks),
        lookahead.accelerate(model, strict=True, nodes=16),
    ):
        torch.manual_seed(0)
        fast = model.generate(ids, **arguments)
        stats = lookahead.last_stats(model)
    assert fast.tolist() == plain.tolist()
    assert looks.peeks
    for module, known in zip(model.modules(), before, strict=True):
        assert {k for k in vars(module) if k != "_lookahead_session"} == known.keys()
    return made[0], stats


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("family", EXIT_FAMILIES)
def test_the_answer_is_that_of_plain_generation_at_every_exit_layer(family, layer):
    """P1."""
    made, stats = _check(make_family(family), layer)
    assert made.offered > 5
    assert stats.passes <= 39


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_the_cache_and_the_stream_are_those_of_plain_generation(family):
    model = make_family(family, attention="sdpa")
    cache, streamer = DynamicCache(config=model.config), Recorder()
    plain = model.generate(IDS, **ARGUMENTS)
    with only_early_exit(model, 2), lookahead.accelerate(model, strict=True, nodes=16):
        fast = model.generate(IDS, **{CACHE: cache}, streamer=streamer, **ARGUMENTS)
    assert fast.tolist() == plain.tolist()
    assert streamer.ids == fast[0].tolist()
    assert_cache_from_scratch(model, cache, fast[0].tolist())


def test_the_same_seed_gives_the_same_sample():
    _check(make_family("llama"), 2, do_sample=True, temperature=0.9, top_k=0)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_padding_on_the_left_makes_no_difference(family):
    ids = torch.cat([torch.zeros((1, 5), dtype=torch.int64), IDS], dim=1)
    mask = (torch.arange(ids.shape[1]) >= 5).long()[None]
    _check(make_family(family), 2, ids, attention_mask=mask)


def test_a_batch_is_drafted_for_by_others():
    model = make_family("llama")
    ids = torch.cat([IDS, prompt(40, seed=9)])
    plain = model.generate(ids, **ARGUMENTS)
    with (
        only_early_exit(model, 2) as (_, looks),
        lookahead.accelerate(model, strict=True, nodes=16),
    ):
        assert model.generate(ids, **ARGUMENTS).tolist() == plain.tolist()
    assert not looks.peeks


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt2", "opt"])
def test_below_a_last_layer_that_does_nothing_every_guess_is_accepted(family):
    """P1: exit at L-1 with an identity last layer accepts 100 %."""
    model = make_family(family)
    last = LayerSplit(model)._layers[-1]
    for name, parameter in last.named_parameters():
        # What a layer adds to its input ends in one of these; norms behind them scale zero.
        if any(part in name for part in ("o_proj", "down_proj", "c_proj", "out_proj", "fc2")):
            parameter.data.zero_()
    if family == "gemma2":
        last.post_attention_layernorm.weight.data.zero_()
    norm = _final_norm(model)
    with (
        only_early_exit(model, 3, lens=norm, rounds=4, width=1),
        lookahead.accelerate(model, strict=True, nodes=8),
        torch.no_grad(),
    ):
        fast = model.generate(IDS, **ARGUMENTS)
        stats = lookahead.last_stats(model)
    assert fast.tolist() == model.generate(IDS, **ARGUMENTS).tolist()
    assert max(step.drafted for step in stats.steps) == 4
    assert all(step.accepted == step.drafted for step in stats.steps)


def _final_norm(model):
    for decoder in (model.get_decoder(), model.base_model):
        for name in ("norm", "ln_f", "final_layer_norm"):
            if hasattr(decoder, name):
                return getattr(decoder, name)
    raise AssertionError("no final norm")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_an_exception_in_a_look_leaves_the_model_as_it_was(error, after):
    model = make_family("llama")
    plain = model.generate(IDS, **ARGUMENTS).tolist()
    before = [dict(vars(m)) for m in model.modules()]
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(IDS[:, :9], **{CACHE: cache})
    given = copy.deepcopy(cache)
    with (
        only_early_exit(model, 2) as (_, looks),
        lookahead.accelerate(model, strict=True, nodes=16),
    ):

        def fail(module, args):
            if len(looks.peeks) > after:
                raise error("stop here")

        hook = model.model.layers[1].mlp.register_forward_pre_hook(fail)
        with pytest.raises(error, match="stop here"):
            model.generate(IDS, **{CACHE: cache}, **ARGUMENTS)
        hook.remove()
        assert [a.keys.shape for a in cache.layers] == [a.keys.shape for a in given.layers]
        for module, known in zip(model.modules(), before, strict=True):
            assert {k for k in vars(module) if k not in ("_lookahead_session", "generate")} == (
                known.keys()
            )
        looks.peeks.clear()
        assert model.generate(IDS, **ARGUMENTS).tolist() == plain
    assert model.generate(IDS, **ARGUMENTS).tolist() == plain


def test_plain_calls_in_another_thread_give_what_they_always_give():
    model = make_family("llama")
    plain = model.generate(IDS, **ARGUMENTS).tolist()
    ordinary = type(model).generate
    stop, found, failed = threading.Event(), [], []

    def work():
        try:
            while not stop.is_set():
                found.append(ordinary(model, IDS, **ARGUMENTS).tolist())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    with (
        only_early_exit(model, 2) as (_, looks),
        lookahead.accelerate(model, strict=True, nodes=16),
    ):
        thread.start()
        fast = [model.generate(IDS, **ARGUMENTS).tolist() for _ in range(5)]
        stop.set()
        thread.join()
    assert not failed
    assert looks.peeks
    assert fast == [plain] * 5
    assert found
    assert all(ids == plain for ids in found)
    assert not any("forward" in vars(m) for m in model.modules())


def test_adapted_weights_are_used():
    """O5: early exit looks with the adapter that is on."""
    peft = pytest.importorskip("peft")
    model = make_family("llama")
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", lora_alpha=64
    )
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.4)
    inner = adapted.get_base_model()

    def all_ways():
        found = [adapted.generate(input_ids=IDS, **ARGUMENTS).tolist()]
        with adapted.disable_adapter():
            found.append(adapted.generate(input_ids=IDS, **ARGUMENTS).tolist())
        return found

    plain = all_ways()
    assert plain[0] != plain[1]
    seen = []
    with (
        only_early_exit(inner, 2) as (_, looks),
        lookahead.accelerate(adapted, strict=True, nodes=16),
    ):
        peek = looks.peek

        def looked(slot, tree, nodes, exit_layer):
            left = peek(slot, tree, nodes, exit_layer)
            if looks.target._cache.lengths == [IDS.shape[1]] and nodes == [0]:
                seen.append(left[0].clone())
            return left

        looks.peek = looked
        assert all_ways() == plain
    split = LayerSplit(inner)
    with torch.no_grad(), split.watching([2]) as left:
        inner(torch.tensor(plain[0])[:, : IDS.shape[1] + 1])
        with_adapter = left[2][0, -1]
        with adapted.disable_adapter():
            inner(torch.tensor(plain[1])[:, : IDS.shape[1] + 1])
        without = left[2][0, -1]
    torch.testing.assert_close(torch.stack(seen), torch.stack([with_adapter, without]))
