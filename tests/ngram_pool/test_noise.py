"""Where tokens are drawn and the noise of the draws is known: what is proposed, and what counts."""

import math

import numpy as np
import pytest

from ngram_pool import DictPool, NgramPool, Offer, features
from ngram_pool.calibration import ACCEPTED, OFFERED, bucket
from ngram_pool.layout import HEAD_OFFER
from tests.ngram_pool.oracles import (
    assert_same_proposal,
    paths_of,
    random_calibration,
    random_offers,
)

ROW, PROBS = (5, 6, 7), (0.6, 0.2, 0.1)


def ones(depths=1, tokens=10):
    return np.ones((depths, tokens), np.float32)


def by_token(proposal, values):
    return dict(zip(proposal.tokens[1:].tolist(), values[1:].tolist(), strict=True))


def recycled_features(proposal):
    recycled = proposal.buckets // features.NUM_GUESS % features.NUM_RECYCLED
    return by_token(proposal, recycled)


@pytest.fixture
def with_row(pool):
    """A pool of which a row of three tokens is all that it knows."""
    pool.recycle([1], [2], [ROW], [PROBS])
    pool.extend([1, 2])
    return pool


def propose(pool, noise=None, **settings):
    return pool.propose(
        20, **({"ngrams": False, "min_probability": 0.0, "max_depth": 1} | settings), noise=noise
    )


@pytest.mark.parametrize("seed", range(40))
def test_both_pools_agree_on_any_noise(seed):
    rng = np.random.default_rng(seed)
    fast, slow = (kind(random_calibration(seed)) for kind in (NgramPool, DictPool))
    for step in range(12):
        text = rng.integers(0, 6, 8)
        rows = (
            rng.integers(-1, 6, 5),
            rng.integers(0, 6, 5),
            rng.integers(-1, 9, (5, 8)),
            rng.dirichlet(np.ones(9), 5)[:, :8].astype(np.float32),
        )
        for pool in (fast, slow):
            pool.extend(text)
            pool.recycle(*rows)
        depths, tokens = rng.integers(0, 5), rng.integers(0, 12)
        noise = rng.exponential(size=(depths, tokens)) ** rng.choice([0.3, 1.0, 2.0])
        noise[rng.random(noise.shape) < 0.1] = rng.choice([0.0, 1e-12, 1e9])
        settings = {
            "min_probability": 0.001,
            "offers": random_offers(rng, step % 4),
            "costs": np.linspace(1, 3, 31, dtype=np.float32) if step % 2 else None,
            "noise": noise,
        }
        proposal = fast.propose(30, **settings)
        assert_same_proposal(proposal, slow.propose(30, **settings))
        path = [0, *(np.flatnonzero(proposal.parents[1:] == 0)[:1] + 1).tolist()]
        for pool in (fast, slow):
            pool.learn(proposal, path, [*proposal.tokens[path[1:]].tolist(), 0])
        np.testing.assert_allclose(fast.calibration.counts, slow.calibration.counts, rtol=1e-5)


@pytest.mark.parametrize("probs", [(0.0, 0.0, 0.0), (0.0, 0.5, 0.0), (1e-38, 1e-38, 0.0)])
def test_both_pools_agree_on_tokens_of_no_probability(probs):
    proposals = []
    for kind in (NgramPool, DictPool):
        pool = kind()
        pool.recycle([-1, 0], [2, 1], [ROW, [2, 8, 9]], [PROBS, probs])
        pool.extend([0, 1, 2])
        proposals.append(propose(pool, ones()))
    assert_same_proposal(*proposals)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_noise_that_has_no_rows_of_tokens_is_refused(pool, shape):
    with pytest.raises(ValueError, match="Expected noise as"):
        pool.propose(4, noise=np.ones(shape, np.float32))


@pytest.mark.parametrize("tokens", [0, 10])
def test_noise_of_no_draw_changes_nothing(with_row, tokens):
    noise = np.ones((0, tokens), np.float32)
    assert_same_proposal(propose(with_row, noise), propose(with_row))


