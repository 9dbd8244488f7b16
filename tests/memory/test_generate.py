"""Remembering around ``generate``: the same ids, whatever is stored; files only where wanted."""

from __future__ import annotations

import pytest
import torch

import lookahead
from lookahead.hf.fingerprint import identify
from lookahead.memory import Memory
from tests.helpers import fresh, new_ids, prompt

LONG = {"num": 120}


def the_curve():
    """The one cost curve that is stored."""
    (entry,) = [entry for entry in Memory().entries() if entry.kind.startswith("curve")]
    return entry


def test_a_curve_is_kept_from_one_process_to_the_next():
    model = fresh()
    plain = new_ids(model, prompt(), **LONG)
    with lookahead.accelerate(model, nodes=2):
        assert new_ids(model, prompt(), **LONG) == plain
        for _ in range(4):
            new_ids(model, prompt(), **LONG)
    lookahead.restore(model)
    entry = the_curve()
    assert entry.fingerprint == identify(model).fingerprint
    assert "1 threads" in entry.meta["for"]
    assert "float32" in entry.meta["for"]
    # A model object that knows nothing begins with it.
    other = fresh()
    with lookahead.accelerate(other):
        assert new_ids(other, prompt(), **LONG) == plain
        (learnt,) = other._lookahead_session._learnt.values()
        (curve,) = learnt._curves.values()
        assert curve.as_dict()["stored"]


@pytest.mark.parametrize("remember", [False, "calibrated"])
def test_nothing_is_written_where_that_is_switched_off(memory_folder, remember):
    model = fresh()
    with lookahead.accelerate(model, remember=remember):
        for _ in range(4):
            new_ids(model, prompt(), **LONG)
    lookahead.restore(model)
    assert not memory_folder.exists()


def test_sums_of_the_head_are_kept_from_one_process_to_the_next():
    model = fresh()
    plain = new_ids(model, prompt(), **LONG)
    with lookahead.accelerate(model, nodes=2):
        for _ in range(6):
            assert new_ids(model, prompt(), **LONG) == plain
        (learnt,) = model._lookahead_session._learnt.values()
        rows = learnt.sums.rows
    lookahead.restore(model)
    (entry,) = [entry for entry in Memory().entries() if entry.kind == "sums"]
    assert entry.fingerprint == identify(model).fingerprint
    assert int(entry.meta["rows"]) >= 512
    other = fresh()
    with lookahead.accelerate(other):
        assert new_ids(other, prompt(), num=3) == plain[:3]
        (learnt,) = other._lookahead_session._learnt.values()
        assert 512 <= learnt.sums.rows <= rows
        assert learnt.sums.map() is not None
        assert lookahead.last_stats(other).notes == []


def test_a_damaged_file_is_a_note_in_the_statistics():
    model = fresh()
    plain = new_ids(model, prompt())
    with lookahead.accelerate(model, nodes=2):
        for _ in range(4):
            new_ids(model, prompt(), **LONG)
    lookahead.restore(model)
    entry = the_curve()
    entry.path.write_bytes(b"x" * 100)
    with (  # noqa: PT031
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="is damaged and is ignored") as warned,
    ):
        assert new_ids(model, prompt()) == plain
        assert "is damaged" in lookahead.last_stats(model).notes[0]
        assert new_ids(model, prompt()) == plain
        assert lookahead.last_stats(model).notes == []
    assert len(warned) == 1


def test_forget_can_remove_the_files_too():
    model, other = fresh(), fresh("qwen2")
    for one in (model, other):
        Memory().save(identify(one).fingerprint, "sums", {"a": torch.ones(3)})
    lookahead.forget(model)
    assert len(Memory().entries()) == 2
    lookahead.forget(model, stored=True)
    (left,) = Memory().entries()
    assert left.fingerprint == identify(other).fingerprint


def test_a_model_is_let_go_of():
    import gc
    import weakref

    model = fresh()
    lookahead.accelerate(model)
    new_ids(model, prompt())
    gone = weakref.ref(model)
    lookahead.restore(model)
    del model
    gc.collect()
    assert gone() is None
