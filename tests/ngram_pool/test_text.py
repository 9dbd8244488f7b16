"""The text side of both pools against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ngram_pool
from ngram_pool.layout import MAX_CHAIN, MAX_TOKEN
from tests.ngram_pool.oracles import (
    compiled_counts,
    longest_match,
    next_tokens,
    top_of,
)

# No suffix chain of a text that short is longer than the cap.
SHORT_TEXT = st.lists(st.integers(0, 3), max_size=MAX_CHAIN)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=st.lists(st.integers(0, 2), max_size=80))
def test_longest_match_is_the_longest_suffix_seen_before(text):
    for kind in (ngram_pool.NgramPool, ngram_pool.DictPool):
        pool = kind()
        pool.extend(text)
        assert pool.longest_match() == longest_match(text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=SHORT_TEXT)
def test_every_string_of_the_text_has_exact_next_token_counts(text):
    fast, slow = ngram_pool.NgramPool(), ngram_pool.DictPool()
    fast.extend(text)
    slow.extend(text)
    for start in range(len(text)):
        for stop in range(start + 1, min(start + 8, len(text)) + 1):
            string = text[start:stop]
            following = next_tokens(text, string)
            assert compiled_counts(fast, string) == (top_of(following), len(following))
            state = slow._text.root
            for token in string:
                state = state.edges[token]
            assert [(t, state.counts[t]) for t in state.top] == top_of(following)
            assert state.total == len(following)


def test_more_than_four_next_tokens_are_counted_exactly():
    rng = np.random.default_rng(2)
    text = []
    for token in rng.integers(1, 9, 300).tolist():
        text += [0, token]  # a chain of two states: never capped
    fast = ngram_pool.NgramPool()
    fast.extend(text)
    following = next_tokens(text, [0])
    assert compiled_counts(fast, [0]) == (top_of(following), len(following))


def test_automaton_stays_linear_in_a_loop(kind):
    pool = kind()
    pool.extend([7] * 3_000)
    assert pool.stats().states == 3_001
    assert pool.longest_match() == 2_999
    assert pool.propose(8).tokens.tolist() == [7] * 9


def test_text_beyond_the_bound_keeps_the_recent_half(kind):
    pool = kind(max_tokens=100)
    pool.extend(range(100))
    assert len(pool) == 100
    pool.extend([100])
    assert len(pool) == 50
    pool.extend([50])  # forgotten with the older half
    assert pool.longest_match() == 0
    pool.extend([60])  # kept
    assert pool.longest_match() == 1


def test_text_in_one_call_beyond_the_bound_keeps_the_most_recent(kind):
    pool = kind(max_tokens=10)
    pool.extend(range(1_000))
    assert 5 <= len(pool) <= 10
    assert pool.propose(0).tokens.tolist() == [999]


def test_memory_is_bounded():
    pool = ngram_pool.NgramPool(max_tokens=2_000, max_rows=100)
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(12):
        pool.extend(rng.integers(0, 50, 1_000))
        sizes.append(pool.stats().bytes)
    assert sizes[-1] == sizes[3]


@pytest.mark.parametrize("bad", [[-1], [1, -5, 2], [2**31], [1.5], ["a"], [True], [[1]], 3, None])
def test_what_is_no_token_is_refused_by_name_and_nothing_is_appended(pool, bad):
    pool.extend([1, 2])
    with pytest.raises(ValueError, match="received"):
        pool.extend(bad)
    assert len(pool) == 2
    assert pool.stats().states == 3


def test_bad_tokens_are_refused_even_if_they_would_be_forgotten(kind):
    pool = kind(max_tokens=4)
    with pytest.raises(ValueError, match="-3 at place 1"):
        pool.extend([1, -3, *range(50)])
    assert len(pool) == 0


def test_largest_token_and_every_integer_type_are_taken(pool):
    for dtype in (np.int32, np.int64, np.uint32, np.uint64):
        pool.extend(np.array([MAX_TOKEN, 0], dtype))
    readonly = np.array([5, 6])
    readonly.flags.writeable = False
    pool.extend(readonly)
    pool.extend(np.arange(10)[::2])
    pool.extend(())
    assert len(pool) == 15


def test_an_empty_pool_proposes_just_a_root(pool):
    for proposal in (pool.propose(8), pool.propose(0)):
        assert proposal.tokens.tolist() == [0]
        assert proposal.parents.tolist() == [0]
        assert proposal.probabilities.tolist() == [1.0]
    assert pool.longest_match() == 0


def test_clear_forgets_everything_but_the_calibration(pool):
    pool.extend([1, 2, 1, 2])
    pool.recycle([1], [2], [[3]], [[0.5]])
    pool.learn(pool.propose(4), [0], [1])
    learned = pool.calibration.counts.copy()
    pool.clear()
    assert len(pool) == 0
    assert pool.stats()[:3] == (0, 1, 0)
    np.testing.assert_array_equal(pool.calibration.counts, learned)


@pytest.mark.parametrize("bounds", [{"max_tokens": 1}, {"max_rows": 0}, {"max_tokens": -4}])
def test_bounds_too_small_to_work_with_are_refused(kind, bounds):
    with pytest.raises(ValueError, match="at least 2"):
        kind(**bounds)
