"""The embedded model in 16 bits: where ids differ from plain ones, rounding explains it.

A pass over several rows rounds differently from a pass over one, so two logits that lie closer
together than that may change places. Any other difference is a fault.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import lookahead
from lookahead.hf.difference import find_difference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

NEW = 48

TOPICS = (
    "the water cycle",
    "a lighthouse keeper",
    "sorting a list of numbers",
    "the history of paper",
    "why bread rises",
    "a train that is late",
    "the moons of Jupiter",
    "repairing a bicycle",
    "learning to play chess",
    "a market in the rain",
)
TEMPLATES = (
    "Explain {} to a child in three sentences.",
    "Write the first paragraph of a short story about {}.",
    "List five facts about {}, one a line.",
    "Repeat this sentence three times, then go on: I have often thought about {} in the evening.",
    "Write a Python function whose docstring mentions {}.",
    "Translate into French, then back into English: Yesterday we spoke about {}.",
)


def prompts():
    """Return sixty different prompts: every template with every topic."""
    return [template.format(topic) for template, topic in itertools.product(TEMPLATES, TOPICS)]


def _model(dtype):
    from lookahead.hf.default_model import ModelLoadError, load_model

    try:
        return load_model("default", dtype, "cpu")
    except ModelLoadError as error:
        pytest.skip(f"the embedded model is not there: {error}")


def _ids(tokenizer, text):
    found = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    return found["input_ids"]


def test_there_are_sixty_prompts():
    assert len(set(prompts())) == 60


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_first_difference_is_rounding(dtype):
    model, tokenizer = _model(dtype)
    assert model.dtype == getattr(torch, dtype)
    found = {}
    with lookahead.accelerate(model, nodes=8, strict=True, remember=False):
        for text in prompts():
            ids = _ids(tokenizer, text)
            found[text] = find_difference(model, ids, max_new_tokens=NEW, do_sample=False)
            assert lookahead.last_stats(model).accelerated
    differing = {text: one for text, one in found.items() if one is not None}
    # Shown with -rP: what the documentation says of 16 bits comes from here.
    print(f"{dtype}: {len(found) - len(differing)} of {len(found)} answers the same")
    for text, one in sorted(differing.items(), key=lambda item: -item[1].gap):
        print(f"  gap {one.gap:.4f}, rounding {one.rounding:.4f}, token {one.index}: {text}")
    assert not {text: str(one) for text, one in differing.items() if not one.is_rounding}
