"""Models whose passes draw random numbers: what is asked beforehand draws none for the call."""

from __future__ import annotations

import pytest
import torch

import lookahead
from tests.drafters import Half
from tests.helpers import check, make_model, prompt
from tests.slot_families import make_two_parts

GREEDY = {"max_new_tokens": 16, "do_sample": False}
SAMPLED = {"max_new_tokens": 16, "do_sample": True, "top_k": 0}
IDS = prompt(12, repeat=3)
MAKE = {"llama": make_model, "bart": lambda: make_two_parts("bart")}


def _drawing(name):
    """Return a model each layer of which draws a number, as one does that may be dropped."""
    model = MAKE[name]()
    for module in model.modules():
        if type(module).__name__.endswith("Layer"):
            module.register_forward_pre_hook(lambda *_: (torch.rand([]), None)[1])
    return model


def _sampled(model):
    torch.manual_seed(5)
    return model.generate(IDS, **SAMPLED).tolist(), torch.rand(3).tolist()


@pytest.mark.parametrize("name", MAKE)
def test_the_first_call_and_the_next_sample_as_plain_decoding_does(name):
    model = _drawing(name)
    plain = _sampled(model)
    with lookahead.accelerate(model, nodes=8):
        with pytest.warns(lookahead.LookaheadWarning, match="draw random numbers, too"):
            first = _sampled(model)
        assert not lookahead.last_stats(model).accelerated
        assert first == _sampled(model) == plain


@pytest.mark.parametrize("name", MAKE)
def test_greedy_calls_are_accelerated(name):
    model = _drawing(name)
    text = model.generate(IDS, **GREEDY)[0].tolist()
    runs = check(model, IDS, settings={"drafters": (Half(text),)}, **GREEDY)
    assert runs.stats.shape == "tree"
    assert runs.stats.passes < 16


@pytest.mark.parametrize("name", MAKE)
def test_others_are_not_taken_for_such(name):
    model = MAKE[name]()
    plain = _sampled(model)
    with lookahead.accelerate(model, nodes=8, strict=True):
        assert _sampled(model) == plain


@pytest.mark.filterwarnings("ignore::lookahead.LookaheadWarning")
def test_a_model_that_runs_plain_for_another_reason_samples_as_it_would(monkeypatch):
    model = _drawing("bart")
    plain = _sampled(model)
    monkeypatch.setattr(
        "lookahead.hf.shape.find_fault", lambda model: f"it drew {torch.rand(3).sum()}"
    )
    with lookahead.accelerate(model):
        assert _sampled(model) == plain
    assert "it drew" in lookahead.last_stats(model).plain_reason


@pytest.mark.filterwarnings("ignore::lookahead.LookaheadWarning")
def test_by_the_library_s_own_hook_too():
    model = _drawing("llama")
    plain = _sampled(model)
    torch.manual_seed(5)
    found = model.generate(IDS, custom_generate=lookahead.generate, **SAMPLED).tolist()
    assert (found, torch.rand(3).tolist()) == plain
