"""What is learned, kept and believed at first."""

import copy
import itertools
import pickle

import numba
import numpy as np
import pytest

import ngram_pool
from ngram_pool import Calibration, features
from ngram_pool.calibration import MOST_OFFERED, bucket


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
    prior = float(calibration.priors[5 * features.NUM_RECYCLED + 7])
    expected = features.rate(3, 4, prior, features.STRENGTH)
    assert calibration.probability(5, 7, 0) == pytest.approx(expected)
    assert calibration.probability(5, 0, 0) == Calibration().probability(5, 0, 0)
    assert calibration.probability(5, 7, 9) == Calibration().probability(5, 7, 9)


def test_an_offer_that_agrees_is_worth_more_than_the_best_and_less_than_an_independent_one():
    calibration = Calibration()
    own, offered = calibration.probability(40, 20, 0), calibration.probability(0, 0, 30)
    together = calibration.probability(40, 20, 30)
    assert max(own, offered) < together < 1 - (1 - own) * (1 - offered)


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
    from ngram_pool.kernels_ask import Scores
    from ngram_pool.kernels_grow import _probability as helper
    from tests.ngram_pool.oracles import random_calibration

    _probability = numba.njit(lambda *arguments: helper(*arguments))  # noqa: PLW0108
    calibration = random_calibration(3)
    scores = Scores(calibration.counts, calibration.priors)
    rng = np.random.default_rng(0)
    for given in rng.integers(0, (94, 99, 33), (99, 3)).tolist():
        if any(given):
            assert _probability(scores, *given) == calibration.probability(*given)


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
    offer = {features.offer_feature(s, p) for s in range(4) for p in probabilities}
    assert ngram == set(range(1, 91))
    assert {features.ngram_others(length) for length in lengths} == {91, 92, 93}
    assert recycled == set(range(1, 97))
    assert {features.recycled_others(kind) for kind in (0, 1)} == {97, 98}
    assert offer == set(range(1, 33))


def test_no_two_combinations_share_a_bucket():
    combinations = itertools.product(range(94), range(99), range(33))
    assert sorted(bucket(*given) for given in combinations) == list(range(features.NUM_BUCKETS))


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
    assert calibration.probability(0, 0, features.offer_feature(3, 0.1)) < calibration.probability(
        0, 0, features.offer_feature(3, 0.9)
    )
