"""Early exit as a source among others: asked about nodes of the merged tree, after the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lookahead
from lookahead.config import SOURCES
from lookahead.drafters.early_exit import EarlyExitDrafter
from lookahead.hf.split import LayerSplit
from tests.families import EXIT_FAMILIES, make_family
from tests.helpers import check, make_mamba, make_model, new_ids, prompt

IDS = prompt(40, repeat=6)
GREEDY: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False}
ALONE: dict[str, Any] = {"sources": ("exit",), "exit_layer": 2, "nodes": 8, "remember": False}
ALL: dict[str, Any] = ALONE | {"sources": SOURCES}


@pytest.mark.parametrize("settings", [ALONE, ALL], ids=["alone", "all"])
@pytest.mark.parametrize("family", EXIT_FAMILIES)
def test_the_answer_is_that_of_plain_generation(family, settings):
    model = make_family(family)
    before = [set(vars(m)) for m in model.modules()]
    runs = check(model, IDS, settings=settings, **GREEDY)
    assert runs.stats.notes == []
    assert runs.stats.by_source["exit"].offered >= 5
    ours = {"_lookahead_session", "generate"}
    assert [set(vars(m)) - ours for m in model.modules()] == before


@pytest.mark.parametrize("settings", [ALONE, ALL], ids=["alone", "all"])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_sample(seed, settings):
    check(
        make_family("llama"),
        IDS,
        settings=settings,
        seed=seed,
        max_new_tokens=40,
        do_sample=True,
        top_k=0,
        temperature=0.8,
    )


@pytest.mark.parametrize("exit_layer", [1, 2, 3, "auto"])
def test_every_layer_and_call_after_call(exit_layer):
    model = make_family("llama")
    plain = new_ids(model, IDS, 40)
    settings = ALL | {"exit_layer": exit_layer, "strict": True}
    with lookahead.accelerate(model, **settings):
        for _ in range(4):
            assert new_ids(model, IDS, 40) == plain
            assert "exit" in lookahead.last_stats(model).by_source


def test_it_goes_together_with_a_window():
    runs = check(make_family("llama"), IDS, settings=ALL | {"window": (4, 3, 2)}, **GREEDY)
    assert runs.stats.notes == []
    assert {"window", "head", "exit"} <= set(runs.stats.by_source)


def test_in_a_batch_others_draft_and_a_note_says_so():
    ids = torch.cat([IDS, prompt(40, seed=9)])
    runs = check(make_family("llama"), ids, settings=ALL, **GREEDY)
    (note,) = runs.stats.notes
    assert "early exit is off: it works on one sequence at a time" in note
    assert "exit" not in runs.stats.by_source


def test_a_model_that_cannot_be_taken_apart_drafts_with_the_others_and_a_note_says_so():
    runs = check(make_model(num_hidden_layers=1), IDS, settings=ALL, **GREEDY)
    (note,) = runs.stats.notes
    assert note == "early exit is off, because LlamaForCausalLM has one layer only"


def test_a_model_that_runs_plain_takes_the_setting():
    model = make_mamba()
    plain = new_ids(model, IDS)
    with (
        pytest.warns(lookahead.LookaheadWarning, match="runs plain"),
        lookahead.accelerate(model, **ALL),
    ):
        assert new_ids(model, IDS) == plain


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("method", ["begin", "ask", "learn"])
def test_a_fault_in_it_costs_early_exit_and_nothing_else(method, after, monkeypatch):
    if method == "begin" and after:
        pytest.skip("it begins once")
    calls = []
    real = getattr(EarlyExitDrafter, method)

    def fail(self: Any, *args: Any) -> Any:
        calls.append(args)
        if len(calls) > after:
            raise RuntimeError("meant to fail")
        return real(self, *args)

    monkeypatch.setattr(EarlyExitDrafter, method, fail)
    with pytest.warns(lookahead.LookaheadWarning, match="'exit' raised RuntimeError"):
        runs = check(make_family("llama"), IDS, settings=ALL, **GREEDY)
    assert len(calls) == after + 1
    (note,) = runs.stats.notes
    assert "it was dropped" in note


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [1, 5])
def test_a_fault_of_the_model_in_a_look_leaves_the_model_as_it_was(error, after, monkeypatch):
    model = make_family("llama")
    plain = new_ids(model, IDS, 40)
    before = [set(vars(m)) for m in model.modules()]
    looks = []
    real = LayerSplit.first

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        looks.append(args)
        if len(looks) == after:
            raise error("stop here")
        return real(self, *args, **kwargs)

    with lookahead.accelerate(model, strict=True, **ALL):
        assert new_ids(model, IDS, 40) == plain  # the self-test has looked, too
        monkeypatch.setattr(LayerSplit, "first", first)
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                new_ids(model, IDS, 40)
        else:
            with pytest.warns(lookahead.LookaheadWarning, match="'exit' raised"):
                assert new_ids(model, IDS, 40) == plain
        # Where another look of that step had gone well, its rows are still made use of.
        assert len(looks) <= after + 1
        monkeypatch.undo()
        assert new_ids(model, IDS, 40) == plain
    ours = {"_lookahead_session"}
    assert [set(vars(m)) - ours for m in model.modules()] == before
