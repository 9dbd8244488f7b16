"""Growth, cut and order of a tree."""

import copy
import pickle
from collections import OrderedDict

import numpy as np
import pytest

import ngram_pool
from tests.ngram_pool.oracles import (
    all_paths,
    children,
    paths_of,
    random_calibration,
    random_offers,
)


def random_case(kind, seed):
    """A pool, and the function that gives the children of a path by brute force."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 3, 24).tolist()
    pool = kind(random_calibration(seed))
    pool.extend(text)
    rows = OrderedDict()
    for _ in range(6):
        previous, token = int(rng.integers(0, 4)), int(rng.integers(0, 4))
        top = rng.permutation(6)[:3]
        probs = np.sort(rng.random(3, np.float32))[::-1]
        pool.recycle([previous], [token], [top], [probs])
        row = list(zip(top.tolist(), probs.tolist(), strict=True))
        rows[previous, token] = rows[None, token] = row
    offers = random_offers(rng, seed % 6)

    def children_of(path):
        return children(text, rows, offers, pool.calibration, path)

    return pool, children_of, offers


@pytest.mark.parametrize("seed", range(24))
def test_growth_takes_the_most_probable_paths_of_the_full_tree(kind, seed):
    pool, children_of, offers = random_case(kind, seed)
    expected = all_paths(children_of, max_depth=4, min_probability=0.05)
    for max_nodes in (1, 5, 17, 500):
        proposal = pool.propose(max_nodes, max_depth=4, min_probability=0.05, offers=offers)
        got = dict(zip(paths_of(proposal)[1:], proposal.probabilities[1:].tolist(), strict=True))
        best = expected[:max_nodes]
        np.testing.assert_allclose(
            sorted(got.values(), reverse=True), [p for _, p in best], rtol=1e-5
        )
        # Which of several equally probable paths comes last is not said.
        clear = {path for path, p in best if p > best[-1][1] * (1 + 1e-5)}
        assert clear <= set(got)
        whole = dict(expected)
        for path, probability in got.items():
            assert probability == pytest.approx(whole[path], rel=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_tree_is_depth_first_best_child_first(kind, seed):
    pool, _, offers = random_case(kind, seed)
    proposal = pool.propose(40, offers=offers)
    parents, depths = proposal.parents, proposal.depths
    assert parents[0] == 0
    assert proposal.buckets[0] == 0
    assert proposal.sources[0] == 0
    for node in range(1, len(parents)):
        assert parents[node] < node
        assert depths[node] == depths[parents[node]] + 1
        # Depth first: the parent is the node before, or one of its ancestors.
        above = node - 1
        while above != parents[node]:
            assert above != 0
            above = parents[above]
        assert proposal.sources[node] != 0
    for node in range(len(parents)):
        family = np.flatnonzero(parents[1:] == node) + 1
        assert len(set(proposal.tokens[family].tolist())) == len(family)
        assert (np.diff(proposal.probabilities[family]) <= 0).all()
        assert (proposal.probabilities[family] <= proposal.probabilities[node]).all()


def test_limits_are_kept(pool):
    pool.extend([1, 2, 3, 4, 5, 1, 2, 3, 6, 1, 2, 3])
    assert len(pool.propose(3)) == 3
    assert pool.propose(30, max_depth=2).depths.max() == 2
    assert pool.propose(30, max_depth=0).tokens.tolist() == [3]
    strict = pool.propose(30, min_probability=0.3)
    assert (strict.probabilities >= 0.3).all()
    assert len(strict) < len(pool.propose(30, min_probability=0.0))


def test_sources_can_be_switched_off(pool):
    pool.extend([1, 2, 3, 1, 2])
    pool.recycle([1], [2], [[8]], [[0.9]])
    assert set(pool.propose(1, recycled=False).tokens[1:].tolist()) == {3}
    assert set(pool.propose(1, ngrams=False).tokens[1:].tolist()) == {8}
    assert len(pool.propose(8, ngrams=False, recycled=False)) == 0


def test_tokens_named_by_several_sources_become_one_node(pool):
    pool.extend([1, 2, 3, 1, 2])
    pool.recycle([1], [2], [[3]], [[0.9]])
    offer = ngram_pool.Offer(2, [0, 3], [0, 0], [1.0, 0.9])
    proposal = pool.propose(8, offers=[offer], max_depth=1)
    assert proposal.tokens.tolist().count(3) == 1
    assert proposal.tokens[1] == 3
    assert proposal.sources[1] == 1 | 2 | 4 << 2


def test_the_most_frequent_tokens_are_guessed_where_nothing_matches(pool):
    pool.extend([7, 1, 7, 2, 7, 3, 9])
    assert pool.longest_match() == 0
    assert pool.propose(1).tokens.tolist() == [9, 7]
    assert pool.propose(1).sources.tolist() == [0, 1]


def test_what_was_likely_before_is_guessed_where_the_last_tokens_have_no_row(pool):
    pool.extend([1, 2, 9])
    pool.recycle([1], [2], [[9, 4, 5]], [[0.5, 0.3, 0.1]])
    proposal = pool.propose(8, ngrams=False, max_depth=1)
    assert proposal.tokens.tolist() == [9, 4, 5], "the token that was chosen is left out"
    pool.recycle([2], [9], [[6]], [[0.9]])
    assert pool.propose(8, ngrams=False, max_depth=1).tokens.tolist() == [9, 6]


@pytest.mark.parametrize("seed", range(6))
def test_cut_maximises_expected_tokens_per_time(kind, seed):
    pool, _, offers = random_case(kind, seed)
    rng = np.random.default_rng(seed)
    costs = np.cumsum(rng.uniform(0.01, 0.3, 31)).astype(np.float32) + 1
    whole = pool.propose(30, offers=offers)
    gains = np.sort(whole.probabilities[1:])[::-1].cumsum() + 1
    gains = np.concatenate([[1.0], gains]) / costs[: len(gains) + 1]
    cut = pool.propose(30, offers=offers, costs=costs)
    assert len(cut) == int(np.argmax(gains))


@pytest.mark.parametrize("trust", [0.0, 0.3, 1.0])
def test_cut_believes_as_much_as_it_is_told(pool, trust):
    pool.extend([1, 2, 3, 1, 2])
    costs = np.linspace(1, 4, 31, dtype=np.float32)
    whole = pool.propose(30)
    gains = 1 + trust * np.sort(whole.probabilities[1:])[::-1].cumsum()
    gains = np.concatenate([[1.0], gains]) / costs[: len(gains) + 1]
    cut = pool.propose(30, costs=costs, trust=trust)
    assert len(cut) == int(np.argmax(gains))
    assert len(pool.propose(30, trust=trust)) == len(whole), "where nothing is cut"


def test_nothing_is_drafted_where_nothing_pays(pool):
    pool.extend([1, 2, 3, 1, 2])
    costs = np.array([1, 5, 9, 14], np.float32)
    assert len(pool.propose(3, costs=costs)) == 0
    assert len(pool.propose(3, costs=np.ones(4))) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_nodes": -1},
        {"max_nodes": 2, "max_depth": -1},
        {"max_nodes": 2, "min_probability": -0.1},
        {"max_nodes": 2, "min_probability": float("nan")},
        {"max_nodes": 2, "costs": [1.0, 1.0]},
        {"max_nodes": 2, "costs": [1.0, 0.0, 1.0]},
        {"max_nodes": 2, "costs": [1.0, float("nan"), 1.0]},
        {"max_nodes": 2, "costs": [[1.0, 1.0, 1.0]]},
        {"max_nodes": 0, "costs": []},
        {"max_nodes": 2, "trust": -0.1},
        {"max_nodes": 2, "trust": 1.1},
        {"max_nodes": 2, "trust": float("nan")},
    ],
)
def test_limits_that_make_no_sense_are_refused(pool, arguments):
    pool.extend([1, 2, 1])
    with pytest.raises(ValueError, match="received"):
        pool.propose(**arguments)


def test_proposing_changes_nothing(pool):
    pool.extend([1, 2, 3, 1, 2])
    before = pool.stats()
    first, second = pool.propose(8), pool.propose(8)
    assert first.tokens.tolist() == second.tokens.tolist()
    assert pool.stats() == before


def test_copies_and_pickles_are_independent(kind):
    pool = kind()
    pool.extend([1, 2, 3, 1, 2])
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        twin.extend([3, 1])
        assert len(pool) == 5
        assert pool.propose(1).tokens.tolist() == [2, 3]
        assert twin.propose(1).tokens.tolist() == [1, 2]
