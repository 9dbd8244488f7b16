"""Fused layers: the same ids, what they were recorded with checked, and the model left as it was.

Most tests run segments as the source that they are; a few compile them for real.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from threading import Thread

import pytest
import torch
from torch import nn

import lookahead
from lookahead.hf import fusing, libraries
from lookahead.hf.fused import NUM_TRIALS, is_fused
from lookahead.hf.libraries import Builder, find
from lookahead.hf.recording import Count, recording
from lookahead.hf.segments import Segment
from lookahead.hf.target import HFTarget
from tests.cases.test_batches import ragged
from tests.helpers import FAMILIES, Recorder, check, fresh, new_ids, prompt, shared
from tests.zoo.fused import interpreted

IDS = prompt(18, repeat=4)
GREEDY = {"max_new_tokens": 16, "do_sample": False}
ON = {"fuse": True, "nodes": 8}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where libraries are, empty at first."""
    monkeypatch.setattr(libraries, "default_folder", lambda: tmp_path / "segments")
    return tmp_path / "segments"


@pytest.fixture
def _interpreted(folder, monkeypatch):
    monkeypatch.setattr(libraries, "find", interpreted)


def owner(model):
    return vars(model)["_lookahead_session"].fused[1]


def fused_ids(model, num=16, **settings):
    """Return the ids of an accelerated run, the layers of which must have been fused."""
    with lookahead.accelerate(model, **(ON | {"strict": True} | settings)):
        ids = new_ids(model, IDS, num)
        assert lookahead.last_stats(model).fused, lookahead.last_stats(model).notes
    assert owner(model).fault is None
    return ids


def notes(model, **settings):
    """Return the notes of a run that must not have been fused."""
    expected = new_ids(model, IDS, 8)
    with lookahead.accelerate(model, **(ON | {"strict": True} | settings)):
        assert new_ids(model, IDS, 8) == expected
        stats = lookahead.last_stats(model)
    return " ".join(stats.notes)


