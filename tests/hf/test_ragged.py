"""Prompts of a batch read without their padding: the same ids, and fewer rows computed."""

from __future__ import annotations

import pytest
import torch
from transformers import CONFIG_MAPPING, DynamicCache

import lookahead
from tests import helpers
from tests.cases.test_batches import ragged
from tests.helpers import CACHE, check, fresh, new_ids, prompt, shared
from tests.zoo.build import make_config, make_model, model_class

LENGTHS = [5, 200, 31]
GREEDY = {"max_new_tokens": 12, "do_sample": False}


@pytest.fixture
def rows():
    """Watch a model: the shape of the ids in each of its forwards, the self-test's left out."""
    seen = []

    def watch(model):
        hook = lambda _module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape))
        model.register_forward_pre_hook(hook, with_kwargs=True)
        with lookahead.accelerate(model, nodes=8, strict=True):
            model.generate(prompt(), max_new_tokens=3)  # a hook is a reason for another self-test
        seen.clear()
        return seen

    return watch


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("sampled", [False, True])
def test_ids_are_those_of_the_padded_batch(family, sampled, rows):
    model = fresh(family)
    ids, mask = ragged(LENGTHS)
    check(model, ids, attention_mask=mask, max_new_tokens=12, do_sample=sampled)
    seen = rows(model)
    with lookahead.accelerate(model, nodes=8, strict=True):
        model.generate(ids, attention_mask=mask, **GREEDY)
    assert seen[: len(LENGTHS)] == [(1, length) for length in LENGTHS]


def test_each_row_is_its_own_single_run():
    model = shared()
    ids, mask = ragged(LENGTHS)
    with lookahead.accelerate(model, nodes=8, strict=True):
        found = model.generate(ids, attention_mask=mask, **GREEDY)[:, ids.shape[1] :]
    lookahead.restore(model)
    for row, length in enumerate(LENGTHS):
        assert found[row].tolist() == new_ids(model, ids[row : row + 1, -length:], 12)


def _whole(model, ids, mask, rows, **options):
    """Check a call whose batch has to stay whole."""
    check(model, ids, attention_mask=mask, **GREEDY, **options)
    seen = rows(model)
    with lookahead.accelerate(model, nodes=8, strict=True):
        model.generate(ids, attention_mask=mask, **GREEDY, **options)
    assert seen[0][0] == len(ids)


@pytest.mark.parametrize(
    "family",
    [
        "deepseek_v3",
        "deepseek_v32",
        "gpt_neox",
        "falcon",
        "mixtral",
        "phi3",
        "gemma2",
        "llama4",
        "opt",
    ],
)
def test_families_of_other_layers_and_positions_give_the_ids_of_the_padded_batch(family):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {family}")
    ids, mask = ragged([5, 120, 31])
    model = make_model(model_class(family), make_config(family), "eager", 0)
    check(model, ids % 100, attention_mask=mask, **GREEDY)


def test_little_padding_stays(rows):
    _whole(fresh(), *ragged([40, 60, 50]), rows)


def test_layers_that_see_a_part_of_the_text_read_the_whole_batch(rows):
    _whole(fresh("mistral"), *ragged(LENGTHS), rows)


def test_angles_that_depend_on_the_longest_text_read_the_whole_batch(rows):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    _whole(helpers.make_model("llama", rope_parameters=rope), *ragged(LENGTHS), rows)


def test_padding_on_the_right_stays(rows):
    ids, mask = ragged(LENGTHS)
    _whole(fresh(), ids.flip(1), mask.flip(1), rows)


def test_a_cache_that_is_handed_back_holds_the_padded_batch(rows):
    model = fresh()
    ids, mask = ragged(LENGTHS)
    options = {"attention_mask": mask, "return_dict_in_generate": True}
    plain, fast = DynamicCache(), DynamicCache()
    model.generate(ids, **{CACHE: plain}, **GREEDY, **options)
    with lookahead.accelerate(model, nodes=8, strict=True):
        model.generate(ids, **{CACHE: fast}, **GREEDY, **options)
    for mine, right in zip(fast.layers, plain.layers, strict=True):
        torch.testing.assert_close(mine.keys, right.keys, atol=1e-4, rtol=1e-4)


def test_embeddings_in_place_of_ids_read_the_whole_batch(rows):
    model = fresh()
    ids, mask = ragged(LENGTHS)
    embeddings = model.get_input_embeddings()(ids).detach()
    plain = model.generate(inputs_embeds=embeddings, attention_mask=mask, **GREEDY)
    with lookahead.accelerate(model, nodes=8, strict=True):
        found = model.generate(inputs_embeds=embeddings, attention_mask=mask, **GREEDY)
    assert found.tolist() == plain.tolist()


def test_a_single_prompt_with_padding_is_read_without_it(rows):
    model = fresh()
    ids, mask = ragged([30])
    ids = torch.cat([torch.zeros(1, 170, dtype=ids.dtype), ids], dim=1)
    mask = torch.cat([torch.zeros(1, 170, dtype=mask.dtype), mask], dim=1)
    runs = check(model, ids, attention_mask=mask, **GREEDY)
    assert runs.fast[0, 200:].tolist() == new_ids(model, prompt(30, seed=1, repeat=4), 12)
