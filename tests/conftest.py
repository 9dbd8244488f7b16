"""What every test needs: one thread, compiled kernels, a small model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import fresh


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transformers-checkout",
        metavar="PATH",
        help="a checkout of the installed release of transformers, for its own tests",
    )


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


@pytest.fixture(autouse=True, scope="session")
def _memory_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's own memory out of all tests; models and kernels in the cache are used."""
    root = tmp_path_factory.mktemp("memory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lookahead.memory.default_folder", lambda: root / "shared")
        yield root


@pytest.fixture(autouse=True, scope="session")
def _segments_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's own libraries out of all tests."""
    folder = tmp_path_factory.mktemp("segments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lookahead.hf.libraries.default_folder", lambda: folder)
        yield


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def memory_folder(_memory_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that would be the user's; each test has its own, made when it is written to."""
    folder = _memory_root / str(next(_numbers))
    monkeypatch.setattr("lookahead.memory.default_folder", lambda: folder)
    return folder


@pytest.fixture
def llama() -> Any:
    """A fresh tiny Llama; equal weights in every test."""
    return fresh("llama")
