"""Rows of a batch that have ended are not run any more; the others go on as they were."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

import lookahead
from lookahead.hf.target import _has_more_of_rows
from tests.drafters import Oracle
from tests.helpers import FAMILIES, cache_of, fresh, prompt, shared

LENGTHS = (9, 3, 17, 26)
NEW = 24


def batch():
    ids = torch.zeros((len(LENGTHS), max(LENGTHS)), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        ids[row, ids.shape[1] - length :] = prompt(length, seed=row + 1, repeat=length // 4)
        mask[row, ids.shape[1] - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


@contextmanager
def sizes(model):
    """Batch sizes of the model's forwards in the block."""
    found = []
    hook = model.register_forward_pre_hook(
        lambda _module, _args, kwargs: found.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    yield found
    hook.remove()


def ends_of(ids):
    """End tokens with which rows end at different places."""
    new = [row[max(LENGTHS) :] for row in ids]
    return [new[0][2], new[2][9]]


def generate(model, **arguments):
    torch.manual_seed(4)
    out = model.generate(**batch(), max_new_tokens=NEW, pad_token_id=0, **arguments)
    return out if isinstance(out, torch.Tensor) else out.sequences


@pytest.mark.parametrize("nodes", [0, 4, 12, "auto"])
@pytest.mark.parametrize("mode", ["greedy", "sampled"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_the_answers_are_those_of_plain(family, mode, nodes):
    model = shared(family)
    way = {"do_sample": mode == "sampled", "top_k": 0, "temperature": 1.1}
    if mode == "greedy":
        way = {"do_sample": False}
    ends = ends_of(generate(model, **way).tolist())
    plain = generate(model, eos_token_id=ends, **way)
    behind = torch.get_rng_state()
    lookahead.forget(model)
    with lookahead.accelerate(model, nodes=nodes, strict=True), sizes(model) as found:
        fast = generate(model, eos_token_id=ends, **way)
    assert fast.tolist() == plain.tolist()
    assert torch.equal(torch.get_rng_state(), behind)
    passes = found[-lookahead.last_stats(model).passes :]
    assert passes == sorted(passes, reverse=True)
    assert passes[-1] < len(LENGTHS)


def test_a_row_that_is_guessed_well_leaves_early():
    model = shared()
    text = generate(model, do_sample=False).tolist()
    right = Oracle([t for t in text[3] if t])  # the one without padding
    with (
        lookahead.accelerate(model, nodes=16, sources=(), drafters=(right,), strict=True),
        sizes(model) as found,
    ):
        assert generate(model, do_sample=False).tolist() == text
    assert found[1] == 4
    assert found[-1] == 3


def test_a_cache_that_is_handed_back_holds_every_row():
    model = fresh()
    arguments = {"do_sample": False, "return_dict_in_generate": True}
    ends = ends_of(generate(model, **arguments).tolist())
    with lookahead.accelerate(model, nodes=8, strict=True), sizes(model) as found:
        torch.manual_seed(4)
        out = model.generate(
            **batch(), max_new_tokens=NEW, pad_token_id=0, eos_token_id=ends, **arguments
        )
    assert set(found[-lookahead.last_stats(model).passes :]) == {4}
    assert cache_of(out).layers[0].keys.shape[0] == 4


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_token_types_go_with_their_rows(mode):
    model = shared("gpt2")
    types = torch.tensor([5, 9, 70, 33])[:, None].expand(-1, max(LENGTHS)).contiguous()
    way = (
        {"do_sample": mode == "sampled", "top_k": 0} if mode == "sampled" else {"do_sample": False}
    )
    way |= {"token_type_ids": types}
    ends = ends_of(generate(model, **way).tolist())
    plain = generate(model, eos_token_id=ends, **way)
    with lookahead.accelerate(model, nodes=8, strict=True), sizes(model) as found:
        assert generate(model, eos_token_id=ends, **way).tolist() == plain.tolist()
    assert found[-1] < 4


def test_an_argument_that_cannot_be_told_apart_keeps_all_rows():
    assert _has_more_of_rows({"bias": torch.zeros(4, 2)}, 4)
    assert not _has_more_of_rows({"bias": torch.zeros(2, 4), "attention_mask": torch.ones(4, 9)}, 4)
