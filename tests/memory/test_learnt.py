"""When what was learnt is read and saved, and that nobody waits for it or suffers from it."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref

import pytest
import torch

from lookahead import LookaheadWarning
from lookahead.learnt import FIRST_ROWS, Learnt, add_up
from lookahead.memory import Memory
from lookahead.session import MAX_LEARNT, Session
from tests.memory.stand_ins import IDENTITY, PRINT, Sums, start

KEY = ("a machine", "cpu", "float32")


def learnt(remember=True, sums=None) -> Learnt:
    made = Learnt(remember, lambda: IDENTITY)
    if sums is not None:
        made.keep(sums)
    return made


def stored(kind: str = "sums") -> Sums | None:
    arrays = Memory().load(PRINT, kind)
    if arrays is None:
        return None
    found = Sums()
    found.load_state(arrays)
    return found


def save(rows: int, kind: str = "sums", value: float = 1.0) -> None:
    sums = Sums()
    sums.add(rows, value)
    Memory().save(PRINT, kind, sums.state(), {"rows": str(rows)})


def test_sums_are_saved_when_there_is_enough_that_is_new():
    sums = Sums()
    one = learnt(sums=sums)
    for rows, wanted in [
        (FIRST_ROWS - 1, None),
        (1, FIRST_ROWS),
        (FIRST_ROWS - 1, FIRST_ROWS),
        (1, 2 * FIRST_ROWS),
        (2 * FIRST_ROWS - 1, 2 * FIRST_ROWS),
        (1, 4 * FIRST_ROWS),
    ]:
        sums.add(rows)
        one.save_if_due()
        one.wait()
        found = stored()
        assert (found and found.rows) == wanted
    assert torch.equal(found.products, sums.products)
    (entry,) = Memory().entries()
    assert entry.meta["rows"] == str(4 * FIRST_ROWS)
    assert entry.meta["label"] == "a model"


def test_the_next_process_goes_on_where_this_one_ended():
    sums = Sums()
    one = learnt(sums=sums)
    sums.add(700, 2.0)
    one.close()
    again = Sums()
    two = learnt(sums=again)
    assert again.rows == 700
    assert torch.equal(again.products, sums.products)
    again.add(300, 1.0)
    two.close()
    assert stored().rows == 1000
    assert torch.equal(stored().products, torch.full((4, 4), 1700.0))


def test_what_another_process_saved_in_the_meantime_is_kept():
    save(1000)
    first, second = Sums(), Sums()
    one, two = learnt(sums=first), learnt(sums=second)
    first.add(600)
    second.add(5000)
    one.close()
    two.close()
    assert stored().rows == 6600
    assert torch.equal(stored().products, torch.full((4, 4), 6600.0))


def test_two_processes_that_both_find_nothing_add_up():
    first, second = Sums(), Sums()
    one, two = learnt(sums=first), learnt(sums=second)
    first.add(600)
    second.add(700)
    one.close()
    two.close()
    assert stored().rows == 1300


def test_calibrated_and_gathered_sums_are_read_together_and_kept_apart():
    save(1000, "calibrated", 3.0)
    save(500, "sums", 1.0)
    sums = Sums()
    one = learnt(sums=sums)
    assert sums.rows == 1500
    assert torch.equal(sums.products, torch.full((4, 4), 3500.0))
    sums.add(200)
    one.close()
    assert stored("calibrated").rows == 1000
    assert stored("sums").rows == 700
    assert torch.equal(stored("sums").products, torch.full((4, 4), 700.0))


def test_calibrated_only_reads_nothing_else_and_saves_nothing():
    save(1000, "calibrated")
    save(500, "sums")
    before = {e.path: e.path.read_bytes() for e in Memory().entries()}
    sums = Sums()
    one = learnt("calibrated", sums)
    assert sums.rows == 1000
    sums.add(10_000)
    curve = one.curve(KEY, "cpu")
    for _ in range(200):
        curve.learn(4, 0.1)
    one.save_if_due()
    one.close()
    assert {e.path: e.path.read_bytes() for e in Memory().entries()} == before


def test_switched_off_it_reads_and_writes_nothing(memory_folder, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("a file was touched")

    monkeypatch.setattr(Memory, "load", never)
    monkeypatch.setattr(Memory, "update", never)
    sums = Sums()
    one = Learnt(False, never)
    one.keep(sums)
    sums.add(10_000)
    curve = one.curve(KEY, "cpu")
    for _ in range(200):
        curve.learn(4, 0.1)
    one.save_if_due()
    one.close()
    assert one.notes() == []
    assert not memory_folder.exists()


def test_a_few_rows_at_the_end_are_not_worth_a_file():
    sums = Sums()
    one = learnt(sums=sums)
    sums.add(20)
    one.close()
    assert stored() is None


def test_a_curve_is_saved_and_read_again():
    one = learnt()
    curve = one.curve(KEY, "cpu")
    assert one.curve(KEY, "cpu") is curve
    for _ in range(70):
        curve.learn(1, 0.01)
        curve.learn(8, 0.03)
    one.save_if_due()
    one.wait()
    found = learnt().curve(KEY, "cpu")
    assert found.seconds(8) == pytest.approx(curve.seconds(8), rel=0.03)
    assert learnt().curve((*KEY, "2 threads"), "cpu").seconds(8) is None
    (entry,) = Memory().entries()
    assert entry.kind.startswith("curve-")
    assert entry.meta["for"] == "a machine, cpu, float32"


def test_curves_of_two_processes_are_joined():
    one, two = learnt(), learnt()
    for _ in range(70):
        one.curve(KEY, "cpu").learn(1, 0.01)
        two.curve(KEY, "cpu").learn(16, 0.08)
    one.close()
    two.close()
    seconds = learnt().curve(KEY, "cpu").seconds(16)
    assert seconds is not None
    assert seconds[15] > seconds[0]


@pytest.mark.parametrize("fault", ["truncated", "flipped", "width", "curve"])
def test_a_file_that_cannot_be_used_costs_one_sentence(fault):
    save(1000)
    one = learnt()
    for _ in range(70):
        one.curve(KEY, "cpu").learn(1, 0.01)
    one.close()
    curve, sums = (e.path for e in Memory().entries())
    whole = sums.read_bytes()
    if fault == "truncated":
        sums.write_bytes(whole[:-5])
    elif fault == "flipped":
        sums.write_bytes(whole[:-1] + b"\x55")
    elif fault == "width":
        Memory().save(PRINT, "sums", Sums(3).state())
    else:
        curve.write_bytes(b"")
    again = Sums()
    with pytest.warns(LookaheadWarning) as warned:  # noqa: PT031
        two = learnt(sums=again)
        found = two.curve(KEY, "cpu")
    assert len(warned) == 1
    assert "output is not affected" in str(warned[0].message)
    assert len(two.notes()) == 1
    assert two.notes() == []
    assert again.rows == (1000 if fault == "curve" else 0)
    assert (found.seconds(1) is None) == (fault == "curve")
    again.add(600)
    two.close()
    if fault != "curve":
        assert stored().rows == 600


def test_a_folder_that_cannot_be_written_costs_one_sentence(memory_folder):
    memory_folder.parent.mkdir(exist_ok=True)
    memory_folder.write_text("in the way")
    sums = Sums()
    with pytest.warns(LookaheadWarning) as warned:
        one = learnt(sums=sums)
    assert len(warned) == 1
    with warnings.catch_warnings(record=True) as later:
        warnings.simplefilter("always")
        for _ in range(20):
            sums.add(600)
            one.save_if_due()
            one.wait()
        one.close()
    assert len(later) == 1
    assert "remember=False" in str(later[0].message)


def test_warnings_that_are_errors_do_not_end_a_run():
    save(1000)
    (entry,) = Memory().entries()
    entry.path.write_bytes(b"")
    sums = Sums()
    one = learnt(sums=sums)  # pytest turns warnings into errors here
    assert sums.rows == 0
    assert len(one.notes()) == 1


def test_a_model_without_an_identity_is_not_remembered(memory_folder):
    def fails() -> None:
        raise RuntimeError("no weights here")

    one = Learnt(True, fails)
    assert one.fingerprint is None
    assert "no weights here" in one.notes()[0]
    sums = Sums()
    one.keep(sums)
    sums.add(10_000)
    one.close()
    assert not memory_folder.exists()


def test_sums_that_fail_do_not_end_a_run():
    class Broken(Sums):
        def state(self):
            raise RuntimeError("lost")

    sums = Broken()
    one = learnt(sums=sums)
    sums.add(10_000)
    for _ in range(70):
        one.curve(KEY, "cpu").learn(1, 0.01)
    with pytest.warns(LookaheadWarning, match="lost"):
        one.save_if_due()
    one.close()
    assert stored() is None
    assert len(one.notes()) == 1


def test_a_curve_of_a_newer_version_does_not_keep_sums_from_being_saved(monkeypatch):
    def write(rows):
        sums = Sums()
        one = learnt(sums=sums)
        sums.add(rows)
        for _ in range(70):
            one.curve(KEY, "cpu").learn(1, 0.01)
        one.close()

    with monkeypatch.context() as patch:
        patch.setattr("lookahead.memory_file.FORMAT", 2)
        write(10)
    with pytest.warns(LookaheadWarning, match="newer version"):
        write(700)
    assert stored().rows == 700


def test_decoding_goes_on_while_it_is_written(monkeypatch):
    go_on, begun = threading.Event(), threading.Event()
    real = Memory.update

    def slow(*args):
        begun.set()
        assert go_on.wait(30)
        return real(*args)

    monkeypatch.setattr(Memory, "update", slow)
    sums = Sums()
    one = learnt(sums=sums)
    sums.add(600)
    one.save_if_due()
    assert begun.wait(30)
    sums.add(10_000)
    one.save_if_due()  # a second writer is not started
    go_on.set()
    one.wait()
    assert stored().rows == 600  # of the moment at which it was due
    one.close()
    assert stored().rows == 10_600


def test_states_that_do_not_fit_are_not_added():
    assert add_up({"a": torch.ones(2)}, {"b": torch.ones(2)}) is None
    assert add_up({"a": torch.ones(2)}, {"a": torch.ones(3)}) is None
    assert add_up({"a": torch.ones(2)}, {"a": torch.ones(2).double()}) is None
    one = add_up({"a": torch.ones(2)}, {"a": torch.ones(2)}, less={"a": torch.ones(2)})
    assert torch.equal(one["a"], torch.ones(2))


def test_a_session_saves_when_its_model_goes():
    session = Session()
    one = session.learnt(True, "weights", lambda: IDENTITY)
    assert session.learnt(True, "weights", lambda: IDENTITY) is one
    sums = Sums()
    one.keep(sums)
    sums.add(300)
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    assert stored().rows == 300


def test_a_session_that_forgets_saves_nothing_and_reads_again():
    save(1000)
    session = Session()
    one = session.learnt(True, "weights", lambda: IDENTITY)
    sums = Sums()
    one.keep(sums)
    sums.add(5000)
    session.forget()
    one.save_if_due()
    one.close()
    assert stored().rows == 1000
    two = session.learnt(True, "weights", lambda: IDENTITY)
    assert two is not one
    assert two.sums is None


def test_a_call_that_leaves_no_trace_leaves_none_through_a_later_one():
    session = Session()
    off = session.learnt(False, "weights", lambda: IDENTITY)
    on = session.learnt(True, "weights", lambda: IDENTITY)
    assert off is not on
    off.keep(Sums())
    off.sums.add(10_000)
    assert on.sums is None


def test_a_session_keeps_a_few_sets_of_weights():
    session = Session()
    first = session.learnt(True, 0, lambda: IDENTITY)
    sums = Sums()
    first.keep(sums)
    sums.add(300)
    for number in range(1, MAX_LEARNT + 1):
        assert stored() is None
        session.learnt(True, number, lambda: IDENTITY)
    assert stored().rows == 300
    assert session.learnt(True, 0, lambda: IDENTITY) is not first


ENDING = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
import lookahead.memory
lookahead.memory.default_folder = lambda: Path(sys.argv[1])
from lookahead.session import Session
from tests.memory.stand_ins import IDENTITY, Sums
session = Session()
learnt = session.learnt(True, 0, lambda: IDENTITY)
sums = Sums()
learnt.keep(sums)
sums.add(300)
{end}
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1)])
def test_a_process_that_ends_saves(memory_folder, end, code):
    from tests.memory.stand_ins import ROOT

    process = start(ENDING.format(root=str(ROOT), end=end), memory_folder)
    said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert stored().rows == 300


def test_a_killed_process_leaves_what_was_there(memory_folder):
    from tests.memory.stand_ins import ROOT

    save(1000)
    end = "import os; os.kill(os.getpid(), 9)"
    process = start(ENDING.format(root=str(ROOT), end=end), memory_folder)
    process.communicate(timeout=120)
    assert process.returncode == -9
    assert stored().rows == 1000
