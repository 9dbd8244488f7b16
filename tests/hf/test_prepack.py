"""Prepacked weights: the same ids, the model left as it was, and changes of weights noticed."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import time
import weakref
from threading import Thread
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

import lookahead
from lookahead.config import Config
from lookahead.drafters.products import has_products
from lookahead.hf import prepack
from lookahead.hf.prepack import Prepacked, is_prepacked, packable, prepacked_weights
from lookahead.session import Session
from lookahead.stats import DecodeStats
from tests.cases.test_batches import ragged
from tests.helpers import FAMILIES, Recorder, check, fresh, new_ids, prompt, shared

IDS = prompt(18, repeat=4)
GREEDY = {"max_new_tokens": 16, "do_sample": False}
ON = {"prepack": True, "nodes": 8}
DTYPES = [torch.float32, torch.bfloat16]

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)
pytestmark = needs_onednn


def _module(module, dtype=torch.float32):
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.to(dtype).eval()


def _in_use(model, **settings):
    return prepacked_weights(model, Config(**(ON | settings)), Session(), DecodeStats())


def _fast(model, **settings):
    """Return the ids of an accelerated run, which must have used prepacked weights."""
    with lookahead.accelerate(model, **(ON | {"strict": True} | settings)):
        ids = new_ids(model, IDS, 16)
        assert lookahead.last_stats(model).prepacked_bytes > 0
    return ids


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(48,), (1, 48), (2, 3, 48), (2, 0, 48), (70, 48), (1, 2, 3, 48)])
@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(48, 80), lambda: nn.Linear(48, 5, bias=False), lambda: Conv1D(80, 48)],
)
def test_products_are_those_of_the_layer(make, shape, dtype):
    if not has_products(dtype):
        pytest.skip("this processor has no products of 16 bits")
    model = nn.Sequential(_module(make(), dtype))
    rows = torch.randn(shape).to(dtype)
    with torch.no_grad():
        right = model(rows)
        with _in_use(model):
            assert is_prepacked()
            given = model(rows)
    assert not is_prepacked()
    assert given.shape == right.shape
    assert given.dtype == right.dtype
    torch.testing.assert_close(
        given, right, rtol=1e-2 if dtype != torch.float32 else 1e-5, atol=1e-4
    )


def test_rows_that_do_not_lie_in_order_are_read_rightly():
    model = nn.Sequential(_module(nn.Linear(48, 80)))
    rows = torch.randn(48, 7).t()
    with torch.no_grad(), _in_use(model):
        given = model(rows)
    torch.testing.assert_close(given, functional.linear(rows, model[0].weight, model[0].bias))


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3", "bloom"])
@pytest.mark.parametrize("sampled", [False, True])
def test_ids_are_those_of_plain_generation(family, sampled):
    model = shared(family, attention="eager")
    runs = check(model, IDS, max_new_tokens=16, do_sample=sampled, settings={"prepack": True})
    assert runs.stats.prepacked_bytes > 0
    lookahead.restore(model)


def test_a_padded_batch_gives_the_ids_of_plain_generation():
    ids, mask = ragged([5, 18, 11])
    settings = {"prepack": True}
    runs = check(fresh(), ids, attention_mask=mask, settings=settings, **GREEDY)
    assert runs.stats.prepacked_bytes > 0


@pytest.mark.parametrize("shape", [(5, 5), (12, 5), (5, 12), (1, 7), (7, 1), (10, 5)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_sample_of_a_matrix_has_something_of_each_row_and_column(shape, transposed):
    numbers = torch.arange(2 + shape[0] * shape[1])[2:]  # with an offset into its memory
    matrix = numbers.view(shape[::-1]).t() if transposed else numbers.view(shape)
    sample = prepack._some_of_each(matrix)
    where = [
        divmod((matrix == number).flatten().int().argmax().item(), shape[1]) for number in sample
    ]
    assert {row for row, _ in where} == set(range(shape[0]))
    assert {column for _, column in where} == set(range(shape[1]))


CHANGES = {
    "a step of an optimiser": lambda weight: weight.mul_(1.5),
    "a neuron": lambda weight: weight[3].zero_(),
    "a column": lambda weight: weight[:, 5].mul_(-2),
}
DATA_CHANGES = {
    "all of it": lambda weight: weight.data.mul_(1.5),
    "a neuron": lambda weight: weight.data[3].zero_(),
    "a column": lambda weight: weight.data[:, 5].mul_(-2),
    "other data": lambda weight: setattr(weight, "data", weight.data.flip(0).contiguous()),
}


@pytest.mark.parametrize("part", ["model.layers.0.mlp.down_proj", "lm_head"])
@pytest.mark.parametrize(
    "change",
    [*CHANGES.values(), *DATA_CHANGES.values()],
    ids=[*CHANGES, *(f"data, {n}" for n in DATA_CHANGES)],
)
def test_a_changed_weight_is_noticed(change, part):
    model = fresh("llama", tie_word_embeddings=False)
    before = _fast(model)
    with torch.no_grad():
        change(model.get_submodule(part).weight)
    expected = new_ids(copy.deepcopy(model), IDS, 16)
    assert _fast(model) == expected
    assert _fast(model) == expected  # packed anew by now
    assert before == new_ids(fresh("llama", tie_word_embeddings=False), IDS, 16)


def test_weights_that_change_in_every_call_are_not_packed_in_every_call(monkeypatch):
    model, packed = fresh(), []
    real = prepack.packed
    monkeypatch.setattr(prepack, "packed", lambda matrix: packed.append(1) or real(matrix))
    _fast(model)
    packed.clear()
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)
        with lookahead.accelerate(model, **ON):
            model.generate(IDS, **GREEDY)
        assert lookahead.last_stats(model).prepacked_bytes == 0
    assert not packed
    _fast(model)
    assert packed


class Stop(Recorder):
    """Breaks off a call, and looks at the model on the way."""

    def __init__(self, error, look):
        super().__init__()
        self.error, self.look = error, look

    def put(self, value):
        super().put(value)
        if len(self.values) == 4:
            self.look()
            raise self.error("stop here")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_call_that_is_broken_off_leaves_the_layers_as_they_were(error):
    model, seen = fresh(), []
    look = lambda: seen.append("forward" in vars(model.lm_head))
    with lookahead.accelerate(model, **ON), pytest.raises(error):
        model.generate(IDS, streamer=Stop(error, look), **GREEDY)
    assert seen == [True]
    assert not any("forward" in vars(module) for module in model.modules())
    assert not is_prepacked()


def test_the_prompt_is_read_with_the_ordinary_weights(monkeypatch):
    model, rows = fresh(), []
    real = prepack._product

    def counted(some, *rest):
        rows.append(some.numel() // some.shape[-1])
        return real(some, *rest)

    monkeypatch.setattr(prepack, "_product", counted)
    with lookahead.accelerate(model, prepack=True, nodes=2, sources=("recycled",)):
        model.generate(prompt(90), **GREEDY)
    # Passes over trees, and parts of the prompt that are read out.
    assert set(rows) <= {1, 2, 3, 16, 32, *range(90 % 32 + 1)}
    assert 3 in rows


def test_another_thread_computes_with_the_ordinary_weights_meanwhile():
    model, seen = fresh("llama", hidden_size=96, intermediate_size=200), []
    rows = torch.randn(5, 96)
    with torch.no_grad():
        right = model.lm_head(rows)

    def look():
        def compute():
            with torch.no_grad():
                seen.append((is_prepacked(), model.lm_head(rows)))

        thread = Thread(target=compute)
        thread.start()
        thread.join()

    with lookahead.accelerate(model, **ON), pytest.raises(RuntimeError):
        model.generate(IDS, streamer=Stop(RuntimeError, look), **GREEDY)
    assert seen[0][0] is False
    torch.testing.assert_close(seen[0][1], right)


def test_a_copy_made_during_a_call_is_a_model_of_its_own():
    model, copies = fresh(), []
    look = lambda: copies.append(copy.deepcopy(model))
    with lookahead.accelerate(model, **ON), pytest.raises(RuntimeError):
        model.generate(IDS, streamer=Stop(RuntimeError, look), **GREEDY)
    with torch.no_grad():
        for twin in (copies[0], altered := fresh()):
            for parameter in twin.parameters():
                parameter.mul_(1.1)
    lookahead.restore(copies[0])
    assert new_ids(copies[0], IDS) == new_ids(altered, IDS)
    assert new_ids(model, IDS) == new_ids(fresh(), IDS)


def test_two_threads_on_one_model_get_the_ids_of_plain_generation():
    model, found = fresh(), []
    prompts = [prompt(18, seed=seed, repeat=4) for seed in range(4)]
    expected = [new_ids(model, ids, 24) for ids in prompts]
    with lookahead.accelerate(model, **ON):

        def work():
            found.append([new_ids(model, ids, 24) for ids in prompts])

        threads = [Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [expected, expected]
    assert not any("forward" in vars(module) for module in model.modules())


def test_copies_are_kept_between_calls_and_let_go_with_the_session():
    model = fresh()
    _fast(model)
    kept = weakref.ref(vars(model)["_lookahead_session"].prepacked)
    layer = weakref.ref(kept()._layers[0].packed)
    _fast(model)
    assert vars(model)["_lookahead_session"].prepacked is kept()
    gc.disable()
    try:
        lookahead.restore(model)
        assert kept() is None, "copies wait for the garbage collector"
        assert layer() is None
    finally:
        gc.enable()


def test_small_models_are_left_alone_where_nothing_is_said():
    model = fresh()
    with lookahead.accelerate(model):
        model.generate(IDS, **GREEDY)
    assert lookahead.last_stats(model).prepacked_bytes == 0


@pytest.mark.parametrize(
    ("faster", "free", "expected"),
    [(True, 2**40, True), (False, 2**40, False), (True, 2**24, False)],
)
def test_auto_packs_what_is_faster_and_fits(monkeypatch, faster, free, expected):
    model = nn.Sequential(_module(nn.Linear(1024, 4096)), _module(nn.Linear(4096, 1024)))
    monkeypatch.setattr(Prepacked, "saved", (0.1, 0.3) if faster else (0.1, -0.2))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    with _in_use(model, prepack="auto"):
        assert is_prepacked() is expected


def test_much_is_packed_aside_for_later_calls(monkeypatch):
    monkeypatch.setattr(prepack, "BYTES_AT_ONCE", 0)
    model, session = nn.Sequential(_module(nn.Linear(48, 80))), Session()
    config, stats = Config(**ON), DecodeStats()
    with prepacked_weights(model, config, session, stats):
        assert not is_prepacked()
    session.prepacked._aside.join()
    with prepacked_weights(model, config, session, stats):
        assert is_prepacked()
    assert stats.prepacked_bytes == 48 * 80 * 4


END_WHILE_PACKING = """
import torch
from torch import nn
from lookahead.config import Config
from lookahead.hf import prepack
from lookahead.session import Session
from lookahead.stats import DecodeStats
prepack.BYTES_AT_ONCE = 0
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(200)])
with prepack.prepacked_weights(model, Config(prepack=True), Session(), DecodeStats()):
    pass
