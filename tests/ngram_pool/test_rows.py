"""Recycled rows: which row answers, and which is forgotten."""

from collections import OrderedDict

import numpy as np
import pytest

import ngram_pool


def first_tokens(pool, text):
    """Proposed children of the root from rows alone, best first."""
    pool.extend(text)
    proposal = pool.propose(8, ngrams=False, max_depth=1)
    return proposal.tokens[1:].tolist()


def test_newest_row_of_a_key_wins(pool):
    pool.recycle([1, 1], [2, 2], [[5], [6]], [[0.9], [0.9]])
    assert first_tokens(pool, [1, 2]) == [6]
    assert pool.stats().rows == 2


def test_rows_that_are_there_can_be_left_as_they_are(pool):
    pool.recycle([1], [2], [[5]], [[0.9]])
    pool.recycle([1, 3], [2, 2], [[6], [7]], [[0.9], [0.9]], renew=False)
    assert first_tokens(pool, [1, 2]) == [5]
    assert first_tokens(pool, [3, 2]) == [7]  # a new pair is entered
    assert first_tokens(pool, [8, 2]) == [5]
    assert pool.stats().rows == 3
    pool.recycle([1], [2], [[6]], [[0.9]])
    assert first_tokens(pool, [1, 2]) == [6]


def test_within_one_call_the_first_row_of_a_key_stays_where_none_is_renewed(pool):
    pool.recycle([1, 1], [2, 2], [[5], [6]], [[0.9], [0.9]], renew=False)
    assert first_tokens(pool, [1, 2]) == [5]


def test_pair_is_asked_before_the_single_token(pool):
    pool.recycle([1], [2], [[5]], [[0.9]])
    pool.recycle([9], [2], [[6]], [[0.9]])
    assert first_tokens(pool, [1, 2]) == [5]
    assert first_tokens(pool, [8, 2]) == [6]  # unknown pair: newest row of the token


def test_unknown_previous_makes_a_single_key_only(pool):
    pool.recycle([-1], [2], [[5]], [[0.9]])
    assert pool.stats().rows == 1
    assert first_tokens(pool, [2]) == [5]


def test_first_token_of_a_text_has_only_a_single_key(pool):
    pool.recycle([0], [2], [[5]], [[0.9]])
    assert first_tokens(pool, [2]) == [5]


def test_padding_and_nonsense_in_a_row_are_left_out(pool):
    tokens = [[-1, 4, 5, 6, 2**40, 7]]
    pool.recycle([1], [2], tokens, [[0.9, np.nan, 0.0, -1.0, 0.9, 2.0]])
    assert first_tokens(pool, [1, 2]) == [7]


def test_rows_wider_than_eight_keep_the_first_eight(pool):
    pool.recycle([1], [2], [range(10, 22)], [[1.0] * 12])
    pool.extend([1, 2])
    proposal = pool.propose(20, ngrams=False, max_depth=1, min_probability=0)
    assert sorted(proposal.tokens[1:].tolist()) == list(range(10, 18))


@pytest.mark.parametrize("max_rows", [2, 5, 64])
def test_keys_are_forgotten_in_the_order_they_were_entered(kind, max_rows):
    rng = np.random.default_rng(max_rows)
    pool = kind(max_rows=max_rows)
    known = OrderedDict()
    for step in range(400):
        previous, token = int(rng.integers(-1, 12)), int(rng.integers(0, 12))
        pool.recycle([previous], [token], [[1000 + step]], [[0.9]])
        for key in [(previous, token)] * (previous >= 0) + [(None, token)]:
            if key not in known and len(known) == max_rows:
                known.popitem(last=False)
            known[key] = 1000 + step
        assert pool.stats().rows == len(known) <= max_rows
        if step % 20 == 0:
            for before in range(12):
                for last in range(12):
                    expected = known.get((before, last), known.get((None, last)))
                    pool.extend([500, before, last])  # no row stands before these two
                    drafted = pool.propose(1, ngrams=False).tokens[1:].tolist()
                    assert drafted == ([] if expected is None else [expected])


def test_a_full_store_looks_the_same_from_both_pools():
    rng = np.random.default_rng(9)
    pools = [kind(max_rows=1_500) for kind in (ngram_pool.NgramPool, ngram_pool.DictPool)]
    for _ in range(40):
        previous, tokens = rng.integers(-1, 300, 100), rng.integers(0, 300, 100)
        top = rng.integers(0, 300, (100, 8))
        probs = rng.random((100, 8), np.float32)
        for pool in pools:
            pool.recycle(previous, tokens, top, probs)
    fast, slow = pools
    order = fast._rows.order()
    keys = [tuple(key) for key in fast._rows.keys[order].tolist()]
    assert keys == [(-1 if p is None else p, t) for p, t in slow._rows.rows]


@pytest.mark.parametrize(
    "batch",
    [
        ([1], [2, 3], [[4]], [[0.5]]),
        ([1], [2], [4], [0.5]),
        ([1], [2], [[4, 5]], [[0.5]]),
        ([1], [2], [[0.5]], [[0.5]]),
        ([-2], [2], [[4]], [[0.5]]),
        ([1], [-2], [[4]], [[0.5]]),
        ([1.5], [2], [[4]], [[0.5]]),
    ],
)
def test_rows_that_do_not_fit_are_refused(pool, batch):
    with pytest.raises(ValueError, match="received"):
        pool.recycle(*batch)
    assert pool.stats().rows == 0


def test_read_only_and_strided_rows_are_taken(pool):
    top = np.array([[4, 0, 5, 0]])[:, ::2]
    probs = np.array([[0.9, 0.2]], np.float32)
    probs.flags.writeable = False
    pool.recycle(np.array([1]), np.array([2]), top, probs)
    assert first_tokens(pool, [1, 2]) == [4, 5]


def test_no_rows_are_no_rows(pool):
    pool.recycle([], [], np.empty((0, 8), np.int32), np.empty((0, 8), np.float32))
    assert pool.stats().rows == 0
