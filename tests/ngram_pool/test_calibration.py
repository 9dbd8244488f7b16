"""What is learned, kept and believed at first."""

import copy
import functools
import itertools
import pickle

import numba
import numpy as np
import pytest

import ngram_pool
from ngram_pool import Calibration, features
from ngram_pool.calibration import MOST_OFFERED, bucket
from ngram_pool.layout import HEAD_OFFER, WINDOW_OFFER


@pytest.fixture
def taught(pool):
    pool.extend([1, 2, 3, 1, 2, 4, 1, 2])
    pool.recycle([1], [2], [[3, 4, 5]], [[0.6, 0.3, 0.1]])
    return pool


def test_accepted_tokens_become_more_probable_and_others_less(taught):
    first = taught.propose(6, max_depth=1)
    chosen = int(first.tokens[1])
    for _ in range(30):
        proposal = taught.propose(6, max_depth=1)
        taught.learn(proposal, [0], [chosen])
    last = taught.propose(6, max_depth=1, min_probability=0)
    before = dict(zip(first.tokens.tolist(), first.probabilities.tolist(), strict=True))
    after = dict(zip(last.tokens.tolist(), last.probabilities.tolist(), strict=True))
    assert after[chosen] > before[chosen]
    assert all(after[t] < before[t] for t in before if t not in (2, chosen))


def test_only_children_of_the_path_are_counted():
    pool = ngram_pool.DictPool()
    pool.extend([1, 2, 3, 4, 1, 2, 5, 6, 1, 2])
    proposal = pool.propose(6)
    pool.learn(proposal, [0], [5])
    children = (proposal.parents[1:] == 0).sum()
    assert pool.calibration.counts[:, 1].sum() == children
    assert pool.calibration.counts[:, 0].sum() == 1


def test_every_node_of_the_path_teaches(taught):
    proposal = taught.propose(12)
    child = int(np.flatnonzero(proposal.parents[1:] == 0)[0]) + 1
    taught.learn(proposal, [0, child], [int(proposal.tokens[child]), 99])
    offered = np.isin(proposal.parents[1:], [0, child])
    assert taught.calibration.counts[:, 1].sum() == offered.sum()


@pytest.mark.parametrize(
    ("path", "chosen"), [([], []), ([1], [3]), ([0], []), ([0, 99], [1, 1]), ([0, 0], [1, 1])]
)
def test_paths_that_are_none_are_refused(taught, path, chosen):
    with pytest.raises(ValueError, match="Expected"):
        taught.learn(taught.propose(4), path, chosen)


def test_every_combination_of_features_has_counts_of_its_own():
    calibration = Calibration()
    calibration.counts[bucket(5, 7, 0)] = (3, 4)
    prior = float(calibration.priors[(5 * features.NUM_RECYCLED + 7) * features.NUM_HIDDEN])
    expected = features.rate(3, 4, prior, features.STRENGTH)
    assert calibration.probability(5, 7) == pytest.approx(expected)
    for given in ((5, 0), (5, 7, 9), (5, 7, 0, 9), (5, 7, 9, 9)):
        assert calibration.probability(*given) == Calibration().probability(*given)


def test_an_offer_that_agrees_is_worth_more_than_the_best_and_less_than_an_independent_one():
    calibration = Calibration()
    own, offered = calibration.probability(40, 20), calibration.probability(0, 0, 0, 30)
    together = calibration.probability(40, 20, 0, 30)
    assert max(own, offered) < together < 1 - (1 - own) * (1 - offered)


def test_of_hidden_states_and_offers_the_more_promising_counts():
    calibration = Calibration()
    head = features.head_feature(0, 0, 0.3)
    weak, strong = features.offer_feature(1, 0.01), features.offer_feature(1, 0.95)
    assert calibration.judge(0, 0, head, 0) == (calibration.probability(0, 0, head), head)
    assert calibration.judge(0, 0, head, weak) == calibration.judge(0, 0, head, 0)
    better = calibration.judge(0, 0, head, strong)
    assert better == calibration.judge(0, 0, 0, strong)
    assert better[0] > calibration.probability(0, 0, head)
    # Where hidden states say nothing an offer counts, however poor: silence is no estimate.
    assert calibration.judge(0, 0, 0, weak)[1] == features.NUM_HIDDEN + weak - 1


def test_what_was_counted_decides_which_of_them_counts():
    calibration = Calibration()
    head, offer = features.head_feature(0, 0, 0.9), features.offer_feature(2, 0.05)
    guess = features.NUM_HIDDEN + offer - 1
    assert calibration.judge(0, 0, head, offer)[1] == head
    calibration.counts[bucket(0, 0, head)] = (0, 900)
    calibration.counts[bucket(0, 0, guess)] = (800, 900)
    assert calibration.judge(0, 0, head, offer)[1] == guess


