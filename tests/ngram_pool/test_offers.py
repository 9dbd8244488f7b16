"""Offers of other drafters: what is taken, merged and refused."""

import numpy as np
import pytest

from ngram_pool import Offer


def test_an_offered_tree_is_walked_along(pool):
    pool.extend([9])
    offer = Offer(0, [9, 1, 2, 3], [0, 0, 1, 0], [1.0, 0.9, 0.9, 0.05])
    proposal = pool.propose(3, ngrams=False, offers=[offer])
    assert proposal.tokens.tolist() == [9, 1, 2, 3]
    assert proposal.parents.tolist() == [0, 0, 1, 0]
    assert set(proposal.sources[1:].tolist()) == {4}


def test_siblings_with_one_token_are_merged_with_their_children():
    offer = Offer(1, [0, 5, 5, 6, 7, 6], [0, 0, 0, 1, 2, 2], [1, 0.2, 0.6, 0.5, 0.4, 0.9])
    assert offer.tokens.tolist() == [0, 5, 6, 7]
    assert offer.parents.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(offer.probabilities, [1, 0.6, 0.9, 0.4])


def test_the_most_confident_offer_gives_the_feature(pool):
    pool.extend([9])
    weak, strong = Offer(0, [9, 1], [0, 0], [1, 0.1]), Offer(3, [9, 1], [0, 0], [1, 0.9])
    for offers in ([weak, strong], [strong, weak]):
        proposal = pool.propose(1, ngrams=False, offers=offers)
        assert proposal.buckets.tolist() == [0, 1 + 3 * 8 + 7]
        assert proposal.sources.tolist() == [0, 4 | 32]


def test_offers_work_on_an_empty_pool(pool):
    proposal = pool.propose(4, offers=[Offer(0, [0, 1], [0, 0], [1, 0.9])])
    assert proposal.tokens.tolist() == [0, 1]


def test_root_values_are_not_looked_at():
    offer = Offer(0, [-7, 1], [5, 0], [np.nan, 0.5])
    assert offer.parents.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("source", "tokens", "parents", "probabilities"),
    [
        (4, [0, 1], [0, 0], [1, 0.5]),
        (-1, [0, 1], [0, 0], [1, 0.5]),
        (0, [], [], []),
        (0, [0, 1], [0], [1, 0.5]),
        (0, [0, 1], [0, 0], [0.5]),
        (0, [0, 1.5], [0, 0], [1, 0.5]),
        (0, [[0, 1]], [[0, 0]], [[1, 0.5]]),
        (0, [0, -1], [0, 0], [1, 0.5]),
        (0, [0, 2**31], [0, 0], [1, 0.5]),
        (0, [0, 1], [0, 1], [1, 0.5]),  # its own parent
        (0, [0, 1, 2], [0, 2, 1], [1, 0.5, 0.5]),  # a cycle
        (0, [0, 1], [0, -1], [1, 0.5]),
        (0, [0, 1], [0, 0], [1, 1.5]),
        (0, [0, 1], [0, 0], [1, -0.5]),
        (0, [0, 1], [0, 0], [1, np.nan]),
    ],
)
def test_garbage_is_refused(source, tokens, parents, probabilities):
    with pytest.raises(ValueError, match="Expected"):
        Offer(source, tokens, parents, probabilities)


def test_two_offers_of_one_source_are_refused(pool):
    offer = Offer(2, [0, 1], [0, 0], [1, 0.5])
    with pytest.raises(ValueError, match="one offer per source"):
        pool.propose(4, offers=[offer, offer])


def test_arrays_of_the_caller_are_not_changed():
    parents = np.array([7, 0])
    Offer(0, np.array([0, 1]), parents, np.array([0.3, 1.0005], np.float32))
    assert parents.tolist() == [7, 0]
