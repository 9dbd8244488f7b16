"""The least-squares head in whole calls: the answer is that of plain generation, whatever fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import lookahead
from lookahead.drafters.base import Candidates
from lookahead.drafters.head import ROWS_TO_SUM, LeastSquaresHead
from lookahead.hf.ends import HFEnds, ends_of
from lookahead.stats import SourceStats
from tests.families import make_family
from tests.helpers import (
    check,
    fresh,
    make_bloom,
    make_gemma3,
    make_mamba,
    new_ids,
    prompt,
)

IDS = prompt(30, repeat=8)
GREEDY: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False}
SAMPLED: dict[str, Any] = {"max_new_tokens": 40, "do_sample": True, "top_k": 0, "temperature": 0.8}
ALONE: dict[str, Any] = {"sources": ("head",), "nodes": 8, "remember": False}
#: What it goes together with, so that there is still a tree when it is gone.
TOGETHER: dict[str, Any] = {"nodes": 8, "remember": False}


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "opt"],
)
@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_alone_it_drafts_and_the_answer_is_that_of_plain_generation(family, arguments):
    runs = check(make_family(family), IDS, settings=ALONE, **arguments)
    assert set(runs.stats.by_source) == {"head"}
    assert runs.stats.by_source["head"].offered > 20
    assert runs.stats.notes == []


def test_it_finds_what_a_text_that_goes_round_in_circles_says_next():
    """Little weights end in a loop, and a loop is soon learnt."""
    model = fresh()
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.05)
            layer.mlp.down_proj.weight.mul_(0.05)
    runs = check(model, IDS, settings=ALONE, max_new_tokens=120, do_sample=False)
    accepted = [step.accepted for step in runs.stats.steps]
    assert np.mean(accepted[-10:]) > 2 * max(0.3, np.mean(accepted[:4]))


@pytest.mark.parametrize("settings", [ALONE, TOGETHER], ids=["alone", "together"])
def test_padded_batches_give_the_same(settings):
    ids = torch.cat([prompt(18, seed=s, repeat=4) for s in (1, 2, 3)])
    mask = torch.ones_like(ids)
    ids[1, :7], mask[1, :7] = 0, 0
    runs = check(fresh(), ids, attention_mask=mask, settings=settings, **GREEDY)
    assert runs.stats.rows == 3
    assert runs.stats.by_source["head"].offered > 20


def test_sums_of_earlier_calls_change_no_answer():
    model = fresh()
    plain = new_ids(model, IDS, 60)
    with lookahead.accelerate(model, strict=True, **ALONE):
        rows = []
        for _ in range(3):
            assert new_ids(model, IDS, 60) == plain
            (learnt,) = model._lookahead_session._learnt.values()
            rows.append(learnt.sums.rows)
    assert ROWS_TO_SUM <= rows[0] < rows[1] < rows[2]


@pytest.mark.parametrize("settings", [ALONE, TOGETHER], ids=["alone", "together"])
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("method", ["begin", "ask", "learn"])
def test_a_fault_in_it_costs_the_head_and_nothing_else(method, after, settings, monkeypatch):
    calls = []
    real = getattr(LeastSquaresHead, method)

    def fail(self: Any, *args: Any) -> Any:
        calls.append(args)
        if len(calls) > after:
            raise RuntimeError("meant to fail")
        return real(self, *args)

    if method == "begin" and after:
        pytest.skip("it begins once")
    monkeypatch.setattr(LeastSquaresHead, method, fail)
    with pytest.warns(lookahead.LookaheadWarning, match="'head' raised RuntimeError") as warned:
        runs = check(fresh(), IDS, settings=settings, **GREEDY)
    assert len(warned) == 1
    assert len(calls) == after + 1, "it is not called again"
    (note,) = runs.stats.notes
    assert "'head' raised RuntimeError: meant to fail; it was dropped" in note
    assert "head" in runs.stats.by_source
    if not after:
        assert method == "learn" or runs.stats.by_source["head"] == SourceStats(0, 0)


def _answer(change: Any) -> Any:
    real = LeastSquaresHead.ask

    def ask(self: Any, *args: Any) -> Any:
        found = real(self, *args)
        return None if found is None else change(found)

    return ask


@pytest.mark.parametrize(
    "change",
    [
        lambda found: Candidates(found.tokens, found.probabilities * np.float32("nan")),
        lambda found: Candidates(found.tokens, found.probabilities - 0.5),
        lambda found: Candidates(found.tokens, found.probabilities + 1),
        lambda found: Candidates(found.tokens[:0], found.probabilities[:0]),
        lambda found: Candidates(found.tokens, found.probabilities[:, :2]),
        lambda found: "nonsense",
    ],
    ids=["nan", "negative", "above-1", "no-rows", "narrow", "string"],
)
def test_impossible_answers_cost_the_head_and_nothing_else(change, monkeypatch):
    monkeypatch.setattr(LeastSquaresHead, "ask", _answer(change))
    with pytest.warns(lookahead.LookaheadWarning, match="'head' raised"):
        check(fresh(), IDS, settings=TOGETHER, **GREEDY)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: Candidates(found.tokens * 0 - 1, found.probabilities),
        lambda found: Candidates(found.tokens * 0 + 5, found.probabilities),
        lambda found: Candidates(found.tokens, found.probabilities[:, ::-1]),
        lambda found: Candidates(found.tokens, found.probabilities * 0),
        lambda found: Candidates(found.tokens, found.probabilities * 0 + 1),
        lambda found: None,
    ],
    ids=["no-tokens", "one-token", "ascending", "zero", "one", "none"],
)
def test_useless_answers_change_nothing(change, monkeypatch):
    monkeypatch.setattr(LeastSquaresHead, "ask", _answer(change))
    runs = check(fresh(), IDS, settings=TOGETHER, **GREEDY)
    assert runs.stats.notes == []


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_hidden_states_that_are_not_finite_do_no_harm_now_or_later(value):
    """A token of the answer whose hidden state overflows, as may happen in half precision."""
    model = fresh()
    plain = new_ids(model, IDS, 60)
    token = next(t for i, t in enumerate(plain) if i > 5 and t not in IDS)
    read: list[torch.Tensor] = []

    def see(_module: Any, _args: Any, kwargs: Any) -> None:
        read.append(kwargs["input_ids"])

    def overflow(_module: Any, _args: Any, hidden: torch.Tensor) -> torch.Tensor:
        return torch.where((read[-1] == token)[..., None], value, hidden)

    model.model.register_forward_pre_hook(see, with_kwargs=True)
    model.model.norm.register_forward_hook(overflow)
    expected = new_ids(model, IDS, 60)
    other = IDS[:, :12]
    expected_of_other = new_ids(model, other, 6)
    assert token in expected
    assert token not in expected_of_other
    with lookahead.accelerate(model, strict=True, **ALONE):
        for _ in range(3):
            assert new_ids(model, IDS, 60) == expected
            assert lookahead.last_stats(model).notes == []
        assert new_ids(model, other, 6) == expected_of_other
        assert lookahead.last_stats(model).notes == []
        (learnt,) = model._lookahead_session._learnt.values()
        assert all(torch.isfinite(array).all() for array in learnt.sums.state().values())


def test_stored_sums_that_fit_no_map_are_no_prior():
    model = fresh()
    plain = new_ids(model, IDS, 60)
    with lookahead.accelerate(model, strict=True, **ALONE):
        assert new_ids(model, IDS, 60) == plain
        (learnt,) = model._lookahead_session._learnt.values()
        state = dict(learnt.sums.state())
        learnt.sums.load_state(state | {"squares": -state["squares"]})
        assert new_ids(model, IDS, 60) == plain
        assert lookahead.last_stats(model).notes == []


@pytest.mark.parametrize("settings", [{"sources": ("ngrams", "recycled")}, {"nodes": 0}])
def test_where_it_is_switched_off_it_is_not_made(settings, monkeypatch):
    def fail(*args: Any) -> None:
        raise AssertionError("made")

    monkeypatch.setattr(LeastSquaresHead, "__init__", fail)
    runs = check(fresh(), IDS, settings=settings, **GREEDY)
    assert "head" not in runs.stats.by_source


def test_ends_are_those_of_the_model():
    for model in (
        fresh(),
        fresh("gpt2"),
        make_gemma3(),
        make_bloom(attention="eager"),
        make_mamba(),
    ):
        ends = ends_of(model)
        assert isinstance(ends, HFEnds)
        tokens = torch.tensor([5, 9, 5])
        weight, bias = ends.output_rows(tokens)
        hidden = torch.randn(2, ends.width)
        with torch.no_grad():
            logits = model.get_output_embeddings()(hidden)[:, tokens]
        assert bias is None
        torch.testing.assert_close(hidden @ weight.T, logits)
        assert ends.embed(tokens).shape == (3, ends.embedding_width)
        assert torch.equal(ends.embed(tokens)[0], ends.embed(tokens)[2])
        assert not weight.requires_grad
        assert not ends.embed(tokens).requires_grad


def test_a_bias_of_the_output_layer_is_read_with_it():
    model = make_family("phi")
    with torch.no_grad():
        model.lm_head.bias.normal_()
    ends = ends_of(model)
    weight, bias = ends.output_rows(torch.tensor([5, 9]))
    hidden = torch.randn(2, ends.width)
    with torch.no_grad():
        logits = model.lm_head(hidden)[:, [5, 9]]
    torch.testing.assert_close(hidden @ weight.T + bias, logits)
    check(model, IDS, settings=ALONE, **GREEDY)


def test_a_model_whose_output_layer_is_no_plain_matrix_has_no_head():
    class Odd(torch.nn.Linear):
        pass

    model = fresh()
    odd = Odd(64, 128, bias=False)
    odd.weight = model.lm_head.weight
    model.lm_head = odd
    assert ends_of(model) is None
    runs = check(model, IDS, settings=TOGETHER, **GREEDY)
    assert [n.split(":")[0] for n in runs.stats.notes] == ["head and early exit are off"]