def test_noise_may_be_of_any_type_and_layout(with_row):
    noise = np.random.default_rng(0).exponential(size=(2, 10))
    wanted = propose(with_row, noise.astype(np.float32))
    read_only = noise.astype(np.float32)
    read_only.flags.writeable = False
    for given in (noise, noise.tolist(), np.asfortranarray(noise), read_only):
        assert_same_proposal(propose(with_row, given), wanted)


def test_a_token_of_little_noise_comes_up_and_one_of_much_goes_down(with_row):
    before = propose(with_row)
    assert before.tokens.tolist() == [2, *ROW]
    noise = ones()
    noise[0, 7] = 1e-3
    up = propose(with_row, noise)
    assert up.tokens[1] == 7
    noise = ones()
    noise[0, 5] = 100.0
    down = propose(with_row, noise)
    assert down.tokens[-1] == 5
    was, high, low = (by_token(p, p.probabilities) for p in (before, up, down))
    assert high[7] > was[7]
    assert low[5] < was[5]
    assert was == by_token(propose(with_row), propose(with_row).probabilities), "nothing stays"


def test_tokens_of_a_row_are_ranked_by_the_race(with_row):
    noise = ones()
    noise[0, [5, 6, 7]] = 2.0, 0.25, 0.5
    speeds = [p / q for p, q in zip(np.float32(PROBS).tolist(), (2.0, 0.25, 0.5), strict=True)]
    best, rest = max(speeds), 1 - sum(np.float32(PROBS).tolist())
    field = sum((speed / best) ** features.SHARPNESS for speed in speeds)
    chances = [
        (speed / best) ** features.SHARPNESS / field * math.exp(-rest / best) for speed in speeds
    ]
    assert recycled_features(propose(with_row, noise)) == {
        token: features.recycled_feature(features.PAIR, rank, chance)
        for token, rank, chance in zip(ROW, (1, 0, 2), chances, strict=True)
    }


def test_noise_that_is_the_same_for_all_keeps_the_ranks(with_row):
    """Probabilities are less sure than they were; their order, and so the ranks, are the same."""
    for level in (0.01, 1.0, 10.0):
        proposal = propose(with_row, level * ones())
        found = recycled_features(proposal)
        plain = recycled_features(propose(with_row))
        assert {t: f - found[5] > 0 for t, f in found.items()} == {
            t: f - plain[5] > 0 for t, f in plain.items()
        }
        assert proposal.tokens[1] == 5
        assert (np.diff(proposal.probabilities[1:]) <= 0).all()


def test_tokens_beyond_the_noise_run_by_their_probability(with_row):
    short = ones(1, 7)
    short[0, [5, 6]] = 2.0, 0.25
    whole = ones(1, 10)
    whole[0, [5, 6]] = 2.0, 0.25  # and 1 for token 7
    assert_same_proposal(propose(with_row, short), propose(with_row, whole))


def test_noise_of_one_depth_says_nothing_of_another(pool):
    pool.recycle([1, 2], [2, 5], [ROW, (3, 4, 8)], [PROBS, PROBS])
    pool.extend([1, 2])
    plain = propose(pool, max_depth=2)
    noise = ones(2)
    noise[0, 4] = 1e-6  # behind the root nobody names token 4
    noise[1, 4] = 1e-3
    found = propose(pool, noise, max_depth=2)
    where = dict(zip(paths_of(found), range(len(found.tokens)), strict=True))
    assert found.tokens[found.parents == where[5,]][0] == 4
    first_only = propose(pool, noise[:1], max_depth=2)
    for proposal in (plain, first_only):
        below = {
            path[-1]: int(proposal.buckets[node])
            for node, path in enumerate(paths_of(proposal))
            if len(path) == 2 and path[0] == 5
        }
        assert below == {
            t: bucket(0, features.recycled_feature(features.PAIR, rank, p), 0)
            for rank, (t, p) in enumerate(zip((3, 4, 8), np.float32(PROBS).tolist(), strict=True))
        }