@pytest.mark.usefixtures("_interpreted")
class TestWithoutACompiler:
    def test_what_a_trial_takes_is_no_part_of_a_pass(self, monkeypatch):
        """The cost curve would take passes that run both ways for slow ones."""
        aside, seconds = HFTarget.seconds_aside.fget, []
        monkeypatch.setattr(
            HFTarget, "seconds_aside", property(lambda t: seconds.append(aside(t)) or seconds[-1])
        )
        fused_ids(fresh(), 24)
        assert all(second > 0 for second in seconds[:NUM_TRIALS])
        assert not any(seconds[NUM_TRIALS:-2])  # the last passes may have one row

    @pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
    @pytest.mark.parametrize("sampled", [False, True])
    def test_ids_are_those_of_plain_generation(self, family, sampled):
        model = shared(family)
        runs = check(model, IDS, max_new_tokens=24, do_sample=sampled, settings=ON)
        assert runs.stats.fused
        assert owner(model).fault is None
        lookahead.restore(model)

    def test_layers_of_one_kind_have_one_function(self):
        model = fresh("llama", num_hidden_layers=5)
        fused_ids(model)
        assert len({id(layer.written) for layer in owner(model)._layers}) == 1
        at = [layer._cache_layers for layer in owner(model)._layers]
        assert at == [(index,) for index in range(5)]

    def test_layers_that_differ_in_a_setting_have_functions_of_their_own(self):
        model = fresh("llama", num_hidden_layers=3)
        model.model.layers[1].input_layernorm.variance_epsilon = 0.5
        assert fused_ids(model) == new_ids(copy.deepcopy(model), IDS, 16)
        assert len({id(layer.written) for layer in owner(model)._layers}) == 2

    def test_a_layer_that_goes_by_its_own_place_is_recorded_itself(self):
        model = shared("gpt2", scale_attn_by_inverse_layer_idx=True, num_hidden_layers=3)
        check(model, IDS, settings=ON, **GREEDY)
        assert owner(model).fault is None
        # Before transformers 5 this attention leaves the setting out.
        other = shared("gpt2", num_hidden_layers=3)
        num_kinds = 1 if torch.equal(model(IDS).logits, other(IDS).logits) else 3
        assert len({id(layer.written) for layer in owner(model)._layers}) == num_kinds
        lookahead.restore(model)

    def test_a_padded_batch_gives_the_ids_of_plain_generation(self):
        ids, mask = ragged([5, 18, 11])
        model = fresh()
        runs = check(model, ids, attention_mask=mask, settings=ON, **GREEDY)
        assert runs.stats.fused
        trial = owner(model)._trials[False]
        assert trial.is_over, "no pass of the batch was run by fused layers"

    def test_one_row_alone_is_fused_too(self):
        model = fresh()
        assert fused_ids(model, nodes=0) == new_ids(fresh(), IDS, 16)
        assert owner(model)._trials[True].is_over

    def test_early_exit_and_window_go_through_fused_layers(self):
        model = fresh("llama", num_hidden_layers=4)
        settings = {"sources": ("ngrams", "exit"), "exit_layer": 2, "window": (3, 3, 3)}
        check(model, IDS, settings=ON | settings, max_new_tokens=24, do_sample=False)
        assert owner(model).fault is None

    def test_a_changed_weight_is_used(self):
        model = fresh()
        before = fused_ids(model)
        model.model.layers[0].input_layernorm.weight = nn.Parameter(torch.randn(64))
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight.mul_(3)
        expected = new_ids(copy.deepcopy(model), IDS, 16)
        assert expected != before
        assert fused_ids(model) == expected

    def test_a_changed_setting_is_noticed(self):
        model = fresh()
        fused_ids(model)
        first = owner(model)
        for layer in model.model.layers:
            layer.input_layernorm.variance_epsilon = 2.0
        expected = new_ids(copy.deepcopy(model), IDS, 16)
        assert fused_ids(model) == expected
        assert owner(model) is not first

    def test_the_prompt_is_read_by_the_layers_as_they_are(self, monkeypatch):
        model, seen = fresh(), []
        norm = model.model.layers[0].input_layernorm
        real = type(norm).forward

        def counted(self, hidden):
            if self is norm:
                seen.append(hidden.shape[1])
            return real(self, hidden)

        monkeypatch.setattr(type(norm), "forward", counted)
        with lookahead.accelerate(model, **ON):
            model.generate(IDS, **GREEDY)
            seen.clear()
            model.generate(prompt(30), **GREEDY)
        assert seen == [30]

    def test_hooks_inside_of_a_layer_are_honoured(self):
        model, seen = fresh(), []
        hook = model.model.layers[0].mlp.register_forward_hook(lambda *_: seen.append(1))
        assert "a part of a layer has a hook" in notes(model)
        assert seen
        hook.remove()
        fused_ids(model)

    def test_hooks_on_layers_and_matrices_are_called(self):
        model, seen = fresh(), []
        fused_ids(model)
        model.model.layers[0].register_forward_hook(lambda *_: seen.append("layer"))
        model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: seen.append("matrix"))
        with lookahead.accelerate(model, **ON):
            model.generate(IDS, **GREEDY)
            passes = lookahead.last_stats(model).passes
        assert seen.count("layer") >= passes
        assert seen.count("matrix") >= passes

    def test_a_layer_that_gives_other_numbers_is_found_out(self, monkeypatch):
        def wrong(segment, folder=None):
            run = interpreted(segment)
            return lambda tensors: [tensor * 1.01 for tensor in run(tensors)]

        monkeypatch.setattr(libraries, "find", wrong)
        model = fresh()
        runs = check(model, IDS, settings=ON, **GREEDY)
        assert owner(model).fault == "a fused layer gives other numbers than the layer itself"
        assert runs.stats.accelerated
        assert "other numbers" in notes(model)

    def test_a_layer_that_raises_is_found_out(self, monkeypatch):
        def broken(segment, folder=None):
            def run(tensors):
                raise RuntimeError("no such kernel")

            return run

        monkeypatch.setattr(libraries, "find", broken)
        model = fresh()
        check(model, IDS, settings=ON, **GREEDY)
        assert owner(model).fault == "a fused layer raised RuntimeError: no such kernel"

    def test_where_it_is_no_faster_the_layers_run_as_they_are(self, monkeypatch):
        monkeypatch.setattr("lookahead.hf.fused._Trial.has_paid", False)
        model = fresh("llama", hidden_size=96, intermediate_size=200)
        monkeypatch.setattr(fusing, "FEWEST_BYTES", 0)
        monkeypatch.setattr(fusing, "SECONDS_BEFORE", 0)
        ran = []
        monkeypatch.setattr(
            libraries,
            "find",
            lambda segment, folder=None: lambda t: [ran.append(1), *interpreted(segment)(t)][1:],
        )
        with lookahead.accelerate(model, fuse="auto", nodes=8):
            model.generate(IDS, **GREEDY)
            assert ran, "the trial did not run"
            ran.clear()
            model.generate(IDS, **GREEDY)
        assert not ran

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_a_call_that_is_broken_off_leaves_the_layers_as_they_were(self, error):
        model, seen = fresh(), []

        class Stop(Recorder):
            def put(self, value):
                super().put(value)
                if len(self.values) == 4:
                    seen.append("forward" in vars(model.model.layers[0]))
                    raise error

        with lookahead.accelerate(model, **ON), pytest.raises(error):
            model.generate(IDS, streamer=Stop(), **GREEDY)
        assert seen == [True]
        assert not any("forward" in vars(module) for module in model.modules())
        assert not is_fused()

    def test_a_copy_made_during_a_call_is_a_model_of_its_own(self):
        model, copies = fresh(), []

        class Copy(Recorder):
            def put(self, value):
                super().put(value)
                copies.append(copy.deepcopy(model))

        with lookahead.accelerate(model, **ON):
            model.generate(IDS, streamer=Copy(), **GREEDY)
        with torch.no_grad():
            for twin in (copies[2], altered := fresh()):
                for parameter in twin.parameters():
                    parameter.mul_(1.1)
        lookahead.restore(copies[2])
        assert new_ids(copies[2], IDS) == new_ids(altered, IDS)

    def test_two_threads_on_one_model_get_the_ids_of_plain_generation(self):
        model, found = fresh(), []
        prompts = [prompt(18, seed=seed, repeat=4) for seed in range(4)]
        expected = [new_ids(model, ids, 24) for ids in prompts]
        start = threading.Barrier(2)
        with lookahead.accelerate(model, **ON):

            def work():
                start.wait()
                found.append([new_ids(model, ids, 24) for ids in prompts])

            threads = [Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert found == [expected, expected]
        assert not any("forward" in vars(module) for module in model.modules())

    def test_random_numbers_are_those_of_plain_generation(self):
        model = fresh()
        torch.manual_seed(3)
        plain = model.generate(IDS, max_new_tokens=12, do_sample=True)
        with lookahead.accelerate(model, **ON):
            torch.manual_seed(3)
            assert model.generate(IDS, max_new_tokens=12, do_sample=True).tolist() == plain.tolist()

    def test_other_attention_is_told(self):
        assert "'eager', not 'sdpa'" in notes(shared("llama", attention="eager"))


class Cond(nn.Module):
    """Parts of layers that a record cannot stand for."""

    def __init__(self, norm, how):
        super().__init__()
        self.norm, self.how = norm, how
        self.table = [torch.ones(64)]

    def forward(self, hidden):
        made = self.norm(hidden)
        if self.how == "in place":
            return made.mul_(1.0)
        if self.how == "a number":
            return made if made.sum().item() < 1e9 else -made
        if self.how == "a tensor of its own":
            return made * self.table[0]
        if self.how == "chance":
            return made + 0 * torch.rand_like(made)
        rows = made.shape[1]
        return made if rows % 4 == 3 else made + 0.0


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("in place", "changes a tensor in place"),
        ("a number", "depends on the numbers"),
        ("a tensor of its own", "neither given nor its own"),
        ("chance", "random numbers"),
        ("rows", "something else for other numbers of rows"),
    ],
)
def test_what_cannot_be_repeated_from_a_record_is_left_alone(how, why):
    model = fresh()
    layer = model.model.layers[1]
    layer.input_layernorm = Cond(layer.input_layernorm, how)
    told = notes(model)
    if how == "rows":  # 7 and 11 rows are both 3 more than a multiple of 4
        assert owner(model).fault is None or why in told
    else:
        assert why in told