def test_the_feature_that_counted_is_the_one_that_learns(pool):
    pool.extend([9])
    head = ngram_pool.Offer(HEAD_OFFER, [9, 1, 2], [0, 0, 0], [1, 0.9, 0.004])
    other = ngram_pool.Offer(0, [9, 1, 2], [0, 0, 0], [1, 0.01, 0.99])
    proposal = pool.propose(2, ngrams=False, min_probability=0, offers=[other, head])
    pool.learn(proposal, [0], [2])
    by_head = bucket(0, 0, features.head_feature(0, 0, 0.9))
    by_other = bucket(0, 0, features.NUM_HIDDEN + features.offer_feature(0, 0.99) - 1)
    assert pool.calibration.counts[by_head].tolist() == [0, 1]
    assert pool.calibration.counts[by_other].tolist() == [1, 1]
    assert pool.calibration.counts.sum() == 3


@pytest.mark.parametrize("length", [1, 2, 4, 12])
def test_a_source_that_names_other_tokens_speaks_against_a_guess(length):
    """What only one source knows is worth less where the other one had something to say."""
    calibration = Calibration()
    recycled = features.recycled_feature(0, 0, 0.6)
    named = features.ngram_feature(length, 1, 1, 1)
    others = features.ngram_others(length)
    against = calibration.probability(others, recycled, 0)
    assert against < calibration.probability(0, recycled, 0) or length == 1
    assert against < calibration.probability(named, recycled, 0)
    assert calibration.probability(named, features.recycled_others(0), 0) < calibration.probability(
        named, recycled, 0
    )


def test_compiled_probabilities_are_those_of_python():
    from ngram_pool import kernels_ask as ask
    from ngram_pool.kernels_grow import _judge as helper
    from tests.ngram_pool.oracles import random_calibration

    _judge = numba.njit(lambda *arguments: helper(*arguments))  # noqa: PLW0108
    calibration = random_calibration(3)
    scores = ask.Scores(calibration.counts, calibration.priors)
    cells = np.zeros((2, ask.CANDIDATE_WIDTH), np.int32)
    sizes = (features.NUM_NGRAM, features.NUM_RECYCLED, features.NUM_HIDDEN, features.NUM_OFFER)
    rng = np.random.default_rng(0)
    for given in (rng.integers(0, sizes, (200, 4)) * (rng.random((200, 4)) < 0.7)).tolist():
        cells[1, [ask.NGRAM, ask.RECYCLED, ask.HIDDEN, ask.OFFER]] = given
        probability = _judge(scores, cells, 1)
        assert (probability, cells[1, ask.GUESS]) == calibration.judge(*given)


def test_counts_are_halved_before_they_lose_precision():
    pool = ngram_pool.DictPool()
    pool.extend([1, 2, 1])
    proposal = pool.propose(1)
    pool.calibration.counts[:, 1] = MOST_OFFERED
    pool.calibration.counts[:, 0] = MOST_OFFERED / 4
    before = proposal.probabilities[1]
    pool.learn(proposal, [0], [2])
    assert pool.calibration.counts[:, 1].min() <= MOST_OFFERED / 2 + 1
    assert pool.propose(1).probabilities[1] == pytest.approx(0.25, abs=1e-3)
    assert before != 0.25


def test_pools_share_a_calibration(kind):
    shared = Calibration()
    first, second = kind(shared), kind(shared)
    first.extend([1, 2, 1])
    second.extend([1, 2, 1])
    before = second.propose(1).probabilities[1]
    first.learn(first.propose(1), [0], [2])
    assert second.propose(1).probabilities[1] > before


def test_snapshot_copy_and_pickle_keep_every_count():
    rng = np.random.default_rng(1)
    original = Calibration()
    cells = rng.integers(0, len(original.counts), 100)
    original.counts[cells] = rng.random((100, 2))
    restored = Calibration()
    restored.restore(original.snapshot())
    for twin in (
        restored,
        original.copy(),
        copy.deepcopy(original),
        pickle.loads(pickle.dumps(original)),
    ):
        np.testing.assert_array_equal(twin.counts, original.counts)
        np.testing.assert_array_equal(twin.priors, original.priors)
        twin.counts += 1
    assert original.counts.max() < 1


def test_a_snapshot_that_does_not_fit_changes_nothing():
    calibration = Calibration()
    calibration.counts[:9] += 1
    good = calibration.snapshot()
    bad = [
        {},
        good | {"priors": np.zeros(3, np.float32)},
        good | {"counts": good["counts"] * np.nan},
        good | {"counts": -good["counts"]},
        good | {"cells": np.array([-1]), "counts": np.ones((1, 2))},
        good | {"cells": np.array([0]), "counts": np.ones((2, 2))},
    ]
    for snapshot in bad:
        with pytest.raises(ValueError, match="Expected"):
            calibration.restore(snapshot)
        assert (calibration.counts[:9] == 1).all()
        assert (calibration.counts[9:] == 0).all()


