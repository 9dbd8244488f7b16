"""NgramPool and DictPool give the same answers, whatever is done to them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ngram_pool
from ngram_pool.layout import HEAD_OFFER, MAX_OFFERS
from tests.ngram_pool.oracles import assert_same_proposal, random_calibration

TOKEN = st.integers(0, 3)
TEXT = st.lists(TOKEN, max_size=12)
PROBABILITY = st.floats(0, 1, width=32)


@st.composite
def offers(draw):
    result = []
    for source in draw(st.sets(st.integers(0, MAX_OFFERS - 1), max_size=4)):
        size = draw(st.integers(0, 6))
        parents = [0] + [draw(st.integers(0, i)) for i in range(size)]
        tokens = draw(st.lists(TOKEN, min_size=size + 1, max_size=size + 1))
        values = st.just(-1.0) | PROBABILITY if source >= HEAD_OFFER else PROBABILITY
        probs = draw(st.lists(values, min_size=size + 1, max_size=size + 1))
        result.append(
            ngram_pool.Offer(source, np.array(tokens), np.array(parents), np.array(probs))
        )
    return result


@st.composite
def noises(draw):
    shape = draw(st.integers(0, 3)), draw(st.integers(0, 6))
    values = st.floats(0, 20, width=32) | st.just(1.0)
    cells = draw(st.lists(values, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return np.array(cells, np.float32).reshape(shape)


@st.composite
def rows(draw):
    count, width = draw(st.integers(0, 4)), draw(st.integers(1, 9))
    previous = draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count))
    tokens = draw(st.lists(TOKEN, min_size=count, max_size=count))
    cells = st.lists(st.integers(-1, 5), min_size=count * width, max_size=count * width)
    probs = st.lists(PROBABILITY, min_size=count * width, max_size=count * width)
    return (
        np.array(previous, np.int64),
        np.array(tokens, np.int64),
        np.array(draw(cells), np.int32).reshape(count, width),
        np.array(draw(probs), np.float32).reshape(count, width),
        draw(st.booleans()),
    )


OPERATION = st.one_of(
    st.tuples(st.just("extend"), TEXT),
    st.tuples(st.just("recycle"), rows()),
    st.tuples(
        st.just("propose"),
        st.fixed_dictionaries(
            {
                "max_nodes": st.integers(0, 20),
                "max_depth": st.integers(0, 8),
                "trust": st.sampled_from([1.0, 0.5, 0.0]),
                "min_probability": st.sampled_from([0.0, 0.01, 0.2]),
                "ngrams": st.booleans(),
                "recycled": st.booleans(),
                "offers": offers(),
                "noise": st.none() | noises(),
                "chain": st.booleans(),
                "costs": st.sampled_from(
                    [None, np.linspace(1, 4, 21, dtype=np.float32), np.ones(21, np.float32)]
                ),
            }
        ),
    ),
    st.tuples(st.just("clear"), st.none()),
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    operations=st.lists(OPERATION, max_size=14),
    max_tokens=st.sampled_from([2, 7, 1000]),
    max_rows=st.sampled_from([2, 3, 1000]),
)
def test_any_run_of_operations_gives_the_same_answers(operations, max_tokens, max_rows):
    fast = ngram_pool.NgramPool(max_tokens=max_tokens, max_rows=max_rows)
    slow = ngram_pool.DictPool(max_tokens=max_tokens, max_rows=max_rows)
    for name, value in operations:
        if name == "extend":
            fast.extend(value)
            slow.extend(value)
        elif name == "recycle":
            *arrays, renew = value
            fast.recycle(*arrays, renew=renew)
            slow.recycle(*arrays, renew=renew)
        elif name == "clear":
            fast.clear()
            slow.clear()
        else:
            proposal = fast.propose(**value)
            assert_same_proposal(proposal, slow.propose(**value))
            for pool in (fast, slow):
                pool.learn(proposal, [0], [1])
        assert len(fast) == len(slow)
        assert fast.longest_match() == slow.longest_match()
        assert fast.stats()[:3] == slow.stats()[:3]


@pytest.mark.parametrize("alphabet", [1, 2, 3, 8, 300])
@pytest.mark.parametrize("bound", [50, 10_000])
def test_long_runs_give_the_same_answers(alphabet, bound):
    rng = np.random.default_rng(alphabet)
    fast = ngram_pool.NgramPool(random_calibration(1), max_tokens=bound, max_rows=bound)
    slow = ngram_pool.DictPool(random_calibration(1), max_tokens=bound, max_rows=bound)
    for _ in range(60):
        text = rng.integers(0, alphabet, rng.integers(0, 40))
        count = int(rng.integers(0, 20))
        batch = (
            rng.integers(-1, alphabet, count),
            rng.integers(0, alphabet, count),
            rng.integers(-1, alphabet, (count, 8)),
            rng.dirichlet(np.ones(8), count).astype(np.float32),
        )
        for pool in (fast, slow):
            pool.extend(text)
            pool.recycle(*batch)
        proposal = fast.propose(40)
        assert_same_proposal(proposal, slow.propose(40))
        assert_same_proposal(fast.propose(40, chain=True), slow.propose(40, chain=True))
        first = np.flatnonzero(proposal.parents[1:] == 0)[:1] + 1
        path = [0, *first.tolist()]
        chosen = [*proposal.tokens[first].tolist(), 0]
        for pool in (fast, slow):
            pool.learn(proposal, path, chosen)
        assert fast.stats()[:3] == slow.stats()[:3]


def test_grouping_of_tokens_into_calls_does_not_matter(kind):
    rng = np.random.default_rng(5)
    text = rng.integers(0, 4, 500).tolist()
    whole, single = kind(max_tokens=64), kind(max_tokens=64)
    whole.extend(text)
    for token in text:
        single.extend([token])
    assert len(whole) == len(single)
    assert whole.stats()[1] == single.stats()[1]
    assert_same_proposal(whole.propose(30), single.propose(30))
