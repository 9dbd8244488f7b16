"""Guesses of strangers, made safe."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookahead import DraftTree, TreeError
from lookahead.drafters.offers import as_offer
from tests.drafters import forged

VOCAB = 50


def _offer(guesses, max_nodes=16):
    return as_offer(guesses, 0, 9, max_nodes, VOCAB)


def _paths(offer):
    """The guesses that an offer holds, as a set of paths."""
    found = []
    for node in range(1, len(offer.tokens)):
        path, at = [], node
        while at:
            path.append(int(offer.tokens[at]))
            at = int(offer.parents[at])
        found.append(tuple(path[::-1]))
    return set(found)


@pytest.mark.parametrize("nothing", [None, [], (), [[]], [[], []], np.array([]), torch.tensor([])])
def test_nothing_offers_nothing(nothing):
    assert _offer(nothing) == (None, None)


@pytest.mark.parametrize(
    "guess",
    [
        [5, 6, 7],
        (5, 6, 7),
        np.array([5, 6, 7]),
        torch.tensor([5, 6, 7]),
        iter([5, 6, 7]),
        [np.int64(5), np.int32(6), 7],
        range(5, 8),
        [[5, 6, 7]],
        torch.tensor([[5, 6, 7]]),
    ],
)
def test_one_guess_may_come_in_any_dress(guess):
    offer, fault = _offer(guess)
    assert fault is None
    assert offer.tokens.tolist() == [9, 5, 6, 7]
    assert offer.parents.tolist() == [0, 0, 1, 2]


def test_whole_guesses_become_a_tree():
    offer, _ = _offer([[5, 6], [5, 7], [8]])
    assert _paths(offer) == {(5,), (5, 6), (5, 7), (8,)}


@pytest.mark.parametrize(
    "wrong",
    [
        "abc",
        3,
        3.5,
        object(),
        [object()],
        [[5], 6],
        [5, [6]],
        {5: {6}},
        [None],
        [["a"]],
        True,
        b"ab\xff",
    ],
)
def test_what_is_no_guess_is_an_error_or_at_worst_tokens(wrong):
    try:
        offer, _ = _offer(wrong)
    except TreeError:
        return
    assert offer is None or all(0 <= t < VOCAB for t in offer.tokens.tolist())


def test_the_message_about_what_is_no_guess_names_its_type():
    with pytest.raises(TreeError, match="returned complex"):
        _offer(1j)


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31, 2**40, -(2**40)])
def test_tokens_outside_the_vocabulary_are_cut_out_with_all_below(token):
    offer, fault = _offer([[5, token, 6], [7]])
    assert _paths(offer) == {(5,), (7,)}
    assert str(token) in fault
    offer, fault = _offer([token, 5])
    assert offer is None
    assert str(VOCAB) in fault


def test_nodes_behind_the_limit_are_cut_off():
    offer, _ = _offer(list(range(40)), 5)
    assert offer.tokens.tolist() == [9, 0, 1, 2, 3, 4]
    offer, _ = _offer([[n] for n in range(40)], 5)
    assert len(offer.tokens) == 6


@pytest.mark.parametrize(
    "endless",
    [
        itertools.count,
        lambda: itertools.repeat([5, 6]),
        lambda: [itertools.repeat(5)],
        lambda: (itertools.count() for _ in range(2)),
    ],
)
def test_a_guess_without_an_end_is_read_no_further_than_needed(endless):
    class Guard:
        """Stops a reader that would never stop, so that this test can fail."""

        def __init__(self, inner):
            self.inner, self.left = iter(inner), 20_000

        def __iter__(self):
            return self

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                raise AssertionError("read without end")
            item = next(self.inner)
            return Guard(item) if hasattr(item, "__iter__") else item

    offer, _ = _offer(Guard(endless()))
    assert offer is None or len(offer.tokens) <= 17


def test_probabilities_are_given_on_by_share():
    tree = DraftTree.from_parents([9, 5, 6], [0, 0, 1], [1.0, 0.5, 0.1])
    offer, _ = _offer(tree)
    assert offer.probabilities.tolist() == pytest.approx([1.0, 0.5, 0.2])


@pytest.mark.parametrize("values", [[1, -1, 5], [1, np.nan, np.inf], [0, 0, 0], [1, 9, 1e30]])
def test_impossible_probabilities_are_made_possible(values):
    tree = DraftTree.from_parents([9, 5, 6], [0, 0, 1], values)
    offer, _ = _offer(tree)
    assert np.isfinite(offer.probabilities).all()
    assert ((offer.probabilities >= 0) & (offer.probabilities <= 1)).all()


@pytest.mark.parametrize("parents", [[0, 2, 1], [0, 1, 1], [0, 7, 0], [0, -1, 0], [0, 0, 2]])
def test_a_tree_past_its_own_checks_offers_no_cycle(parents):
    tree = forged(
        np.array([9, 5, 6]), np.array(parents), np.array([0, 1, 1]), np.ones(3, np.float32)
    )
    try:
        offer, _ = _offer(tree)
    except (TreeError, IndexError, ValueError):
        return  # reported, and the drafter dropped
    if offer is not None:
        assert all(offer.parents[n] < n for n in range(1, len(offer.tokens)))


def test_the_root_of_a_tree_is_not_looked_at():
    offer, fault = _offer(DraftTree.from_parents([-7, 5], [0, 0]))
    assert fault is None
    assert offer.tokens.tolist()[1:] == [5]


@given(st.lists(st.lists(st.integers(-3, VOCAB + 3), max_size=6), max_size=6), st.integers(1, 12))
def test_whatever_comes_in_a_small_tree_of_real_tokens_goes_out(guesses, max_nodes):
    offer, fault = as_offer(guesses, 2, 9, max_nodes, VOCAB)
    allowed = set()
    for guess in guesses:
        for end in range(1, len(guess) + 1):
            if all(0 <= t < VOCAB for t in guess[:end]):
                allowed.add(tuple(guess[:end]))
            else:
                break
    if offer is None:
        # No more guesses are read than there may be nodes.
        assert fault is not None or not allowed or not any(guesses[:max_nodes])
        return
    assert offer.source == 2
    assert 1 < len(offer.tokens) <= max_nodes + 1
    assert _paths(offer) <= allowed
