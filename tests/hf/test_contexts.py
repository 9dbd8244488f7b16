"""What a caller has set around a call: precision, devices, gradients, threads."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

import lookahead
from lookahead.hf.difference import find_difference
from tests.helpers import fresh, prompt

IDS = prompt(20, repeat=6)
GREEDY = {"max_new_tokens": 32, "do_sample": False}
SAMPLED = {"max_new_tokens": 32, "do_sample": True}
SETTINGS = {"sources": ("ngrams", "recycled", "head", "exit"), "remember": False, "strict": True}


@contextlib.contextmanager
def _default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CONTEXTS = {
    "inference mode": torch.inference_mode,
    "gradients": torch.enable_grad,
    "another default device": lambda: torch.device("meta"),
    "float64 by default": lambda: _default_dtype(torch.float64),
    "bfloat16 by default": lambda: _default_dtype(torch.bfloat16),
    "deterministic algorithms": _deterministic,
}


@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_around_the_call_changes_no_id(name, arguments):
    model = fresh()
    with CONTEXTS[name]():
        torch.manual_seed(0)
        plain = model.generate(IDS, **arguments)
        with lookahead.accelerate(model, **SETTINGS):
            torch.manual_seed(0)
            fast = model.generate(IDS, **arguments)
    assert fast.tolist() == plain.tolist()


def test_autocast_is_16_bits_for_the_self_test_and_leaves_no_verdict_behind():
    model = fresh()
    with lookahead.accelerate(model, **SETTINGS):
        with torch.autocast("cpu", torch.bfloat16):
            found = find_difference(model, IDS, max_new_tokens=32)
            assert found is None or found.is_rounding
            stats = lookahead.last_stats(model)
            assert stats.accelerated
            assert not stats.notes  # no drafter fell over the types
            assert stats.by_source["head"].offered > 0
        plain = type(model).generate(model, IDS, **GREEDY)
        assert model.generate(IDS, **GREEDY).tolist() == plain.tolist()
        precisions = {key[1] for key in model._lookahead_session.shapes if key[0] == "sdpa"}
    assert precisions == {torch.bfloat16, torch.float32}


def test_a_model_in_64_bits_is_exact():
    model = fresh().double()
    plain = model.generate(IDS, **GREEDY)
    with lookahead.accelerate(model, **SETTINGS):
        assert model.generate(IDS, **GREEDY).tolist() == plain.tolist()


def test_two_threads_in_different_contexts():
    model = fresh()
    prompts = [prompt(20, seed=s, repeat=6) for s in range(2)]
    plain = [model.generate(ids, **GREEDY).tolist() for ids in prompts]
    found = [None, None]

    def work(i):
        with torch.inference_mode() if i else contextlib.nullcontext():
            found[i] = [model.generate(prompts[i], **GREEDY).tolist() for _ in range(3)]

    with lookahead.accelerate(model, **SETTINGS):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [[one] * 3 for one in plain]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_number_formats_and_attentions(family, dtype, attention):
    """float32: the same ids. In 16 bits the first difference is one of rounding."""
    model = fresh(family, attention=attention).to(dtype)
    settings = SETTINGS | {"nodes": 8}
    with lookahead.accelerate(model, **settings):
        for seed in range(3):
            found = find_difference(model, prompt(20, seed=seed, repeat=6), max_new_tokens=40)
            assert lookahead.last_stats(model).accelerated
            assert found is None or (dtype != torch.float32 and found.is_rounding)
