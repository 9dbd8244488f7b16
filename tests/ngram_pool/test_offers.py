"""Offers of other drafters: what is taken, merged and refused."""

import numpy as np
import pytest

from ngram_pool import DictPool, NgramPool, Offer
from ngram_pool.features import (
    NUM_GUESS,
    NUM_HIDDEN,
    exit_feature,
    exit_others,
    head_feature,
    head_others,
)
from ngram_pool.layout import EXIT_OFFER, HEAD_OFFER, MAX_OFFERS, WINDOW_OFFER
from tests.ngram_pool.oracles import (
    assert_same_proposal,
    paths_of,
    random_calibration,
    random_offers,
)


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
        assert proposal.buckets.tolist() == [0, NUM_HIDDEN + 3 * 8 + 7]
        assert proposal.sources.tolist() == [0, 4 | 32]


def test_the_window_is_calibrated_as_a_fifth_drafter(pool):
    pool.extend([9])
    proposal = pool.propose(1, ngrams=False, offers=[Offer(WINDOW_OFFER, [9, 1], [0, 0], [1, 0.9])])
    assert proposal.buckets.tolist() == [0, NUM_HIDDEN + 4 * 8 + 7]
    assert proposal.sources.tolist() == [0, 4 << WINDOW_OFFER]
    assert proposal.sources.dtype == np.uint16


def guesses(proposal):
    """The third feature of each drafted node, by token."""
    guess = proposal.buckets[1:] % NUM_GUESS
    return dict(zip(proposal.tokens[1:].tolist(), guess.tolist(), strict=True))


def test_the_head_is_judged_by_depth_rank_and_probability(pool):
    pool.extend([9])
    head = Offer(HEAD_OFFER, [9, 1, 2, 3, 4], [0, 0, 0, 1, 1], [1, 0.9, 0.06, 0.4, 0.3])
    proposal = pool.propose(9, ngrams=False, min_probability=0, offers=[head])
    assert guesses(proposal) == {
        1: head_feature(0, 0, 0.9),
        2: head_feature(0, 1, 0.06),
        3: head_feature(1, 0, 0.4),
        4: head_feature(1, 1, 0.3),
    }
    assert set(proposal.sources[1:].tolist()) == {4 << HEAD_OFFER}


def test_early_exit_has_the_last_word_over_the_head(pool):
    pool.extend([9])
    head = Offer(HEAD_OFFER, [9, 1, 2], [0, 0, 0], [1, 0.5, 0.3])
    early = Offer(EXIT_OFFER, [9, 2, 3], [0, 0, 0], [1, 0.7, 0.1])
    for offers in ([head, early], [early, head]):
        proposal = pool.propose(9, ngrams=False, min_probability=0, offers=offers)
        assert guesses(proposal) == {
            1: head_feature(0, 0, 0.5),
            2: exit_feature(0, 0.7),
            3: exit_feature(1, 0.1),
        }
        sources = dict(zip(proposal.tokens.tolist(), proposal.sources.tolist(), strict=True))
        assert sources == {9: 0, 1: 128, 2: 128 | 256, 3: 256}


def test_tokens_that_hidden_states_do_not_name_are_known_as_such(pool):
    pool.extend([1, 5, 1, 6, 1])
    head = Offer(HEAD_OFFER, [1, 5, 7], [0, 0, 1], [1, 0.5, 0.5])
    early = Offer(EXIT_OFFER, [1, 5], [0, 0], [1, 0.5])
    proposal = pool.propose(40, max_depth=2, min_probability=0, recycled=False, offers=[head])
    by_path = dict(zip(paths_of(proposal), (proposal.buckets % NUM_GUESS).tolist(), strict=True))
    assert by_path[5,] == head_feature(0, 0, 0.5)
    assert by_path[6,] == head_others(0)
    assert by_path[5, 1] == head_others(1)
    assert by_path[6, 1] == 0, "the head was not asked there"
    proposal = pool.propose(40, max_depth=1, recycled=False, offers=[head, early])
    assert guesses(proposal)[6] == exit_others()
    # Nothing named is nothing said: a leaf of an offer was not asked about.
    proposal = pool.propose(40, max_depth=2, min_probability=0, recycled=False, offers=[early])
    by_path = dict(zip(paths_of(proposal), (proposal.buckets % NUM_GUESS).tolist(), strict=True))
    assert by_path[5, 1] == 0


