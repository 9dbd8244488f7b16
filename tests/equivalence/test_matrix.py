"""Every drafter, right or wrong, on every family: the answer is that of plain generation."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import lookahead
from tests.drafters import ALL, BADLY_BEHAVED, WELL_BEHAVED, Endless
from tests.helpers import CACHE, FAMILIES, Recorder, fresh, prompt, quietly, shared
from tests.oracles import assert_cache_from_scratch

NEW = 16
NODES = (1, 4, 16, "auto")
GREEDY: dict[str, Any] = {"do_sample": False}
SAMPLED: dict[str, dict[str, Any]] = {
    "temperature-0.7": {"temperature": 0.7},
    "temperature-1": {"temperature": 1.0},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.8, "temperature": 1.5},
    "min-p": {"min_p": 0.05, "temperature": 2.0},
}


def _arguments(mode: str) -> dict[str, Any]:
    if mode == "greedy":
        return GREEDY
    return {"do_sample": True, "top_k": 0} | SAMPLED[mode]


@functools.cache
def _plain(family: str, attention: str, mode: str) -> list[int]:
    model = shared(family, attention=attention)
    torch.manual_seed(3)
    ids = model.generate(prompt(18, repeat=4), max_new_tokens=NEW, **_arguments(mode))
    return ids[0].tolist()


def _check(drafter: str, family: str, attention: str, nodes: Any, mode: str) -> Any:
    expected = _plain(family, attention, mode)
    model = shared(family, attention=attention)
    settings = {"nodes": nodes, "strict": True} | ALL[drafter](expected)
    streamer, cache = Recorder(), DynamicCache(config=model.config)

    def generate() -> Any:
        lookahead.forget(model)
        with lookahead.accelerate(model, **settings):
            torch.manual_seed(3)
            return model.generate(
                prompt(18, repeat=4),
                max_new_tokens=NEW,
                streamer=streamer,
                **{CACHE: cache},
                **_arguments(mode),
            )

    ids = quietly(generate)[0].tolist()
    assert ids == expected
    assert streamer.ids == ids
    assert streamer.ends == 1
    assert_cache_from_scratch(model, cache, ids)
    for drafted in settings.get("drafters", ()):
        if isinstance(drafted, Endless):
            assert drafted.read < drafted.most
    return settings


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("drafter", WELL_BEHAVED)
def test_greedy_output_is_that_of_plain_generation(drafter, family, nodes):
    _check(drafter, family, "sdpa", nodes, "greedy")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("drafter", WELL_BEHAVED)
def test_eager_attention_gives_the_same(drafter, family):
    _check(drafter, family, "eager", _spread(NODES, drafter, family), "greedy")


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("drafter", WELL_BEHAVED)
def test_the_same_seed_gives_the_same_sample(drafter, mode):
    _check(drafter, "llama", "sdpa", _spread(NODES, drafter, mode), mode)


@pytest.mark.parametrize("family", FAMILIES[1:])
@pytest.mark.parametrize("drafter", WELL_BEHAVED)
def test_the_same_seed_gives_the_same_sample_on_every_family(drafter, family):
    mode = _spread(tuple(SAMPLED), "mode", drafter, family)
    _check(drafter, family, "sdpa", _spread(NODES, drafter, family, mode), mode)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("drafter", BADLY_BEHAVED)
def test_a_drafter_that_breaks_its_contract_changes_nothing(drafter, family):
    attention = _spread(("eager", "sdpa"), "attention", drafter, family)
    _check(drafter, family, attention, _spread(NODES, drafter, family), "greedy")


@pytest.mark.parametrize("drafter", BADLY_BEHAVED)
def test_a_drafter_that_breaks_its_contract_changes_no_sample(drafter):
    family = _spread(FAMILIES, "family", drafter)
    mode = _spread(tuple(SAMPLED), "mode", drafter, family)
    _check(drafter, family, "sdpa", _spread(NODES, drafter, family, mode), mode)


@pytest.mark.parametrize("drafter", ["raises", "string", "too-large-tokens"])
def test_a_drafter_that_breaks_its_contract_is_reported_once(drafter):
    model = fresh()
    with (  # noqa: PT031
        lookahead.accelerate(model, **ALL[drafter](prompt(30)[0].tolist())),
        pytest.warns(lookahead.LookaheadWarning, match="output is not affected") as warned,
    ):
        model.generate(prompt(), max_new_tokens=8, do_sample=False)
        notes = lookahead.last_stats(model).notes
    assert len(warned) == len(notes) == 1


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("drafter", ["all", "no-head", "head", "oracle", "half", "random"])
def test_sliding_and_full_layers_in_turn_give_the_same(drafter, nodes, attention):
    _check(drafter, "gemma3", attention, nodes, "greedy")


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
@pytest.mark.parametrize("drafter", ["all", "no-head", "head", "random"])
def test_batches_give_the_same(drafter, family, padding):
    model = shared(family)
    ids = torch.cat([prompt(18, seed=seed, repeat=4) for seed in (1, 2, 3)])
    mask = torch.ones_like(ids)
    ids[1, :padding], mask[1, :padding] = 0, 0
    arguments = {"attention_mask": mask, "max_new_tokens": NEW, "do_sample": False}
    expected = model.generate(ids, **arguments).tolist()
    nodes = _spread((3, 12, 48, "auto"), drafter, family, str(padding))
    lookahead.forget(model)
    with lookahead.accelerate(model, nodes=nodes, strict=True, **ALL[drafter](expected[0])):
        found = model.generate(ids, **arguments)
        stats = lookahead.last_stats(model)
    assert found.tolist() == expected
    assert stats.rows == 3
    assert ("head" in stats.by_source) == (drafter in ("all", "head"))


def _spread(values: Any, *key: str) -> Any:
    """Choose one of some values by name: each meets all of the others somewhere in the matrix."""
    return values[zlib.crc32("/".join(key).encode()) % len(values)]
