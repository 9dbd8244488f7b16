"""Calls broken off anywhere, with every kind of output and cache, and calls side by side."""

from __future__ import annotations

import copy
import gc
import os
from threading import Barrier, Thread

import psutil
import pytest
import torch
from transformers import DynamicCache, StaticCache

import lookahead
from lookahead.hf import masks
from lookahead.hf.compat import COUNTS_SLOTS
from tests.cases.test_batches import ragged
from tests.drafters import Oracle
from tests.equivalence.test_caches import assert_left_as_plain
from tests.helpers import CACHE, Recorder, fresh, make_model, new_ids, prompt
from tests.oracles import assert_same_outputs

IDS = prompt(18, repeat=4)
ARGUMENTS = {"max_new_tokens": 16, "do_sample": False}
OUTPUTS = {
    "return_dict_in_generate": True,
    "output_hidden_states": True,
    "output_attentions": True,
    "output_scores": True,
}


class Counter:
    """Raises when it has been called so many times."""

    is_armed = False

    def __init__(self, error, after=5):
        self.error, self.left = error, after

    def when_armed(self, *_):
        """Be a hook that is on a model from the self-test on, and counts later."""
        if self.is_armed:
            self()

    def __call__(self):
        self.left -= 1
        if self.left < 0:
            raise self.error("stop here")


class Streamer(Recorder):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def put(self, value):
        super().put(value)
        self.count()


class Drafter:
    def __init__(self, count):
        self.count = count

    def draft(self, context, max_nodes):
        self.count()


def _arguments(where, count):
    if where == "streamer":
        return {"streamer": Streamer(count)}
    if where == "processor":
        return {"logits_processor": [lambda ids, scores: count() or scores]}
    if where == "criterion":
        return {"stopping_criteria": [lambda ids, scores: count() or torch.tensor([False])]}
    if where == "prefix-fn":
        return {"prefix_allowed_tokens_fn": lambda row, ids: count() or [5, 6, 7]}
    return {}


def _state(model):
    """Everything that hangs on the modules of a model, but for what the session keeps."""
    hidden = "_lookahead_session"
    return {
        name: {key: id(value) for key, value in vars(module).items() if key != hidden}
        | {"hooks": (dict(module._forward_hooks), dict(module._forward_pre_hooks))}
        for name, module in model.named_modules()
    }


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
@pytest.mark.parametrize("outputs", [False, True])
@pytest.mark.parametrize(
    "where", ["streamer", "processor", "criterion", "prefix-fn", "drafter", "layer"]
)
def test_a_call_that_is_broken_off_leaves_nothing_behind(where, outputs, kind):
    if COUNTS_SLOTS and outputs and where == "layer":
        pytest.skip("before transformers 5.4 it leaves what collects outputs behind, in plain too")
    model = fresh("gemma3", attention="eager")
    expected = model.generate(IDS, **ARGUMENTS, **(OUTPUTS if outputs else {}))
    cache = kind(config=model.config, **({"max_cache_len": 60} if kind is StaticCache else {}))
    with torch.no_grad():
        model(input_ids=IDS[:, :9], **{CACHE: cache})
    before, config = copy.deepcopy(cache), model.generation_config.to_dict()
    count = Counter(KeyboardInterrupt, 2 if where in {"drafter", "layer"} else 5)
    drafters = (Drafter(count),) if where == "drafter" else ()
    options = _arguments(where, count) | (OUTPUTS if outputs else {})
    with lookahead.accelerate(model, nodes=8, strict=True, drafters=drafters):
        hook = None
        if where == "layer":
            hook = model.model.layers[2].register_forward_pre_hook(count.when_armed)
        if not drafters:
            model.generate(IDS, **ARGUMENTS)  # the self-test is behind us
        count.is_armed = True
        state = _state(model)
        with pytest.raises(KeyboardInterrupt, match="stop here"):
            model.generate(IDS, **{CACHE: cache}, **options, **ARGUMENTS)
        assert masks._active.get() is None
        assert _state(model) == state
        assert_left_as_plain(cache, before)
        assert model.generation_config.to_dict() == config
        if hook is not None:
            hook.remove()
    with lookahead.accelerate(model, nodes=8, strict=True):
        found = model.generate(IDS, **ARGUMENTS, **(OUTPUTS if outputs else {}))
    if outputs:
        assert_same_outputs(found, expected, ["hidden_states", "attentions"])
        found, expected = found.sequences, expected.sequences
    assert found.tolist() == expected.tolist()
    assert "generate" not in vars(model)