@pytest.mark.parametrize("source", [HEAD_OFFER, EXIT_OFFER])
def test_nodes_of_probability_minus_one_only_lead_on(pool, source):
    pool.extend([1, 5, 1])
    offer = Offer(source, [1, 5, 8, 4, 7], [0, 0, 0, 1, 2], [1, -1, -1, 0.9, 0.9])
    proposal = pool.propose(40, max_depth=2, min_probability=0, recycled=False, offers=[offer])
    paths = dict(zip(paths_of(proposal), range(len(proposal.tokens)), strict=True))
    assert (5,) in paths, "n-grams name it"
    assert proposal.sources[paths[5,]] == 1
    assert proposal.buckets[paths[5,]] % NUM_GUESS == 0, "and nobody else says anything of it"
    assert proposal.sources[paths[5, 4]] == 4 << source
    assert (8,) not in paths, "nobody names it"


def test_a_node_that_leads_on_takes_no_rank(pool):
    pool.extend([1, 5, 1])
    offer = Offer(HEAD_OFFER, [1, 5, 8, 4], [0, 0, 0, 1], [1, -1, 0.4, 0.9])
    proposal = pool.propose(40, max_depth=1, recycled=False, offers=[offer])
    assert guesses(proposal)[8] == head_feature(0, 0, 0.4)
    assert guesses(proposal)[5] == head_others(0)


def test_siblings_of_which_one_merely_leads_on_are_named():
    offer = Offer(HEAD_OFFER, [0, 5, 5, 6], [0, 0, 0, 1], [1, -1, 0.4, 0.3])
    assert offer.tokens.tolist() == [0, 5, 6]
    np.testing.assert_allclose(offer.probabilities, [1, 0.4, 0.3])
    offer = Offer(EXIT_OFFER, [0, 5, 5], [0, 0, 0], [1, -1, -1])
    assert offer.probabilities.tolist() == [1, -1]


@pytest.mark.parametrize("seed", range(30))
def test_both_pools_agree_on_random_trees_of_every_source(seed):
    rng = np.random.default_rng(seed)
    fast, slow = (kind(random_calibration(seed)) for kind in (NgramPool, DictPool))
    text = rng.integers(0, 4, 40)
    rows = (
        rng.integers(-1, 4, 9),
        rng.integers(0, 4, 9),
        rng.integers(-1, 6, (9, 8)),
        rng.random((9, 8), np.float32),
    )
    for pool in (fast, slow):
        pool.extend(text)
        pool.recycle(*rows)
    for count in range(MAX_OFFERS + 1):
        offers = random_offers(rng, count)
        for max_nodes in (3, 60):
            proposal = fast.propose(max_nodes, min_probability=0.001, offers=offers)
            assert_same_proposal(
                proposal, slow.propose(max_nodes, min_probability=0.001, offers=offers)
            )
            path = [0, *(np.flatnonzero(proposal.parents[1:] == 0)[:1] + 1).tolist()]
            for pool in (fast, slow):
                pool.learn(proposal, path, [*proposal.tokens[path[1:]].tolist(), 0])


def test_offers_work_on_an_empty_pool(pool):
    proposal = pool.propose(4, offers=[Offer(0, [0, 1], [0, 0], [1, 0.9])])
    assert proposal.tokens.tolist() == [0, 1]


def test_root_values_are_not_looked_at():
    offer = Offer(0, [-7, 1], [5, 0], [np.nan, 0.5])
    assert offer.parents.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("source", "tokens", "parents", "probabilities"),
    [
        (MAX_OFFERS, [0, 1], [0, 0], [1, 0.5]),
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


@pytest.mark.parametrize("source", range(MAX_OFFERS))
@pytest.mark.parametrize("probability", [-1.0, -0.5, -1.001, -2.0, -np.inf, np.inf])
def test_only_drafters_that_read_hidden_states_have_nodes_that_lead_on(source, probability):
    if source >= HEAD_OFFER and probability == -1.0:
        Offer(source, [0, 1], [0, 0], [1, probability])
        return
    with pytest.raises(ValueError, match="from 0 to 1"):
        Offer(source, [0, 1], [0, 0], [1, probability])


def test_two_offers_of_one_source_are_refused(pool):
    offer = Offer(2, [0, 1], [0, 0], [1, 0.5])
    with pytest.raises(ValueError, match="one offer per source"):
        pool.propose(4, offers=[offer, offer])


def test_arrays_of_the_caller_are_not_changed():
    parents = np.array([7, 0])
    Offer(0, np.array([0, 1]), parents, np.array([0.3, 1.0005], np.float32))
    assert parents.tolist() == [7, 0]