@pytest.mark.usefixtures("_interpreted")
def test_a_layer_that_asks_for_the_length_of_the_text_is_left_alone():
    model = fresh()
    attention = model.model.layers[0].self_attn
    real = type(attention).forward

    class Asking(type(attention)):
        def forward(self, *args, **kwargs):
            for value in kwargs.values():
                if hasattr(value, "get_seq_length"):
                    value.get_seq_length()
            return real(self, *args, **kwargs)

    attention.__class__ = Asking
    assert "asks the cache for get_seq_length" in notes(model)


def test_a_record_has_counts_in_place_of_batch_and_rows():
    model = fresh()
    programs = fusing._programs(model, list(model.model.layers))
    hidden = next(iter(programs[0].given.values()))
    assert hidden[0] == (Count(1, "batch"), Count(1, "rows"), 64)
    kinds = [step.kind for step in programs[0].steps if step.kind != "op"]
    assert kinds == [*["module"] * 3, "update", "attention", *["module"] * 4]


def test_recording_leaves_the_model_as_it_was():
    model = fresh()
    before = new_ids(model, IDS)
    fusing._programs(model, list(model.model.layers))
    assert not any("forward" in vars(module) for module in model.modules())
    assert new_ids(model, IDS) == before
    with pytest.raises(RuntimeError), recording(list(model.model.layers), None):
        raise RuntimeError
    assert not any("forward" in vars(module) for module in model.modules())


SIMPLE = Segment(
    "def segment(a0):\n"
    "    rows = a0.shape[1]\n"
    "    v0 = torch.ops.aten.mul.Tensor(a0, 2)\n"
    "    v1 = torch.ops.aten.add.Tensor(v0, 1)\n"
    "    return (v1, )\n",
    (((1, "rows", 8), "float32"),),
)


