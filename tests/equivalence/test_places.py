"""Families whose positions or biases come from slots: the answer is that of plain generation."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch

import lookahead
from lookahead.hf import masks, selftest
from lookahead.hf.places import PlaceReaders
from lookahead.hf.split import _ByThread
from tests.drafters import DRAFTERS
from tests.helpers import prompt, skip_if_earlier, skip_if_no_tree_earlier
from tests.slot_families import SLOT_FAMILIES, cases_of, make_slot_family

NEW = 16
CASES = cases_of(SLOT_FAMILIES)
SAMPLED = {"do_sample": True, "top_k": 0}

model_of = functools.cache(make_slot_family)


def _inputs(batch: int, padding: int = 0) -> dict[str, Any]:
    ids = torch.cat([prompt(14, seed=seed, repeat=4) for seed in range(1, batch + 1)])
    mask = torch.ones_like(ids)
    ids[1:2, :padding], mask[1:2, :padding] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _check(model: Any, inputs: dict[str, Any], drafter: str, **arguments: Any) -> Any:
    arguments = {"max_new_tokens": NEW, "do_sample": False} | arguments
    torch.manual_seed(3)
    plain = model.generate(**inputs, **arguments)
    lookahead.forget(model)
    settings = DRAFTERS[drafter](plain[0].tolist())
    with lookahead.accelerate(model, nodes=8, strict=True, **settings), skip_if_earlier():
        torch.manual_seed(3)
        fast = model.generate(**inputs, **arguments)
        stats = lookahead.last_stats(model)
    assert fast.tolist() == plain.tolist()
    return stats


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_one_prompt_gives_the_same(family, attention, drafter):
    model = model_of(family, attention=attention)
    stats = _check(model, _inputs(1), drafter)
    if drafter == "half" and stats.shape == "tree":
        assert stats.passes <= NEW // 4 + 1
    if drafter in ("half", "random"):
        _check(model, _inputs(1), drafter, **SAMPLED)


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("drafter", ["half", "random"])
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_batches_give_the_same(family, attention, drafter, padding):
    _check(model_of(family, attention=attention), _inputs(3, padding), drafter)


@pytest.mark.parametrize(("family", "attention"), CASES)
def test_what_reads_slots_is_found_out_where_it_is_not_corrected(family, attention, monkeypatch):
    masks.install()
    model = model_of(family, attention=attention)
    fault = selftest.find_fault(model)
    skip_if_no_tree_earlier(fault)
    assert fault is None
    if not len(PlaceReaders(model, takes_positions=selftest.takes_positions(model))):
        return
    monkeypatch.setattr(PlaceReaders, "corrected", lambda *_: masks.tree_attention(_[1]))
    assert "differ from plain ones" in selftest.find_fault(model)


@pytest.mark.parametrize("family", ["bloom", "mpt", "bart", "marian"])
def test_nothing_of_it_stays_on_the_model(family):
    model = make_slot_family(family)
    _check(model, _inputs(1), "half")
    assert not [m for m in model.modules() if isinstance(vars(m).get("forward"), _ByThread)]


@pytest.mark.parametrize("family", ["bloom", "bart"])
def test_a_plain_forward_of_another_thread_is_not_touched(family):
    model = make_slot_family(family)
    inputs = _inputs(1)
    with torch.no_grad():
        expected = model(**inputs).logits
    stop, wrong = threading.Event(), []

    def look() -> None:
        with torch.no_grad():
            while not stop.is_set():
                if not torch.equal(model(**inputs).logits, expected):
                    wrong.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        _check(model, inputs, "half", max_new_tokens=48)
    finally:
        stop.set()
        thread.join()
    assert not wrong


@pytest.mark.parametrize("family", ["bart", "marian", "mvp", "mpt", "gpt_neo", "whisper"])
def test_a_run_to_the_last_position_of_a_model_gives_the_same(family):
    """Tables end there, and rows of a tree stand in slots beyond."""
    _check(model_of(family), _inputs(1), "half", max_new_tokens=128 - 14)


@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon", "gpt_neo", "bart", "roberta"])
def test_early_exit_gives_the_same_or_is_off(family):
    model, inputs = model_of(family), _inputs(1)
    arguments = {"max_new_tokens": NEW, "do_sample": False}
    plain = model.generate(**inputs, **arguments)
    lookahead.forget(model)
    with lookahead.accelerate(model, nodes=8, strict=True, sources=("exit",), exit_layer=1):
        fast = model.generate(**inputs, **arguments)
        stats = lookahead.last_stats(model)
    assert fast.tolist() == plain.tolist()
    assert "exit" in stats.by_source or stats.notes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon", "gpt_neo", "bart", "roberta"])
def test_half_precision_passes_the_self_test(family, dtype):
    masks.install()
    fault = selftest.find_fault(make_slot_family(family).to(dtype))
    skip_if_no_tree_earlier(fault)
    assert fault is None
