"""What every test needs: one thread, compiled kernels, a small model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.helpers import fresh


@pytest.fixture(autouse=True, scope="session")
def _compiled_pool() -> Iterator[None]:
    import ngram_pool

    ngram_pool.warm_up(block=True)
    return


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def llama() -> Any:
    """A fresh tiny Llama; equal weights in every test."""
    return fresh("llama")
