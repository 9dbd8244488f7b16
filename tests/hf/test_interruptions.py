"""Threads, exceptions and Ctrl-C: what is left behind is what was there before."""

from __future__ import annotations

import copy
import gc
import os
from threading import Barrier, Thread

import psutil
import pytest
import torch
from transformers import DynamicCache

import lookahead
from lookahead.hf import masks
from tests.helpers import CACHE, FAMILIES, Recorder, fresh, make_model, prompt
from tests.oracles import assert_same_cache

IDS = prompt(18, repeat=4)
ARGUMENTS = {"max_new_tokens": 16, "do_sample": False}


@pytest.mark.parametrize("family", FAMILIES)
def test_two_threads_on_one_model_do_not_meet(family):
    model = fresh(family)
    prompts = [prompt(18, seed=5, repeat=4), prompt(25, seed=6, repeat=7)]
    plain = [model.generate(ids, **ARGUMENTS).tolist() for ids in prompts]
    found = [[], []]
    failed = []
    barrier = Barrier(2)

    def work(which):
        try:
            for _ in range(10):
                barrier.wait(timeout=60)
                found[which].append(model.generate(prompts[which], **ARGUMENTS).tolist())
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    with lookahead.accelerate(model, nodes=8, strict=True):
        threads = [Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert found == [[plain[0]] * 10, [plain[1]] * 10]


def test_an_accelerated_and_a_plain_model_in_two_threads_do_not_meet():
    fast, plain = fresh("mistral"), fresh("mistral")
    expected = plain.generate(IDS, **ARGUMENTS).tolist()
    found = []

    def work():
        found.extend(plain.generate(IDS, **ARGUMENTS).tolist() for _ in range(10))

    with lookahead.accelerate(fast, nodes=8, strict=True):
        thread = Thread(target=work)
        thread.start()
        found.extend(fast.generate(IDS, **ARGUMENTS).tolist() for _ in range(10))
        thread.join()
    assert found == [expected] * 20


def _raiser(error, after):
    left = [after]

    def count():
        left[0] -= 1
        if left[0] < 0:
            raise error("stop here")

    return count


@pytest.mark.parametrize("where", ["streamer", "streamer-prompt", "processor", "criterion"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_exception_leaves_everything_as_it_was(where, error):
    model = fresh()
    expected = model.generate(IDS, **ARGUMENTS).tolist()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=IDS[:, :9], **{CACHE: cache})
    before = copy.deepcopy(cache)
    config = model.generation_config.to_dict()
    modules = {name: dict(vars(m)) for name, m in model.named_modules()}
    count = _raiser(error, 0 if where == "streamer-prompt" else 5)

    class Streamer(Recorder):
        def put(self, value):
            super().put(value)
            count()

    options = {
        "streamer": lambda: {"streamer": Streamer()},
        "streamer-prompt": lambda: {"streamer": Streamer()},
        "processor": lambda: {"logits_processor": [lambda ids, scores: count() or scores]},
        "criterion": lambda: {
            "stopping_criteria": [lambda ids, scores, **k: count() or torch.tensor([False])]
        },
    }[where]()
    with lookahead.accelerate(model, nodes=8, strict=True):
        with pytest.raises(error, match="stop here"):
            model.generate(IDS, **{CACHE: cache}, **options, **ARGUMENTS)
        assert masks._active.get() is None
        assert_same_cache(cache, before)
        assert model.generation_config.to_dict() == config
        assert model.generate(IDS, **ARGUMENTS).tolist() == expected
    for name, module in model.named_modules():
        found = {k: v for k, v in vars(module).items() if k != "_lookahead_session"}
        assert found.keys() == modules[name].keys()
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_an_exception_inside_the_model_comes_out_and_leaves_no_mask_behind():
    model = fresh()
    expected = model.generate(IDS, **ARGUMENTS).tolist()
    with lookahead.accelerate(model, nodes=8, strict=True):
        armed = []

        def fail(_module, _args):
            if armed and masks._active.get() is not None:
                raise RuntimeError("inside")

        hook = model.model.layers[1].mlp.register_forward_pre_hook(fail)
        model.generate(IDS, **ARGUMENTS)  # the self-test is behind us
        armed.append(True)
        with pytest.raises(RuntimeError, match="inside"):
            model.generate(IDS, **ARGUMENTS)
        hook.remove()
        assert masks._active.get() is None
        assert model.generate(IDS, **ARGUMENTS).tolist() == expected


def test_a_block_may_be_left_by_ctrl_c():
    model = fresh()
    with pytest.raises(KeyboardInterrupt), lookahead.accelerate(model):
        raise KeyboardInterrupt
    assert "generate" not in vars(model)


def test_a_drafter_cannot_swallow_ctrl_c():
    class Stopped:
        def draft(self, context, max_nodes):
            raise KeyboardInterrupt

    model = fresh()
    with (
        lookahead.accelerate(model, drafters=(Stopped(),), nodes=4),
        pytest.raises(KeyboardInterrupt),
    ):
        model.generate(IDS, **ARGUMENTS)


@pytest.mark.parametrize("way", ["in-place", "block", "custom_generate"])
def test_two_hundred_calls_leave_memory_flat(way):
    model = make_model("llama", num_hidden_layers=1)
    process = psutil.Process(os.getpid())

    def call():
        if way == "block":
            with lookahead.accelerate(model, nodes=4):
                return model.generate(IDS, max_new_tokens=6, do_sample=True)
        if way == "custom_generate":
            return model.generate(IDS, max_new_tokens=6, custom_generate=lookahead.generate)
        return model.generate(IDS, max_new_tokens=6, do_sample=True)

    if way == "in-place":
        lookahead.accelerate(model, nodes=4)
    for number in range(200):
        call()
        if number == 50:
            gc.collect()
            before = process.memory_info().rss
    gc.collect()
    assert process.memory_info().rss < 1.03 * before


def test_applying_many_times_keeps_nothing_of_the_earlier_ones():
    import weakref

    model = fresh()
    seen = []
    for _ in range(20):
        lookahead.accelerate(model)
        seen.append(weakref.ref(model.generate))
    gc.collect()
    assert sum(ref() is not None for ref in seen) <= 2
    lookahead.restore(model)
    assert "generate" not in vars(model)


def test_a_model_that_is_dropped_is_freed():
    import weakref

    model = fresh()
    lookahead.accelerate(model)
    model.generate(IDS, **ARGUMENTS)
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None