def test_a_segment_survives_its_text():
    assert Segment.from_text(SIMPLE.text) == SIMPLE


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_library_is_not_loaded(folder, damage):
    folder.mkdir()
    data = b"\x7fELF" + bytes(4000)
    path = folder / f"{libraries._name(SIMPLE)}.{libraries._digest(data)}.so"
    path.write_bytes({"cut": data[:100], "changed": data[:-1] + b"x", "empty": b""}[damage])
    assert find(SIMPLE, folder) is None


def test_what_was_not_used_for_long_goes_first(folder, monkeypatch):
    folder.mkdir()
    for age, name in enumerate(("new", "old", "oldest")):
        path = folder / f"{name}.so"
        path.write_bytes(bytes(100))
        libraries.os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(libraries, "TOTAL_BYTES", 250)
    libraries._evict(folder)
    assert sorted(path.stem for path in folder.iterdir()) == ["new", "old"]


def test_what_the_compiler_says_is_told(folder):
    builder = Builder(folder)
    builder.start([SIMPLE._replace(source="def segment(a0):\n    return nothing\n")])
    builder.wait()
    assert builder.fault.startswith("they could not be compiled: NameError: name 'nothing'")
    assert not list(folder.glob("*.so"))


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle class")
def test_the_compiler_runs_only_where_no_other_wants_to(folder):
    told = (
        "def segment(a0):\n    import os\n"
        "    about = os.getsid(0), os.getpgid(0) == os.getpid(), os.nice(0)\n"
        "    raise RuntimeError(repr((*about, os.sched_getscheduler(0))))\n"
    )
    builder = Builder(folder)
    builder.start([SIMPLE._replace(source=told)])
    builder.wait()
    # Another session would share the processors evenly with this one, whatever its priority.
    assert repr((os.getsid(0), True, 19, os.SCHED_IDLE)) in builder.fault


def test_a_process_that_cannot_be_started_is_told(folder, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(folder / "nothing"))
    builder = Builder(folder)
    builder.start([SIMPLE])
    assert "no process can be started" in builder.fault
    assert not builder.is_at_work()


def test_nothing_is_built_where_nothing_is_said(folder, monkeypatch):
    started = []
    monkeypatch.setattr(Builder, "start", lambda *args: started.append(args))
    model = fresh()
    with lookahead.accelerate(model, nodes=8):
        for _ in range(3):
            model.generate(IDS, **GREEDY)
    assert not started
    assert not lookahead.last_stats(model).fused


def test_a_large_model_is_built_for_aside_after_a_while(folder, monkeypatch):
    started = []
    monkeypatch.setattr(Builder, "start", lambda self, segments: started.append(segments))
    monkeypatch.setattr(fusing, "FEWEST_BYTES", 0)
    model = fresh()
    with lookahead.accelerate(model, nodes=8):
        model.generate(IDS, **GREEDY)
        assert not started
        vars(model)["_lookahead_session"].seconds = 100.0
        for _ in range(3):
            model.generate(IDS, **GREEDY)
    assert len(started) == 1
    assert len(started[0]) == len({segment.key for segment in started[0]}) > 1


needs_compiler = pytest.mark.skipif(
    subprocess.run(["sh", "-c", "command -v g++ clang++"], capture_output=True).returncode != 0,  # noqa: PLW1510
    reason="there is no C++ compiler",
)


@needs_compiler
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_segments_give_the_ids_of_plain_generation(folder, dtype):
    model = fresh().to(dtype)
    with lookahead.accelerate(model, **ON):
        model.generate(IDS, **GREEDY)
        assert lookahead.last_stats(model).fused, lookahead.last_stats(model).notes
    assert owner(model).fault is None
    ids, mask = ragged([5, 18, 11])
    if dtype == torch.float32:
        check(model, IDS, settings=ON, **GREEDY)
        check(model, ids, attention_mask=mask, settings=ON, **GREEDY)
    # In 16 bits rounding is that of single operations, so layers give the very numbers.
    for segment in {s for layer in owner(model)._layers for s in layer.written.source.segments}:
        counts = {"batch": 1, "rows": 5}
        tensors = [
            torch.randn([eval(str(size), {}, counts) for size in shape]).to(getattr(torch, kind))
            for shape, kind in segment.sizes
        ]
        made, right = find(segment, folder)(tensors), interpreted(segment)(tensors)
        for a, b in zip(made, right, strict=True):
            limit = 1e-6 if dtype == torch.float32 else 0
            torch.testing.assert_close(a, b, rtol=limit, atol=limit)
    again = fresh().to(dtype)  # another process would find them, too
    assert not fusing._fused(again).missing
