"""Products of guesses: the same in every way of making them."""

from __future__ import annotations

import pytest
import torch

import ngram_pool
from lookahead.drafters import products as module
from lookahead.drafters.products import (
    FixedMatrix,
    dtype_of_guesses,
    products,
    without_autocast,
)
from lookahead.drafters.regression import RunningRegression


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("widens", [False, True])
@pytest.mark.parametrize("keeps_shape", [False, True])
@pytest.mark.parametrize("num_rows", [1, 6, 9, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_every_way_gives_the_product(dtype, num_rows, keeps_shape, widens, compiled, monkeypatch):
    if widens:
        monkeypatch.setattr(module, "has_products", lambda dtype: dtype == torch.float32)
    if not compiled:
        monkeypatch.setattr(ngram_pool, "kernels_ready", lambda: False)
    generator = torch.Generator().manual_seed(num_rows)
    rows = torch.randn((num_rows, 70), generator=generator)
    matrix = torch.randn((50, 70), generator=generator).to(dtype)
    bias = torch.randn(50, generator=generator).to(dtype)
    found = products(rows, matrix, bias, keeps_shape=keeps_shape)
    assert found.dtype == torch.float32
    right = rows.double() @ matrix.double().T + bias.double()
    tolerance = 0.2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(found.double(), right, rtol=0.01, atol=tolerance)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("num_rows", [1, 6, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_matrix_that_does_not_change_gives_the_same(dtype, num_rows, packs, monkeypatch):
    if not packs:
        monkeypatch.setattr(module, "has_products", lambda dtype: dtype == torch.float32)
    generator = torch.Generator().manual_seed(num_rows)
    rows = torch.randn((num_rows, 70), generator=generator)
    matrix = torch.randn((70, 50), generator=generator).to(dtype).T
    bias = torch.randn(50, generator=generator).to(dtype)
    fixed = FixedMatrix(matrix, bias)
    assert fixed.shape == (50, 70)
    found = fixed.products(rows)
    assert found.dtype == torch.float32
    right = products(rows, matrix.contiguous(), bias)
    torch.testing.assert_close(found, right, rtol=0.02, atol=0.1)


def test_guesses_are_read_in_16_bits_where_something_multiplies_in_them(monkeypatch):
    assert dtype_of_guesses(torch.device("cpu")) == torch.bfloat16
    assert dtype_of_guesses(torch.device("meta")) == torch.float32
    monkeypatch.setattr(module, "has_products", lambda dtype: dtype == torch.float32)
    assert dtype_of_guesses(torch.device("cpu")) == torch.bfloat16
    monkeypatch.setattr(ngram_pool, "kernels_ready", lambda: False)
    assert dtype_of_guesses(torch.device("cpu")) == torch.float32


def test_autocast_is_off_inside_and_on_again_behind():
    @without_autocast
    def inside() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled("cpu"), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    assert inside() == (False, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert inside() == (False, torch.float32)
        assert torch.is_autocast_enabled("cpu")


def test_a_regression_is_the_same_under_autocast():
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn((20, 16), generator=generator), dim=-1)
    values, asked = torch.randn((20, 8), generator=generator), rows[:12] + 0.01
    found = []
    for enabled in (False, True):
        regression = RunningRegression(torch.ones(17, 8))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            regression.add(rows, values, torch.ones(20))
            found.append(regression.predict(asked))
    torch.testing.assert_close(found[1], found[0])
    assert found[1].dtype == torch.float32
