"""The embedded model: the ids of plain ``generate``, prompt by prompt, in 32 bits.

Every second-turn prompt goes on from the cache that the first turn left.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

import lookahead
from lookahead.cli.benchmark.prompts import turns_of
from tests.helpers import CACHE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(lookahead.__file__).parent.parent
DEVELOPMENT = ROOT.parent / "shared" / "data" / "spec_bench.jsonl"
OWN = ROOT / "lookahead" / "cli" / "data" / "prompts.jsonl"
NUM_PROMPTS = 64
NEW = 48

MODES = {
    "greedy": {"do_sample": False},
    "temperature-0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
    "temperature-1": {"do_sample": True, "temperature": 1.0, "top_k": 0},
    "top-k": {"do_sample": True, "top_k": 20},
    "top-p": {"do_sample": True, "top_p": 0.9, "top_k": 0},
    "min-p": {"do_sample": True, "min_p": 0.05, "top_k": 0},
}


def prompts():
    """Return rows in turn from every kind of task, so that all are among the first ones."""
    path = DEVELOPMENT if DEVELOPMENT.exists() else OWN
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    by_kind = {}
    for row in rows:
        by_kind.setdefault(row["subtask"], []).append(row)
    mixed = []
    while any(by_kind.values()):
        mixed += [kind.pop(0) for kind in by_kind.values() if kind]
    return [list(turns_of(row)) for row in mixed[:NUM_PROMPTS]]


@functools.cache
def _model():
    from lookahead.hf.default_model import ModelLoadError, load_model

    torch.set_num_threads(os.cpu_count() or 1)
    try:
        return load_model("default", "float32", "cpu")
    except ModelLoadError as error:
        pytest.skip(f"the embedded model is not there: {error}")


def _ids(tokenizer, turns):
    found = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return found["input_ids"]


def _talk(model, tokenizer, turns, options):
    """All turns of a row; the cache goes from one to the next. Return the ids of each turn."""
    ids, cache, out = None, DynamicCache(config=model.config), []
    for number, turn in enumerate(turns):
        if ids is None:
            ids = _ids(tokenizer, [{"role": "user", "content": turn}])
        else:
            text = f"<|im_end|>\n<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n"
            more = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
            ids = torch.cat([ids, more], dim=1)
        torch.manual_seed(number)
        ids = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **{CACHE: cache},
            max_new_tokens=NEW,
            **options,
        )
        assert cache.get_seq_length() == ids.shape[1] - 1
        out.append(ids[0].tolist())
    return out


ROWS = prompts()


def test_there_are_enough_prompts():
    if not ROWS:
        pytest.skip("neither the development prompts nor the project's own are there")
    if DEVELOPMENT.exists():
        assert len(ROWS) >= 60
        assert any(len(turns) > 1 for turns in ROWS)


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_greedy_ids_are_those_of_plain_generation(number):
    _compare(number, "greedy", {})


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_sampled_ids_are_those_of_plain_generation(number):
    sampled = [name for name in MODES if name != "greedy"]
    _compare(number, sampled[number % len(sampled)], {"nodes": (16, 4, "auto")[number % 3]})


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_choosing_is_exact_on_the_first_prompts(mode):
    for number in range(min(2, len(ROWS))):
        _compare(number, mode, {"nodes": 16})


def _compare(number, mode, settings):
    model, tokenizer = _model()
    lookahead.restore(model)
    plain = _talk(model, tokenizer, ROWS[number], MODES[mode])
    with lookahead.accelerate(model, **({"nodes": 16, "strict": True} | settings)):
        fast = _talk(model, tokenizer, ROWS[number], MODES[mode])
        assert lookahead.last_stats(model).accelerated
    assert fast == plain
