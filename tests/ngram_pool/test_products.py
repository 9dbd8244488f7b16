"""products against float64, with and without kernels."""

import numpy as np
import pytest

import ngram_pool
from ngram_pool import ready


@pytest.fixture(params=["kernels", "numpy"], autouse=True)
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(ready, "ready_kernels", lambda: None)


def bits_of_16(matrix):
    """Cut float32 numbers off behind the upper half of their bits."""
    return (matrix.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 5, 6, 7, 8, 17])
@pytest.mark.parametrize(("lines", "width"), [(1, 1), (7, 3), (64, 33), (300, 576)])
@pytest.mark.parametrize("is_16", [False, True], ids=["float32", "bfloat16"])
def test_they_are_those_of_double_precision(num_rows, lines, width, is_16):
    rng = np.random.default_rng(lines + num_rows)
    rows = rng.normal(size=(num_rows, width)).astype(np.float32)
    matrix = rng.normal(size=(lines, width)).astype(np.float32)
    if is_16:
        matrix.view(np.uint32)[:] &= 0xFFFF0000
    found = ngram_pool.products(rows, bits_of_16(matrix) if is_16 else matrix)
    assert found.dtype == np.float32
    wanted = rows.astype(np.float64) @ matrix.astype(np.float64).T
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_what_is_not_finite_stays_in_its_row():
    rows = np.ones((6, 40), np.float32)
    rows[1, 3], rows[5, 39] = np.nan, np.inf
    for matrix in (np.ones((9, 40), np.float32), bits_of_16(np.ones((9, 40), np.float32))):
        found = ngram_pool.products(rows, matrix)
        assert np.isnan(found[1]).all()
        assert np.isposinf(found[5]).all()
        assert (found[[0, 2, 3, 4]] == 40).all()


def test_lists_and_strided_matrices_are_taken():
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    found = ngram_pool.products([[1, 0, 0], [0, 1, 1]], matrix)
    assert found.tolist() == [[0, 6, 12, 18], [6, 18, 30, 42]]


@pytest.mark.parametrize(
    ("rows", "matrix"),
    [
        (np.ones((2, 3)), np.ones((4, 2), np.float32)),
        (np.ones(3), np.ones((4, 3), np.float32)),
        (np.ones((2, 3)), np.ones((4, 3), np.float64)),
        (np.ones((2, 3)), np.ones(3, np.float32)),
    ],
)
def test_what_does_not_fit_is_refused(rows, matrix):
    with pytest.raises(ValueError, match="Expected rows"):
        ngram_pool.products(rows, matrix)
