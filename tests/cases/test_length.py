"""Kind B: length limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lookahead
from tests.drafters import ALL, Fixed, Oracle
from tests.helpers import Recorder, check, fresh, make_model, new_ids, prompt, quietly, shared

REPEAT = prompt(3, seed=5).repeat(1, 6)


@pytest.mark.parametrize("how", ["max_new_tokens", "max_length", "both"])
@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("num", [1, 2, 3])
def test_b1_a_short_limit_is_kept(num, length, how):
    """B1: max_new_tokens=2 with a lookup length of 3 gave more than 2 tokens."""
    model = shared()
    text = REPEAT[0].tolist() + new_ids(model, REPEAT)
    limits = {"max_new_tokens": num, "max_length": REPEAT.shape[1] + num}
    if how != "both":
        limits = {how: limits[how]}
    for settings in (
        {"nodes": length},
        {"sources": (), "drafters": (Oracle(text, length),), "nodes": length},
    ):
        runs = check(model, REPEAT, settings=settings, do_sample=False, **limits)
        assert runs.fast.shape[1] == REPEAT.shape[1] + num


@pytest.mark.parametrize(
    "limit", [torch.tensor(7), np.int64(7), 6.5, float("inf"), torch.tensor(float("inf"))], ids=str
)
def test_b1_a_limit_need_not_be_an_int(limit):
    """The library compares lengths with whatever it was given."""
    model = shared()
    text = new_ids(model, REPEAT, 40)
    end = text[next(i for i in range(9, 40) if text[i] not in text[:i])]
    check(model, REPEAT, max_new_tokens=limit, eos_token_id=end, do_sample=False)


@pytest.mark.parametrize("drafter", ALL)
def test_b2_no_drafter_exceeds_a_limit(drafter):
    """B1, for every draft source."""
    model = shared()
    text = REPEAT[0].tolist() + new_ids(model, REPEAT)
    for num in (1, 4):
        runs = quietly(
            lambda num=num: check(
                model, REPEAT, settings=ALL[drafter](text), max_new_tokens=num, do_sample=False
            )
        )
        assert runs.stats.new_tokens == num


@pytest.mark.parametrize("drafter", ["all", "oracle-20", "ignores-limits", "random"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_b3_a_run_that_fills_the_positions_exactly_ends_well(family, drafter):
    """B3: the look-ahead was not bound by the context size."""
    sizes = {"n_positions": 64} if family == "gpt2" else {"max_position_embeddings": 64}
    model = make_model(family, **sizes)
    ids = prompt(50, repeat=6)
    text = ids[0].tolist() + new_ids(model, ids, 14)
    runs = quietly(
        lambda: check(model, ids, settings=ALL[drafter](text), max_new_tokens=14, do_sample=False)
    )
    assert runs.fast.shape[1] == 64


def test_b3_no_guess_reaches_behind_the_end():
    """B3: the block shrinks near the end."""
    model = shared()
    text = REPEAT[0].tolist() + new_ids(model, REPEAT, 14)
    settings = {"sources": (), "drafters": (Oracle([*text, *[9] * 50], 8),)}
    runs = check(model, REPEAT, settings=settings, max_new_tokens=14, do_sample=False)
    steps = runs.stats.steps
    assert [(s.drafted, s.emitted) for s in steps] == [(8, 9), (3, 4)]


@pytest.mark.parametrize("wanted", [(20, 30), (90, 50), (98, 40), (60, 60), (10, 5)])
def test_b5_a_model_that_is_nearly_full_gives_what_plain_gives(wanted):
    """B5: output past the model's length crashed the service."""
    length, num = wanted
    model = make_model("gpt2", n_positions=100)
    ids = prompt(length, seed=length, repeat=4)
    num = min(num, 100 - length)
    runs = check(model, ids, max_new_tokens=num, do_sample=False)
    assert runs.fast.shape[1] == length + num


@pytest.mark.parametrize("drafter", ["all", "oracle-20"])
def test_b6_past_the_positions_of_a_rope_plain_is_followed_as_well(drafter):
    """B5: rotary models go on behind their length; the same must come out."""
    model = make_model("llama", max_position_embeddings=32)
    ids = prompt(24, repeat=4)
    text = ids[0].tolist() + new_ids(model, ids, 30)
    check(model, ids, settings=ALL[drafter](text), max_new_tokens=30, do_sample=False)


def test_b7_the_default_length_of_the_library_holds():
    """B1 with no limit given on the call."""
    model = fresh()
    model.generation_config.max_length = 30
    runs = check(model, prompt(20, repeat=4), do_sample=False)
    assert runs.fast.shape[1] == 30
    model.generation_config.max_length = 20
    model.generation_config.max_new_tokens = 3
    assert check(model, prompt(20, repeat=4), do_sample=False).fast.shape[1] == 23


def test_b8_a_prompt_that_is_too_long_fails_as_in_plain():
    """B5: the same error, and the next call works."""
    model = shared()
    ids = prompt(20)
    with pytest.raises(ValueError, match="max_length") as plain:
        model.generate(ids, max_length=10)
    with lookahead.accelerate(model, strict=True):
        with pytest.raises(ValueError, match="max_length") as fast:
            model.generate(ids, max_length=10)
        assert model.generate(ids, max_new_tokens=2).shape[1] == 22
    assert str(fast.value) == str(plain.value)


def test_b9_min_new_tokens_and_min_length_move_the_end_as_in_plain():
    """B1 from below."""
    model = shared()
    ids = prompt(18, repeat=4)
    new = new_ids(model, ids)
    for limits in ({"min_new_tokens": 9}, {"min_length": 26}, {}):
        check(model, ids, max_new_tokens=20, do_sample=False, eos_token_id=new[3], **limits)


def test_b10_a_stream_is_as_long_as_the_limit():
    """B1, streamed."""
    model, streamer = shared(), Recorder()
    with lookahead.accelerate(model, sources=(), drafters=(Fixed([[3] * 20] * 3),), strict=True):
        out = model.generate(REPEAT, max_new_tokens=2, do_sample=False, streamer=streamer)
    assert streamer.ids == out[0].tolist()
    assert out.shape[1] == REPEAT.shape[1] + 2
