"""Whether drafting pays, and how much of what trees promise comes true."""

from __future__ import annotations

import pytest

from lookahead.pace import CREDIT, FEWEST_STEPS, FIRST_REST, LONGEST_REST, Pace, Trust


def rests(pace, tokens, seconds, steps, plain_s=0.01):
    """For each step, whether it was a plain one; plain steps emit one token in plain time."""
    found = []
    for _ in range(steps):
        found.append(pace.is_resting)
        if pace.is_resting:
            pace.learn(1.0, plain_s, plain_s)
        else:
            pace.learn(tokens, seconds, plain_s)
    return found


def lengths(flags):
    """Lengths of the runs of rest."""
    return [len(run) for run in "".join("r" if f else " " for f in flags).split()]


def test_what_pays_never_rests():
    assert not any(rests(Pace(), tokens=2.0, seconds=0.015, steps=300))


def test_a_loss_is_believed_after_a_few_steps():
    found = rests(Pace(), tokens=1.0, seconds=0.02, steps=FEWEST_STEPS + 1)
    assert found == [False] * FEWEST_STEPS + [True]


def test_rests_grow_and_have_a_longest():
    found = lengths(rests(Pace(), tokens=1.0, seconds=0.02, steps=1000))
    assert found[0] == FIRST_REST
    assert found[1] == 2 * FIRST_REST
    assert found[:-1] == sorted(found[:-1])
    assert max(found) == LONGEST_REST


def test_where_it_pays_again_the_next_rest_is_short_again():
    pace = Pace()
    rests(pace, tokens=1.0, seconds=0.02, steps=400)
    while pace.is_resting:
        pace.learn(1.0, 0.01, 0.01)
    assert not any(rests(pace, tokens=3.0, seconds=0.015, steps=30))
    assert lengths(rests(pace, tokens=1.0, seconds=0.05, steps=25))[0] == FIRST_REST


def test_nothing_is_concluded_before_the_time_of_a_plain_step_is_known():
    pace = Pace()
    for _ in range(50):
        pace.learn(1.0, 1.0, None)
        assert not pace.is_resting


def test_one_step_that_was_disturbed_changes_little():
    pace = Pace()
    rests(pace, tokens=3.0, seconds=0.015, steps=20)
    pace.learn(3.0, 5 * 0.015, 0.01)
    assert not any(rests(pace, tokens=3.0, seconds=0.015, steps=20))


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
    for _ in range(120):
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
