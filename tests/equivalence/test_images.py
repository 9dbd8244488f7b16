"""Vision-language models, with and without an image: the answer is that of plain generation."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.drafters import DRAFTERS
from tests.helpers import check, prompt
from tests.image_families import IMAGE_FAMILIES, image_prompt, make_image_family

NEW = 16
GREEDY = {"max_new_tokens": NEW, "do_sample": False}
SAMPLED = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0}

model_of = functools.cache(make_image_family)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_a_prompt_with_an_image_gives_the_same(family, attention, drafter):
    model, inputs = model_of(family, attention=attention), image_prompt(family)
    text = model.generate(**inputs, **GREEDY)[0].tolist()
    settings = DRAFTERS[drafter](text)
    runs = check(model, None, settings=settings, **inputs, **GREEDY)
    if drafter == "half":
        assert runs.stats.passes <= NEW // 4 + 1
    check(model, None, settings=settings, **inputs, **SAMPLED)


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("drafter", ["half", "random"])
@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_a_batch_with_images_gives_the_same(family, drafter, padding):
    model, inputs = model_of(family), image_prompt(family, 3)
    mask = torch.ones_like(inputs["input_ids"])
    inputs["input_ids"][1, :padding], mask[1, :padding] = 0, 0
    inputs["attention_mask"] = mask
    text = model.generate(**inputs, **GREEDY)[0].tolist()
    check(model, None, settings=DRAFTERS[drafter](text), **inputs, **GREEDY)


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_a_prompt_that_ends_with_its_image_gives_the_same(family):
    """Plain decoding calls new tokens text, whatever the last token of the prompt was."""
    model, inputs = model_of(family), image_prompt(family)
    length = 8 if family == "qwen2_vl" else 7
    for name, value in inputs.items():
        if name.endswith("ids"):
            inputs[name] = value[:, :length]
    text = model.generate(**inputs, **GREEDY)[0].tolist()
    check(model, None, settings=DRAFTERS["half"](text), **inputs, **GREEDY)


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_a_text_behind_an_image_and_a_text_alone_give_the_same(family):
    model, ids = model_of(family), prompt(18, repeat=4) % 100
    model.generate(**image_prompt(family), **GREEDY)
    text = model.generate(ids, **GREEDY)[0].tolist()
    check(model, ids, settings=DRAFTERS["half"](text), **GREEDY)
    check(model, ids, **SAMPLED)
