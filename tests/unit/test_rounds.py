"""How often a node drafter is asked in a step, by what its rounds win and take."""

from __future__ import annotations

import numpy as np
import pytest

import ngram_pool
from lookahead import Config
from lookahead.budget import Plan
from lookahead.drafters import merge
from lookahead.drafters.base import Candidates
from lookahead.drafters.merge import ROUNDS, WON, MergedDrafter
from lookahead.stats import DecodeStats
from ngram_pool.layout import HEAD_OFFER

VOCAB = 64
CONTEXT = list(range(10))


class Sure:
    """Names the next tokens after each node, and says how long an answer took."""

    name = "head"

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.asked = clock, seconds, []

    def ask(self, context, tree, nodes, noise=None):
        self.clock.now += self.seconds[len(self.asked) % len(self.seconds)]
        self.asked.append(len(nodes))
        tokens = np.array([[20 + (7 * n + i) % 40 for i in range(3)] for n in nodes], np.int32)
        return Candidates(tokens, np.full(tokens.shape, 0.3, np.float32))


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


def drafter(monkeypatch, seconds):
    clock = Clock()
    monkeypatch.setattr(merge, "time", clock)
    sure = Sure(clock, seconds)
    pool = ngram_pool.new_pool()
    merged = MergedDrafter(
        Config(sources=("head",)), pool, DecodeStats(), VOCAB, {HEAD_OFFER: sure}
    )
    pool.extend(CONTEXT)
    return merged, sure


def asked(merged, sure, token_s):
    sure.asked.clear()
    merged.draft(CONTEXT, Plan(16, token_s=token_s), 8)
    return len(sure.asked)


def test_all_rounds_are_asked_where_time_is_no_matter(monkeypatch):
    merged, sure = drafter(monkeypatch, [100.0])
    for _ in range(3):
        assert asked(merged, sure, None) == len(ROUNDS) == len(WON)


def test_all_are_tried_and_those_that_take_more_than_they_win_are_left_out(monkeypatch):
    merged, sure = drafter(monkeypatch, [0.001, 0.001, 50.0, 0.001])
    assert asked(merged, sure, 0.1) == len(ROUNDS), "nothing is known of their time yet"
    assert asked(merged, sure, 0.1) == 2, "each has a time of its own"
    assert asked(merged, sure, 1e6) == len(ROUNDS), "tokens have become dear"


@pytest.mark.parametrize("token_s", [1e-9, 0.0])
def test_none_is_asked_where_a_token_is_worth_nothing(monkeypatch, token_s):
    merged, sure = drafter(monkeypatch, [0.001])
    asked(merged, sure, token_s)
    assert asked(merged, sure, token_s) == 0
