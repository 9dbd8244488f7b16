"""top_rows against float64, with and without kernels."""

import numpy as np
import pytest

import ngram_pool
from ngram_pool import ready


@pytest.fixture(params=["kernels", "numpy"], autouse=True)
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(ready, "ready_kernels", lambda: None)


def oracle(logits, k):
    tokens = np.full((len(logits), k), -1, np.int32)
    probs = np.zeros((len(logits), k))
    for i, row in enumerate(logits.astype(np.float64)):
        usable = np.where(np.isnan(row), -np.inf, row)
        order = np.argsort(-usable, kind="stable")[:k]
        order = order[usable[order] > -np.inf]
        if order.size:
            weights = np.exp(usable - usable.max())
            tokens[i, : order.size] = order
            probs[i, : order.size] = weights[order] / weights.sum()
    return tokens, probs


@pytest.mark.parametrize("vocab", [1, 3, 8, 9, 255, 256, 257, 1_000, 49_152])
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_tokens_and_probabilities_are_those_of_a_full_softmax(vocab, scale):
    rng = np.random.default_rng(vocab)
    logits = (rng.normal(0, scale, (3, vocab)) - 7).astype(np.float32)
    tokens, probs = ngram_pool.top_rows(logits)
    wanted, wanted_probs = oracle(logits, 8)
    assert tokens.dtype == np.int32
    assert probs.dtype == np.float32
    np.testing.assert_array_equal(tokens, wanted)
    np.testing.assert_allclose(probs, wanted_probs, rtol=3e-5, atol=1e-7)


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_any_k_is_served(k):
    logits = np.random.default_rng(k).normal(0, 2, (4, 600)).astype(np.float32)
    tokens, probs = ngram_pool.top_rows(logits, k=k)
    wanted, wanted_probs = oracle(logits, k)
    np.testing.assert_array_equal(tokens, wanted)
    np.testing.assert_allclose(probs, wanted_probs, rtol=3e-5)


def test_equal_logits_come_lowest_id_first():
    logits = np.zeros((1, 700), np.float32)
    logits[0, 500:510] = 1.0
    logits[0, 3] = -0.0
    tokens, _ = ngram_pool.top_rows(logits, k=13)
    assert tokens[0].tolist() == [*range(500, 510), 0, 1, 2]


def test_masked_and_broken_logits_are_left_out():
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, [7, 290]] = [1.0, 2.0]
    logits[0, [8, 299]] = np.nan
    tokens, probs = ngram_pool.top_rows(logits, k=4)
    assert tokens[0].tolist() == [290, 7, -1, -1]
    np.testing.assert_allclose(probs[0, :2], [0.7310586, 0.26894143], rtol=1e-5)
    assert probs[0, 2:].tolist() == [0, 0]


@pytest.mark.parametrize("value", [np.nan, -np.nan, -np.inf])
def test_a_row_without_any_usable_logit_is_all_padding(value):
    tokens, probs = ngram_pool.top_rows(np.full((1, 40), value, np.float32))
    assert (tokens == -1).all()
    assert (probs == 0).all()


def test_plus_infinity_takes_everything():
    logits = np.zeros((1, 40), np.float32)
    logits[0, [5, 9]] = np.inf
    tokens, probs = ngram_pool.top_rows(logits)
    assert tokens[0, :2].tolist() == [5, 9]
    np.testing.assert_allclose(probs[0, :2], 0.5)


def test_other_layouts_and_types_are_taken():
    base = np.random.default_rng(0).normal(size=(6, 50))
    for logits in (base, base.T, base[::2], base.astype(np.float16), base.tolist()):
        tokens, _ = ngram_pool.top_rows(logits, k=3)
        np.testing.assert_array_equal(tokens, oracle(np.asarray(logits, np.float32), 3)[0])
    assert ngram_pool.top_rows(np.empty((0, 9), np.float32))[0].shape == (0, 8)
    assert (ngram_pool.top_rows(np.empty((2, 0), np.float32))[0] == -1).all()


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="received"):
        ngram_pool.top_rows(np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="received"):
        ngram_pool.top_rows(np.zeros((1, 5), np.float32), k=0)