def test_priors_can_be_replaced_and_have_one_value_a_feature():
    flat = np.full(features.NUM_PRIORS, 0.5, np.float32)
    assert Calibration(flat).probability(1, 0, 0) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="priors"):
        Calibration(flat[:-1])


def test_features_cover_their_range_without_gaps():
    lengths, probabilities = range(40), np.linspace(0, 1, 101).tolist()
    ngram = {
        features.ngram_feature(length, count, total, recent)
        for length in lengths
        for total in range(1, 12)
        for count in range(1, total + 1)
        for recent in (0, 1)
    }
    recycled = {
        features.recycled_feature(kind, rank, p)
        for kind in (features.PAIR, features.SINGLE, features.PARENT)
        for rank in range(8)
        for p in probabilities
    }
    offer = {features.offer_feature(s, p) for s in range(WINDOW_OFFER + 1) for p in probabilities}
    assert ngram == set(range(1, 91))
    assert {features.ngram_others(length) for length in lengths} == {91, 92, 93}
    assert recycled == set(range(1, 97))
    assert {features.recycled_others(kind) for kind in (0, 1)} == {97, 98}
    assert offer == set(range(1, features.NUM_OFFER))


def test_features_of_hidden_states_cover_their_range_without_gaps():
    probabilities = np.linspace(0, 1, 1001).tolist()
    head = {
        features.head_feature(depth, rank, p)
        for depth in (0, 1, 5)
        for rank in (0, 1, 9)
        for p in probabilities
    }
    early = {features.exit_feature(rank, p) for rank in (0, 1, 9) for p in probabilities}
    silent = {features.head_others(depth) for depth in (0, 1, 5)} | {features.exit_others()}
    assert head == set(range(1, 41))
    assert early == set(range(43, 63))
    assert silent == {41, 42, 63}
    assert features.NUM_HIDDEN == 64
    for feature in (
        functools.partial(features.head_feature, 0, 0),
        functools.partial(features.head_feature, 3, 2),
        functools.partial(features.exit_feature, 0),
    ):
        assert (np.diff([feature(p) for p in probabilities]) >= 0).all()


def test_no_two_combinations_share_a_bucket():
    combinations = itertools.product(range(94), range(99), range(104))
    assert sorted(bucket(*given) for given in combinations) == list(range(features.NUM_BUCKETS))
    assert len(Calibration().counts) == 94 * 99 * 104


def test_priors_rise_with_length_share_and_probability():
    calibration = Calibration()
    assert ((calibration.priors >= 0) & (calibration.priors < 1)).all()

    def by_ngram(*given):
        return calibration.probability(features.ngram_feature(*given), 0, 0)

    def by_row(*given):
        return calibration.probability(0, features.recycled_feature(*given), 0)

    assert by_ngram(1, 2, 2, 1) < by_ngram(8, 2, 2, 1)
    assert by_ngram(4, 1, 4, 0) < by_ngram(4, 3, 4, 0)
    assert by_row(0, 0, 0.1) < by_row(0, 0, 0.9)
    assert by_row(0, 2, 0.1) < by_row(0, 0, 0.1)
    assert by_row(1, 0, 0.7) < by_row(0, 0, 0.7)
    for source in range(WINDOW_OFFER + 1):
        offered = [features.offer_feature(source, p) for p in (0.1, 0.9)]
        poor, good = (calibration.probability(0, 0, 0, feature) for feature in offered)
        assert poor < good


def test_priors_of_hidden_states_rise_with_probability_and_with_agreement():
    calibration = Calibration()
    probabilities = (0.001, 0.007, 0.015, 0.03, 0.07, 0.15, 0.27, 0.45, 0.67, 0.9)
    ngram, row = features.ngram_feature(4, 2, 2, 1), features.recycled_feature(0, 0, 0.6)
    for depth, rank in itertools.product((0, 2), (0, 1)):
        named = [features.head_feature(depth, rank, p) for p in probabilities]
        alone = [calibration.probability(0, 0, feature) for feature in named]
        assert alone == sorted(alone)
        assert len(set(named)) == len(named)
        agreed = [calibration.probability(ngram, row, feature) for feature in named]
        assert agreed == sorted(agreed)
        assert all(more > less for more, less in zip(agreed, alone, strict=True))
        against = calibration.probability(ngram, row, features.head_others(depth))
        assert against < calibration.probability(ngram, row)
        assert against < agreed[-1]
    early = [features.exit_feature(0, p) for p in probabilities]
    alone = [calibration.probability(0, 0, feature) for feature in early]
    assert alone == sorted(alone)