def test_what_blind_sources_name_is_judged_by_its_own_noise(pool):
    pool.extend([1, 2, 3, 1, 2, 4, 1, 2])
    settings = {"ngrams": True, "recycled": False}
    before = propose(pool, **settings)
    noise = ones()
    noise[0, [3, 4]] = 1e-3, 5.0
    after = propose(pool, noise, **settings)
    was, now, lifts = (
        by_token(before, before.probabilities),
        by_token(after, after.probabilities),
        by_token(after, after.lifts),
    )
    for token, drawn in ((3, 1e-3), (4, 5.0), (2, 1.0)):
        chance = math.exp((was[token] - 1) * drawn / was[token])
        assert now[token] == pytest.approx(min(max(chance, features.LOWEST), features.HIGHEST))
        assert lifts[token] == pytest.approx(now[token] / was[token], rel=1e-4)
    assert now[3] > was[3]
    assert now[4] < was[4]
    np.testing.assert_array_equal(sorted(after.buckets), sorted(before.buckets))


def test_whom_a_drafter_of_hidden_states_names_is_not_judged_twice(pool):
    pool.extend([9])
    head = Offer(HEAD_OFFER, [9, 1], [0, 0], [1, 0.5])
    other = Offer(0, [9, 1, 2], [0, 0, 0], [1, 0.5, 0.5])
    noise = ones()
    noise[0, [1, 2]] = 0.01
    alone = propose(pool, noise, offers=[other])
    assert (alone.lifts[1:] > 1.1).all()
    both = propose(pool, noise, offers=[other, head])
    assert both.lifts.tolist() == [1, 1, 1], "the head does not name token 2, which says something"


def test_averaged_over_the_noise_nothing_is_gained_or_lost():
    noise = np.random.default_rng(0).exponential(size=40_000)
    for probability in (0.05, 0.3, 0.9):
        chances = [features.drawn_alone(probability, drawn) for drawn in noise.tolist()]
        assert np.mean(chances) == pytest.approx(probability, abs=0.01)


def test_lifts_are_one_without_noise_and_for_rows(with_row):
    with_row.extend([3, 1, 2])
    assert set(propose(with_row, ngrams=True).lifts.tolist()) == {1.0}
    noise = np.random.default_rng(0).exponential(size=(2, 10))
    assert set(propose(with_row, noise).lifts.tolist()) == {1.0}


def test_calibration_counts_as_many_offers_as_a_node_was_lifted(pool):
    pool.extend([1, 2, 3, 1, 2, 4, 1, 2])
    noise = ones()
    noise[0, [3, 4]] = 1e-3, 2.0
    proposal = propose(pool, noise, ngrams=True, recycled=False)
    pool.learn(proposal, [0], [3])
    counts = pool.calibration.counts
    for place in set(proposal.buckets[1:].tolist()):
        same = proposal.buckets == place
        assert counts[place, OFFERED] == pytest.approx(proposal.lifts[same].sum(), rel=1e-5)
        assert counts[place, ACCEPTED] == (proposal.tokens[same] == 3).sum()
    assert counts[:, OFFERED].sum() == pytest.approx(proposal.lifts[1:].sum(), rel=1e-5)


def test_what_is_learnt_under_noise_is_the_rate_without_sight_of_it():
    """A token of probability 0.3 is drafted only where its noise is small, and often comes true."""
    rng = np.random.default_rng(1)
    pool = DictPool()
    pool.extend([1, 2, 1])
    for drawn, others in rng.exponential(size=(4000, 2)):
        noise = np.full((1, 3), drawn, np.float32)
        proposal = pool.propose(1, min_probability=0.5, recycled=False, noise=noise)
        if len(proposal.tokens) > 1:
            is_drawn = 0.3 / drawn > 0.7 / others
            pool.learn(proposal, [0], [2 if is_drawn else 1])
    drafted = pool.propose(1, min_probability=0, recycled=False)
    assert drafted.tokens.tolist() == [1, 2]
    assert drafted.probabilities[1] == pytest.approx(0.3, abs=0.03)
