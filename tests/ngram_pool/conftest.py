"""Both kinds of pool for every test that does not care which."""

import pytest

import ngram_pool


@pytest.fixture(autouse=True, scope="session")
def _kernels():
    ngram_pool.warm_up(block=True)
    assert ngram_pool.kernels_ready()


@pytest.fixture(params=["NgramPool", "DictPool"])
def kind(request):
    return getattr(ngram_pool, request.param)


@pytest.fixture
def pool(kind):
    return kind()
