"""A model writes, and its hidden states are summed and stored."""

from __future__ import annotations

import pytest
import torch

import lookahead
from lookahead import calibrate as module
from lookahead.calibrate import calibrate, empty_sums
from lookahead.errors import UnsupportedError
from lookahead.hf.fingerprint import identify
from lookahead.learnt import Learnt
from lookahead.memory import Memory
from tests.helpers import FAMILIES, fresh, prompt
from tests.memory.stand_ins import Sums

PROMPTS = [prompt(length, seed=length)[0].tolist() for length in range(3, 14)]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(module, "MAX_NEW_TOKENS", 6)
    monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(module, "MAX_ROWS", 200)


def stored(model) -> Sums:
    sums = Sums(64)
    sums.load_state(Memory().load(identify(model).fingerprint, "calibrated"))
    return sums


@pytest.mark.parametrize("is_run_again", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_a_plain_forward(family, is_run_again, monkeypatch):
    model = fresh(family)
    sums = Sums(64)
    told = []
    made = calibrate(model, PROMPTS, sums, tell=lambda what, share: told.append((what, share)))
    assert made.rows == sums.rows == len(sums.tokens)
    assert made.rows >= 200
    assert made.texts >= len(PROMPTS)
    assert made.path.stat().st_size == made.num_bytes
    assert told[0][1] < 0.5
    seen = []

    class First(Sums):
        def add_text(self, tokens, hidden):
            seen.append((tokens, hidden))
            super().add_text(tokens, hidden)

    if is_run_again:
        monkeypatch.setattr(module._Seen, "hidden", lambda _seen: None)
    calibrate(model, PROMPTS, First(64))
    for given, (tokens, hidden) in zip(PROMPTS, seen, strict=False):
        assert tokens[: len(given)].tolist() == given
        assert len(tokens) == len(given) + (6 if is_run_again else 5)
        with torch.no_grad():
            logits = model(tokens[None]).logits[0]
        assert torch.allclose(model.get_output_embeddings()(hidden), logits, atol=1e-3)
    assert not model.base_model._forward_hooks
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_again_it_replaces_and_is_the_same():
    model = fresh()
    calibrate(model, PROMPTS, Sums(64))
    first = stored(model)
    calibrate(model, PROMPTS, Sums(64))
    again = stored(model)
    assert again.rows == first.rows
    assert torch.equal(again.products, first.products)
    calibrate(model, PROMPTS, Sums(64), seed=1)
    assert not torch.equal(stored(model).products, first.products)


def test_random_numbers_of_others_are_left_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    calibrate(fresh(), PROMPTS, Sums(64))
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("remember", [True, "calibrated"])
def test_what_it_made_is_what_a_session_begins_with(remember):
    model = fresh()
    plain = model.generate(prompt(), max_new_tokens=4, do_sample=False)
    made = calibrate(model, PROMPTS, empty_sums(model))
    sums = empty_sums(model)
    Learnt(remember, lambda: identify(model)).keep(sums)
    assert sums.rows == made.rows
    with lookahead.accelerate(model, remember=remember):
        found = model.generate(prompt(), max_new_tokens=4, do_sample=False)
        assert found.tolist() == plain.tolist()
        (learnt,) = model._lookahead_session._learnt.values()
        assert learnt.sums.rows == made.rows
        assert lookahead.last_stats(model).notes == []


def test_sums_that_are_stored_but_do_not_fit_are_a_note_in_the_statistics():
    model = fresh()
    plain = model.generate(prompt(), max_new_tokens=4, do_sample=False)
    calibrate(model, PROMPTS, Sums(64))
    with (  # noqa: PT031
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="do not fit this model and are ignored"),
    ):
        found = model.generate(prompt(), max_new_tokens=4, do_sample=False)
        assert found.tolist() == plain.tolist()
        assert "do not fit" in lookahead.last_stats(model).notes[0]


def test_answers_end_at_the_end_token():
    model = fresh()
    model.generation_config.eos_token_id = list(range(64))
    sums = Sums(64)
    made = calibrate(model, PROMPTS, sums)
    assert made.rows < made.texts * (8 + 6)


def test_stopped_in_the_middle_it_leaves_the_older_file(monkeypatch):
    model = fresh()
    made = calibrate(model, PROMPTS, Sums(64))
    before = made.path.read_bytes()

    class Stopped(Sums):
        def add_text(self, tokens, hidden):
            super().add_text(tokens, hidden)
            if self.rows > 50:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(model, PROMPTS, Stopped(64))
    assert made.path.read_bytes() == before


def test_time_is_a_bound():
    with pytest.raises(UnsupportedError, match="seconds"):
        calibrate(fresh(), PROMPTS, Sums(64), seconds=0.0)


def test_a_model_without_a_head_says_so():
    class Odd(torch.nn.Linear):
        pass

    model = fresh()
    model.lm_head = Odd(64, 128)
    with pytest.raises(UnsupportedError, match="nothing to calibrate"):
        empty_sums(model)
