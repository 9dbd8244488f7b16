"""Kind Q: what makes it fast, and what tells a user when it is not."""

from __future__ import annotations

import time

import numpy as np
import pytest

import ngram_pool
from lookahead.cost_curve import CostCurve
from lookahead.stats import DecodeStats, SourceStats, StepRecord
from tests.drafters import Fixed, Oracle
from tests.helpers import check, new_ids, prompt, shared
from tests.toys import decode, scripted


def test_q1_the_report_names_acceptance_break_even_and_advice():
    """Q1: no gain, even a loss, and no way to see why."""
    model, ids = shared(), prompt(18, repeat=4)
    runs = check(
        model,
        ids,
        max_new_tokens=24,
        do_sample=False,
        settings={"sources": (), "drafters": (Fixed([3, 4, 5]),), "nodes": 16},
    )
    text = runs.stats.summary()
    assert f"MAT {runs.stats.mean_acceptance_length:.2f}" in text
    assert "fixed 0/" in text
    assert f"break-even MAT {runs.stats.break_even:.2f}" in text
    losing = DecodeStats(
        new_tokens=11,
        passes=10,
        break_even=1.5,
        is_fixed=True,
        drafted=40,
        by_source={"ngrams": SourceStats(40, 0)},
        steps=[StepRecord(4, 0, 1)] * 10,
    )
    assert "cost more than it returned" in losing.summary()
    assert "fewer nodes" in losing.summary()
    winning = DecodeStats(
        new_tokens=31,
        passes=10,
        break_even=1.5,
        is_fixed=True,
        drafted=40,
        steps=[StepRecord(4, 2, 3)] * 10,
    )
    assert "cost more" not in winning.summary()
    plain = DecodeStats(accelerated=False, plain_reason="of a reason", new_tokens=3)
    assert "plain, because of a reason" in plain.summary()


@pytest.mark.parametrize("kind", ["random", "repeating"])
def test_q3_a_proposal_at_fifty_thousand_tokens_takes_less_than_a_millisecond(kind):
    """Q3: a search over 50k tokens each step took over."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, 32_000, 50_000)
    if kind == "repeating":
        tokens = np.tile(tokens[:5_000], 10)
    pool = ngram_pool.NgramPool()
    pool.extend(tokens)
    pool.propose(16, max_depth=50)
    times = []
    for token in tokens[:200].tolist():
        pool.extend([token])
        start = time.perf_counter()
        pool.propose(16, max_depth=50)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 1e-3


@pytest.mark.parametrize("block", [2, 4, 8])
def test_q5_a_text_that_repeats_itself_is_accepted_nearly_whole(block):
    """Q5: the search key lacked the newest token, so acceptance was nothing."""
    phrase = list(np.random.default_rng(1).permutation(90)[:60].tolist())
    text = phrase * 3
    _, stats = decode(
        scripted(text, 100), phrase, 110, sample=False, nodes=block, sources=("ngrams",)
    )
    accepted = [step.accepted for step in stats.steps[2:-1]]
    assert np.mean(accepted) >= block - 1


@pytest.mark.parametrize("block", [1, 4, 16])
def test_q7_the_plain_continuation_as_a_draft_is_accepted_whole(block):
    """Q7: the model as its own drafter matched nothing."""
    model, ids = shared(), prompt(12)
    num = 1 + 6 * (block + 1)
    text = ids[0].tolist() + new_ids(model, ids, num + block)
    runs = check(
        model,
        ids,
        max_new_tokens=num,
        do_sample=False,
        settings={"sources": (), "drafters": (Oracle(text, block),), "nodes": block},
    )
    steps = [(s.drafted, s.accepted, s.emitted) for s in runs.stats.steps]
    assert all(drafted == accepted for drafted, accepted, _ in steps)
    # Of a drafter that it has never seen, the first tree may hold less than all it says.
    assert steps[1:5] == [(block, block, block + 1)] * 4
    if block < 16:
        assert steps[0] == steps[1]
        assert runs.stats.mean_acceptance_length == block + 1
        assert runs.stats.by_source["oracle"] == SourceStats(6 * block, 6 * block)


def test_q8_where_rows_cost_too_much_nothing_is_drafted():
    """Q1: drafting that cannot pay is not done."""
    curve = CostCurve()
    for _ in range(50):
        for rows in range(1, 20):
            curve.learn(rows, 0.001 * rows**2)
    law = [0.125] * 8
    _, stats = decode(lambda context: law, [1, 2, 3], 200, nodes="auto", curve=curve)
    assert stats.nodes_per_pass < 0.5
