"""Definitions of the figures."""

from __future__ import annotations

import pytest

from lookahead import DecodeStats, SourceStats, StepRecord
from lookahead.stats import PARTS
from tests.toys import decode, scripted


def test_the_mean_acceptance_length_counts_the_bonus_token_and_not_the_prefill():
    stats = DecodeStats(new_tokens=1 + 3 + 1 + 4, passes=3)
    for accepted in (2, 0, 3):
        stats.record(StepRecord(4, accepted, accepted + 1))
    assert stats.mean_acceptance_length == pytest.approx(8 / 3)
    assert stats.accepted == 5
    assert stats.drafted == 12
    assert stats.nodes_per_pass == 4.0


def test_plain_decoding_has_one():
    assert DecodeStats().mean_acceptance_length == 1.0
    assert DecodeStats(new_tokens=10, passes=9).mean_acceptance_length == 1.0
    assert DecodeStats(rows=2, new_tokens=20, passes=9).mean_acceptance_length == pytest.approx(1.0)


def test_rows_are_counted_apart():
    stats = DecodeStats(rows=2, new_tokens=2 + 3 + 1, passes=1)
    stats.record(StepRecord(2, 2, 3))
    stats.record(StepRecord(2, 0, 1))
    assert stats.mean_acceptance_length == 2.0


def test_depths_are_counted_up_to_the_accepted_one():
    stats = DecodeStats()
    for accepted in (2, 0, 3, 1):
        stats.count_depths(accepted)
    assert stats.accepted_by_depth == [3, 2, 1]


def test_a_note_is_kept_once():
    stats = DecodeStats()
    stats.note("a")
    stats.note("a")
    stats.note("b")
    assert stats.notes == ["a", "b"]


def test_times_are_added_by_part_even_where_a_block_fails():
    stats = DecodeStats()
    with pytest.raises(KeyError), stats.timed("draft"):
        raise KeyError
    assert set(stats.time_ms) == set(PARTS)
    assert stats.time_ms["draft"] > 0


def test_nothing_divides_by_nothing():
    stats = DecodeStats()
    assert stats.tokens_per_s == 0.0
    assert stats.nodes_per_pass == 0.0
    assert "0 tokens" in stats.summary()


def test_speed_is_new_tokens_by_seconds_of_the_call():
    assert DecodeStats(new_tokens=50, seconds=2.0).tokens_per_s == 25.0


def test_two_runs_do_not_share_their_lists():
    one, other = DecodeStats(), DecodeStats()
    one.note("a")
    one.by_source["x"] = SourceStats()
    one.time_ms["draft"] += 1
    assert not other.notes
    assert not other.by_source
    assert other.time_ms["draft"] == 0


def test_an_engine_s_run_adds_up():
    text = [1, 2, *[3, 4, 5] * 20]
    tokens, stats = decode(scripted(text, 10), [1, 2], 40, sample=False, nodes=4)
    assert stats.new_tokens == len(tokens) == 40
    assert sum(step.emitted for step in stats.steps) == 39
    assert all(step.emitted == step.accepted + 1 for step in stats.steps)
    assert stats.drafted == sum(step.drafted for step in stats.steps)
    assert sum(stats.accepted_by_depth) == stats.accepted
    assert len(stats.steps) == stats.passes
    for source in stats.by_source.values():
        assert 0 <= source.accepted <= source.offered <= stats.drafted
    assert sum(s.accepted for s in stats.by_source.values()) >= stats.accepted
    assert stats.seconds >= 0