"""


def test_a_process_may_end_while_weights_are_packed():
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", END_WHILE_PACKING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr
    assert time.perf_counter() - start < 60


def test_what_cannot_be_packed_is_left_out():
    model = nn.ModuleDict(
        {
            "plain": nn.Linear(8, 8),
            "in_half": nn.Linear(8, 8).half(),
            "normed": nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
            "elsewhere": nn.Linear(8, 8, device="meta"),
            "own": nn.Linear(8, 8),
            "mixed": nn.Linear(8, 8),
        }
    )
    model["own"].forward = lambda rows: rows
    model["mixed"].bias = nn.Parameter(torch.zeros(8, dtype=torch.float64))
    assert packable(model) == [model["plain"]]
    assert packable(model, 65) == []
    with torch.autocast("cpu"):
        assert packable(model) == []
    model["in_half"].compile()
    assert packable(model) == []


def test_a_note_says_why_weights_are_not_prepacked_where_that_was_asked_for():
    model = fresh().half()
    with lookahead.accelerate(model, **ON):
        model.generate(IDS, **GREEDY)
    assert any(
        "not prepacked: there is no plain matrix" in n for n in lookahead.last_stats(model).notes
    )


@pytest.mark.parametrize("value", ["yes", None, 1])
def test_the_setting_is_checked(value):
    with pytest.raises(lookahead.ConfigError, match='prepack must be "auto", True or False'):
        Config(prepack=value)
