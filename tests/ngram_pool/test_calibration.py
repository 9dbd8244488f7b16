"""What is learned, kept and believed at first."""

import copy
import pickle

import numba
import numpy as np
import pytest

import ngram_pool
from ngram_pool import Calibration, features, priors
from ngram_pool.calibration import MOST_OFFERED, bucket, split_bucket


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
    assert pool.calibration.marginal[:, 1].sum() == children
    assert pool.calibration.marginal[:, 0].sum() == 1


def test_every_node_of_the_path_teaches(taught):
    proposal = taught.propose(12)
    child = int(np.flatnonzero(proposal.parents[1:] == 0)[0]) + 1
    taught.learn(proposal, [0, child], [int(proposal.tokens[child]), 99])
    offered = np.isin(proposal.parents[1:], [0, child])
    joint = [
        b for b in proposal.buckets[1:][offered] if sum(f > 0 for f in split_bucket(int(b))) > 1
    ]
    assert taught.calibration.joint[:, 1].sum() == len(joint)


@pytest.mark.parametrize(
    ("path", "chosen"), [([], []), ([1], [3]), ([0], []), ([0, 99], [1, 1]), ([0, 0], [1, 1])]
)
def test_paths_that_are_none_are_refused(taught, path, chosen):
    with pytest.raises(ValueError, match="Expected"):
        taught.learn(taught.propose(4), path, chosen)


def test_one_source_is_judged_by_its_marginal_rate():
    calibration = Calibration()
    calibration.marginal[5] = (3, 4)
    expected = features.rate(3, 4, float(calibration.priors[5]), 6.0)
    assert calibration.probability(5, 0, 0) == pytest.approx(expected)


def test_sources_that_agree_are_worth_more_than_the_best_and_less_than_independent_ones():
    calibration = Calibration()
    alone = [calibration.probability(*f) for f in ((40, 0, 0), (0, 20, 0), (0, 0, 30))]
    together = calibration.probability(40, 20, 30)
    independent = 1 - np.prod([1 - p for p in alone])
    assert max(alone) < together < independent


def test_compiled_probabilities_are_those_of_python():
    from ngram_pool.kernels_ask import Scores
    from ngram_pool.kernels_grow import _probability as helper
    from tests.ngram_pool.oracles import random_calibration

    _probability = numba.njit(lambda *arguments: helper(*arguments))  # noqa: PLW0108
    calibration = random_calibration(3)
    scores = Scores(calibration.marginal, calibration.joint, calibration.priors)
    rng = np.random.default_rng(0)
    for given in rng.integers(0, (81, 65, 33), (99, 3)).tolist():
        if any(given):
            assert _probability(scores, *given) == calibration.probability(*given)


def test_counts_are_halved_before_they_lose_precision():
    pool = ngram_pool.DictPool()
    pool.extend([1, 2, 1])
    proposal = pool.propose(1)
    pool.calibration.marginal[:, 1] = MOST_OFFERED
    pool.calibration.marginal[:, 0] = MOST_OFFERED / 4
    before = proposal.probabilities[1]
    pool.learn(proposal, [0], [2])
    assert pool.calibration.marginal[:, 1].min() <= MOST_OFFERED / 2 + 1
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
    original.marginal[:] = rng.random(original.marginal.shape)
    cells = rng.integers(0, len(original.joint), 100)
    original.joint[cells] = rng.random((100, 2))
    restored = Calibration()
    restored.restore(original.snapshot())
    for twin in (
        restored,
        original.copy(),
        copy.deepcopy(original),
        pickle.loads(pickle.dumps(original)),
    ):
        np.testing.assert_array_equal(twin.marginal, original.marginal)
        np.testing.assert_array_equal(twin.joint, original.joint)
        np.testing.assert_array_equal(twin.priors, original.priors)
        twin.marginal += 1
    assert original.marginal.max() < 1


def test_a_snapshot_that_does_not_fit_changes_nothing():
    calibration = Calibration()
    calibration.marginal += 1
    good = calibration.snapshot()
    bad = [
        {},
        good | {"marginal": np.zeros((3, 2), np.float32)},
        good | {"marginal": good["marginal"] * np.nan},
        good | {"marginal": -good["marginal"]},
        good | {"joint_cells": np.array([-1]), "joint": np.ones((1, 2))},
        good | {"joint_cells": np.array([0]), "joint": np.ones((2, 2))},
    ]
    for snapshot in bad:
        with pytest.raises(ValueError, match="Expected"):
            calibration.restore(snapshot)
        assert (calibration.marginal == 1).all()


def test_priors_can_be_replaced_and_have_one_value_a_feature():
    flat = np.full(features.NUM_MARGINAL, 0.5, np.float32)
    assert Calibration(flat).probability(1, 0, 0) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="priors"):
        Calibration(flat[:-1])


def test_features_cover_their_range_without_gaps():
    lengths, probabilities = range(1, 40), np.linspace(0, 1, 101).tolist()
    ngram = {
        features.ngram_feature(length, count, total, recent)
        for length in lengths
        for total in range(1, 12)
        for count in range(1, total + 1)
        for recent in (0, 1)
    }
    recycled = {
        features.recycled_feature(single, rank, p)
        for single in (0, 1)
        for rank in range(8)
        for p in probabilities
    }
    offer = {features.offer_feature(s, p) for s in range(4) for p in probabilities}
    assert ngram == set(range(1, 81))
    assert recycled == set(range(1, 65))
    assert offer == set(range(1, 33))


def test_features_and_buckets_convert_back():
    for given in ((0, 0, 0), (80, 64, 32), (1, 0, 5), (0, 7, 0)):
        assert split_bucket(bucket(*given)) == given


def test_priors_rise_with_length_share_and_probability():
    table = priors.default_priors()
    assert ((table >= 0) & (table < 1)).all()
    for first, second in [
        (features.ngram_feature(1, 2, 2, 1), features.ngram_feature(8, 2, 2, 1)),
        (features.ngram_feature(4, 1, 4, 0), features.ngram_feature(4, 3, 4, 0)),
        (features.ngram_feature(4, 3, 4, 0), features.ngram_feature(4, 3, 4, 1)),
    ]:
        assert table[first] < table[second]
    pair = table[features.FIRST_RECYCLED + features.recycled_feature(0, 0, 0.7)]
    single = table[features.FIRST_RECYCLED + features.recycled_feature(1, 0, 0.7)]
    assert pair > single
    low = table[features.FIRST_OFFER + features.offer_feature(3, 0.1)]
    assert low < table[features.FIRST_OFFER + features.offer_feature(3, 0.9)]
