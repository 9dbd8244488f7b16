"""Whether drafting pays, and how much of what trees promise comes true."""

from __future__ import annotations

import pytest

from lookahead.pace import (
    COST_OF_TRYING,
    CREDIT,
    EXPECTED_TOKENS,
    FIRST_ALLOWANCE,
    MOST_SAVED,
    SHARE,
    Pace,
    Trust,
)

PLAIN_S = 0.01


def run(pace, tokens, steps, num):
    """Tell so many steps; drafted ones emit ``tokens`` in the time of ``steps`` plain ones.

    Returns whether each was plain, and the tokens and the plain steps of all together.
    """
    rested, emitted, spent = [], 0.0, 0.0
    for _ in range(num):
        rested.append(pace.is_resting)
        mine = (1.0, 1.0) if pace.is_resting else (tokens, steps)
        pace.learn(mine[0], mine[1] * PLAIN_S, PLAIN_S)
        emitted, spent = emitted + mine[0], spent + mine[1]
    return rested, emitted, spent


def test_what_pays_never_rests():
    rested, _, _ = run(Pace(), tokens=2.0, steps=1.5, num=300)
    assert not any(rested)


@pytest.mark.parametrize("num", [100, 1000, 5000])
@pytest.mark.parametrize("steps", [1.1, 1.5, 3.0])
def test_text_that_cannot_be_guessed_costs_a_small_share_of_all_time(steps, num):
    rested, emitted, spent = run(Pace(), 1.0, steps, num)
    assert any(rested)
    # What is allowed at first, the share of all time, and by how much the last try went over it.
    assert spent - emitted <= FIRST_ALLOWANCE + SHARE * spent + 2 * (steps - 1)


@pytest.mark.parametrize("steps", [1.3, 1.5, 3.0])
def test_what_is_saved_elsewhere_may_be_lost_in_trying_and_no_more(steps):
    spare = 0.08
    rested, emitted, spent = run(Pace(spare), 1.0, steps, 1000)
    share = SHARE + spare
    most = FIRST_ALLOWANCE * share / SHARE + share * spent + 2 * (steps - 1)
    assert any(rested)
    assert most / 2 < spent - emitted <= most


def test_it_is_tried_again_now_and_then():
    rested, _, _ = run(Pace(), tokens=1.0, steps=1.5, num=1000)
    assert not all(rested[-200:])


def test_where_it_pays_again_it_rests_no_more():
    pace = Pace()
    run(pace, tokens=1.0, steps=1.5, num=500)
    run(pace, tokens=3.0, steps=1.5, num=200)
    rested, _, _ = run(pace, tokens=3.0, steps=1.5, num=200)
    assert not any(rested)


def test_gains_of_the_past_are_worth_a_few_steps_and_no_more():
    pace = Pace()
    run(pace, tokens=9.0, steps=1.5, num=500)
    rested, _, _ = run(pace, tokens=1.0, steps=2.0, num=50)
    drafted = rested.index(True)
    assert MOST_SAVED <= drafted <= MOST_SAVED + 2


def test_one_step_that_was_disturbed_changes_little():
    pace = Pace()
    run(pace, tokens=3.0, steps=1.5, num=20)
    pace.learn(3.0, 5 * PLAIN_S, PLAIN_S)
    rested, _, _ = run(pace, tokens=3.0, steps=1.5, num=20)
    assert not any(rested)


def test_nothing_is_concluded_before_the_time_of_a_plain_step_is_known():
    pace = Pace()
    for _ in range(50):
        pace.learn(1.0, 1.0, None)
        assert not pace.is_resting


@pytest.mark.parametrize("tokens_left", [1, 10, 50])
def test_a_short_call_may_lose_less(tokens_left):
    pace = Pace()
    pace.begin(0.0, tokens_left, PLAIN_S)
    rested, emitted, spent = run(pace, tokens=1.0, steps=1.2, num=tokens_left)
    assert spent - emitted <= SHARE * tokens_left + SHARE * spent + 0.2
    assert any(rested) or tokens_left == 1


def test_a_long_prompt_or_answer_allows_more_up_to_a_bound():
    def drafted(*given):
        pace = Pace()
        pace.begin(*given)
        return run(pace, tokens=1.0, steps=1.2, num=100)[0].index(True)

    short = drafted(0.0, 10, PLAIN_S)
    assert short < drafted(0.5, 10, PLAIN_S) <= drafted(500.0, 10, PLAIN_S)
    assert drafted(500.0, 10, PLAIN_S) == drafted(500.0, None, PLAIN_S)
    assert drafted(0.0, None, None) == drafted(0.0, EXPECTED_TOKENS, PLAIN_S)
    assert COST_OF_TRYING < FIRST_ALLOWANCE


def test_trust_begins_whole_and_is_never_more():
    trust = Trust()
    assert trust.share == 1.0
    for _ in range(20):
        trust.learn(1.0, 3)
        assert trust.share == 1.0


@pytest.mark.parametrize(("promised", "accepted", "share"), [(4.0, 2, 0.5), (4.0, 1, 0.25)])
def test_trust_is_the_share_that_came_true_lately(promised, accepted, share):
    trust = Trust()
    for _ in range(60):
        trust.learn(1.0, 0)
    for _ in range(150):
        trust.learn(promised, accepted)
    assert trust.share == pytest.approx(share, rel=0.01)


def test_first_trees_are_weighed_against_what_was_trusted_before():
    trust = Trust()
    trust.learn(3.0, 0)
    assert trust.share == pytest.approx(0.9 * CREDIT / (0.9 * CREDIT + 3.0))


def test_no_tree_says_nothing():
    trust = Trust()
    trust.learn(3.0, 0)
    before = trust.share
    trust.learn(0.0, 0)
    assert trust.share == before