@pytest.mark.parametrize("where", ["streamer", "layer"])
def test_a_batch_that_is_broken_off_leaves_nothing_behind(where):
    model = fresh("mistral")
    ids, mask = ragged((5, 19, 11))
    options = ARGUMENTS | {"attention_mask": mask}
    expected = model.generate(ids, **options).tolist()
    cache = DynamicCache(config=model.config)
    before, count = copy.deepcopy(cache), Counter(KeyboardInterrupt, 4)
    with lookahead.accelerate(model, nodes=8, strict=True):
        hook = None
        if where == "layer":
            hook = model.model.layers[1].register_forward_pre_hook(count.when_armed)
        model.generate(ids, **options)
        count.is_armed = True
        state = _state(model)
        with pytest.raises(KeyboardInterrupt):
            model.generate(ids, **{CACHE: cache}, **_arguments(where, count), **options)
        assert _state(model) == state
        assert_left_as_plain(cache, before)
        if hook is not None:
            hook.remove()
        assert model.generate(ids, **{CACHE: cache}, **options).tolist() == expected


def test_an_error_while_padding_is_read_leaves_nothing_behind():
    model = fresh()
    ids, mask = ragged((5, 19, 11))
    options = ARGUMENTS | {"attention_mask": mask, "return_dict_in_generate": True}
    end = int(model.generate(ids, **options).sequences[0, 21])
    expected = model.generate(ids, eos_token_id=end, **options).sequences.tolist()
    passes = []
    with lookahead.accelerate(model, nodes=8, strict=True):
        hook = model.register_forward_pre_hook(lambda *_: passes.append(1))
        model.generate(ids, eos_token_id=end, **options)
        passes.clear()  # those of the self-test among them
        lookahead.forget(model)
        model.generate(ids, eos_token_id=end, **options)
        hook.remove()
        assert lookahead.last_stats(model).passes == len(passes) - 1
        alone = {name: value for name, value in options.items() if name[:6] != "return"}
        lookahead.forget(model)
        model.generate(ids, eos_token_id=end, **alone)
        assert lookahead.last_stats(model).passes < len(passes) - 1  # that read padding last
        lookahead.forget(model)
        count = Counter(RuntimeError, len(passes) - 1)
        hook = model.register_forward_pre_hook(count.when_armed)
        model.generate(ids, eos_token_id=end, **options)
        lookahead.forget(model)
        count.is_armed = True
        with pytest.raises(RuntimeError, match="stop here"):
            model.generate(ids, eos_token_id=end, **options)
        hook.remove()
        found = model.generate(ids, eos_token_id=end, **options).sequences
    assert found.tolist() == expected


@pytest.mark.skipif(
    COUNTS_SLOTS,
    reason="before 5.4 outputs of one thread went to another, in plain too",
)
def test_threads_with_different_options_on_one_model_do_not_meet():
    model = fresh("gemma3", attention="eager")
    text = IDS[0].tolist() + new_ids(model, IDS)
    batch, mask = ragged((5, 12))
    calls = [
        (IDS, OUTPUTS),
        (IDS, {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}),
        (batch, {"attention_mask": mask, "return_dict_in_generate": True}),
        (prompt(25, seed=6, repeat=7), {"cache_implementation": "static"}),
        (IDS, {"use_cache": False}),
    ]
    plain = [model.generate(ids, **ARGUMENTS, **options) for ids, options in calls]
    found, failed, barrier = [[] for _ in calls], [], Barrier(len(calls))

    def work(which):
        ids, options = calls[which]
        try:
            for _ in range(4):
                barrier.wait(timeout=120)
                found[which].append(model.generate(ids, **ARGUMENTS, **options))
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    with lookahead.accelerate(model, nodes=8, drafters=(lambda: Oracle(text),)):
        with pytest.warns(lookahead.LookaheadWarning, match="use_cache=False"):
            model.generate(IDS, max_new_tokens=2, use_cache=False)
        threads = [Thread(target=work, args=(i,)) for i in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    for results, right in zip(found, plain, strict=True):
        assert len(results) == 4
        for one in results:
            if isinstance(right, torch.Tensor):
                assert one.tolist() == right.tolist()
            else:
                assert one.sequences.tolist() == right.sequences.tolist()
    for one in found[0]:
        assert_same_outputs(one, plain[0], ["hidden_states", "attentions"])


@pytest.mark.parametrize("way", ["outputs", "static", "batch", "broken-off"])
def test_two_hundred_calls_of_every_kind_leave_memory_flat(way):
    model = make_model("llama", num_hidden_layers=1, attention="eager")
    batch, mask = ragged((5, 12))
    process = psutil.Process(os.getpid())

    def call():
        if way == "outputs":
            model.generate(IDS, max_new_tokens=6, **OUTPUTS)
        elif way == "static":
            model.generate(IDS, max_new_tokens=6, cache_implementation="static")
        elif way == "batch":
            options = {"attention_mask": mask, "streamer": Recorder()}
            model.generate(batch, max_new_tokens=6, return_dict_in_generate=True, **options)
        else:
            streamer = Streamer(Counter(KeyboardInterrupt, 3))
            with pytest.raises(KeyboardInterrupt):
                model.generate(IDS, max_new_tokens=6, streamer=streamer)

    lookahead.accelerate(model, nodes=4, strict=True)
    for number in range(200):
        call()
        if number == 50:
            gc.collect()
            before = process.memory_info().rss
    gc.collect()
    assert process.memory_info().rss < 1.05 * before
