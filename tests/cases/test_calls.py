"""Kind L: what is left over between calls."""

from __future__ import annotations

import gc
import os

import psutil
import pytest

import lookahead
from tests.drafters import Fixed, Oracle, Random
from tests.helpers import FAMILIES, Recorder, check, fresh, make_model, new_ids, prompt, shared

IDS = prompt(18, repeat=4)


class Aborting(Recorder):
    """Raises at its n-th token."""

    def __init__(self, after, error=RuntimeError):
        super().__init__()
        self.after, self.error = after, error

    def put(self, value):
        super().put(value)
        if len(self.values) > self.after:
            raise self.error("enough")


@pytest.mark.parametrize("family", FAMILIES)
def test_l1_the_fifth_call_gives_what_the_first_gave(family):
    """L1: right on the first call, wrong and random from the second on."""
    model = fresh(family)
    expected = model.generate(IDS, max_new_tokens=20, do_sample=False).tolist()
    other = prompt(30, seed=8, repeat=9)
    lookahead.accelerate(model, strict=True)
    for turn in range(5):
        assert model.generate(IDS, max_new_tokens=20, do_sample=False).tolist() == expected
        model.generate(other, max_new_tokens=9 + turn, do_sample=turn % 2 == 0)
        if turn == 1:
            lookahead.accelerate(model, nodes=3, sources=("recycled",), strict=True)
        if turn == 2:
            with pytest.raises(RuntimeError, match="enough"):
                model.generate(IDS, max_new_tokens=20, streamer=Aborting(5))
        if turn == 3:
            lookahead.accelerate(model, nodes="auto", drafters=(Random(),), strict=True)


def test_l3_a_short_request_after_a_long_one_is_as_good_as_new():
    """L3: indices from the longer one were kept."""
    model = make_model("llama", max_position_embeddings=1024)
    long, short = prompt(800, seed=3, repeat=50), prompt(12, seed=4)
    plain = model.generate(short, max_new_tokens=20, do_sample=False)
    with lookahead.accelerate(model, strict=True):
        model.generate(long, max_new_tokens=20, do_sample=False)
        fast = model.generate(short, max_new_tokens=20, do_sample=False)
    assert fast.tolist() == plain.tolist()


def test_l5_settings_hold_for_their_own_block_and_no_config_is_written():
    """L5: a run-time heuristic was written back into a config and outlived the call."""
    model = fresh()
    text = IDS[0].tolist() + new_ids(model, IDS, 30)
    before = (model.generation_config.to_dict(), model.config.to_dict())
    with lookahead.accelerate(model, nodes=5, sources=(), drafters=(Oracle(text, 9),)):
        model.generate(IDS, max_new_tokens=24, do_sample=False)
        assert max(s.drafted for s in lookahead.last_stats(model).steps) == 5
    with lookahead.accelerate(model, nodes=9, sources=(), drafters=(Oracle(text, 9),)):
        model.generate(IDS, max_new_tokens=24, do_sample=True, top_k=3, temperature=0.5)
        model.generate(IDS, max_new_tokens=24, do_sample=False)
        assert 5 < max(s.drafted for s in lookahead.last_stats(model).steps) <= 9
    assert (model.generation_config.to_dict(), model.config.to_dict()) == before


def test_l7_a_drafter_that_always_says_the_same_lasts_two_hundred_requests():
    """L7: it broke the service in a long stress test; memory stays flat."""
    model = fresh()
    process = psutil.Process(os.getpid())
    plain = model.generate(IDS, max_new_tokens=8, do_sample=False).tolist()
    with lookahead.accelerate(model, drafters=(Fixed([5, 6, 7, 8]),), strict=True):
        for call in range(200):
            assert model.generate(IDS, max_new_tokens=8, do_sample=False).tolist() == plain
            if call == 50:
                gc.collect()
                before = process.memory_info().rss
    gc.collect()
    assert process.memory_info().rss < 1.05 * before


def test_l8_what_a_call_learnt_can_be_forgotten():
    """L1: forget drops what earlier calls taught; the answer is the same before and after."""
    model = fresh()
    lookahead.accelerate(model, nodes=8, strict=True)
    first = model.generate(IDS, max_new_tokens=20, do_sample=False).tolist()
    steps = lookahead.last_stats(model).steps
    for _ in range(3):
        model.generate(prompt(25, seed=9, repeat=8), max_new_tokens=20, do_sample=False)
    lookahead.forget(model)
    assert model.generate(IDS, max_new_tokens=20, do_sample=False).tolist() == first
    assert lookahead.last_stats(model).steps == steps


def test_l9_text_of_one_call_is_no_draft_of_the_next():
    """L1: no text of a prompt or an answer outlives its call."""
    model = shared()
    one = check(model, IDS, max_new_tokens=20, do_sample=False)
    again = check(model, IDS, max_new_tokens=20, do_sample=False)
    assert one.stats.steps == again.stats.steps
