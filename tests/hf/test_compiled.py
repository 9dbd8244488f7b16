"""Models whose forward was compiled: the same ids, and no more graphs with every call."""

from __future__ import annotations

import pytest
import torch

import lookahead
from lookahead.hf.compat import COUNTS_SLOTS
from tests.helpers import fresh, prompt

IDS = prompt(20, repeat=6)
GREEDY = {"max_new_tokens": 64, "do_sample": False}
#: The library's own wrapper around forwards stops being compiled after eight versions.
MOST_GRAPHS = 24


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Backend:
    """Runs graphs as they are, and counts them."""

    graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


def _forward(model, backend):
    model.forward = torch.compile(model.forward, backend=backend)


def _module(model, backend):
    model.compile(backend=backend)


@pytest.mark.skipif(COUNTS_SLOTS, reason="before 5.4 masks are compiled by length")
@pytest.mark.parametrize("way", [_forward, _module])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_forward_gives_the_same_ids_with_a_bounded_number_of_graphs(way):
    plain = fresh().generate(IDS, **GREEDY)
    model, backend = fresh(), Backend()
    way(model, backend)
    # A fixed number of nodes: compiling takes time, by which "auto" would decide.
    sources = ("ngrams", "recycled", "head", "exit")
    settings = {"sources": sources, "remember": False, "nodes": 8}
    with lookahead.accelerate(model, strict=True, **settings):
        assert model.generate(IDS, **GREEDY).tolist() == plain.tolist()
        first = backend.graphs
        assert first <= MOST_GRAPHS
        for _ in range(2):
            assert model.generate(IDS, **GREEDY).tolist() == plain.tolist()
        assert backend.graphs <= first + 2
        stats = lookahead.last_stats(model)
    assert stats.passes < 60
    assert any("compiled or spread" in note for note in stats.notes)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_wrapper_is_accelerated_and_restored():
    inner = fresh()
    plain = inner.generate(IDS, **GREEDY).tolist()
    model = torch.compile(inner, backend="eager")
    with lookahead.accelerate(model, strict=True):
        assert model.generate(IDS, **GREEDY).tolist() == plain
        assert lookahead.last_stats(model).accelerated
    assert "generate" not in vars(inner)
    lookahead.accelerate(model)
    lookahead.restore(model)
    assert "generate" not in vars(inner)
    assert model.generate(IDS, **GREEDY).tolist() == plain


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_code_of_the_real_compiler_gives_the_same_ids():
    model = fresh()
    model.forward = torch.compile(model.forward)
    plain = model.generate(IDS, **GREEDY)
    with lookahead.accelerate(model, strict=True):
        assert model.generate(IDS, **GREEDY).tolist() == plain.tolist()
