"""The target's own token: the place of the largest number, as torch finds it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead.choose import largest

NUMBERS = st.sampled_from([-2.0, -0.0, 0.0, 1.0, 2.0, float("nan"), float("inf"), -float("inf")])


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 200), st.integers(1, 4), st.booleans())
def test_the_largest_is_that_of_argmax_equals_and_nan_included(data, width, count, strided):
    row = st.lists(NUMBERS, min_size=width, max_size=width)
    rows = torch.tensor(data.draw(st.lists(row, min_size=count, max_size=count)))
    rows = rows.repeat_interleave(2, dim=1)[:, ::2] if strided else rows
    assert largest(rows) == rows.argmax(dim=-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_whole_vocabulary_has_the_largest_of_argmax(dtype):
    rows = torch.randint(-50, 50, (7, 49_152), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert largest(rows) == rows.argmax(dim=-1).tolist()
