"""Files that outlive a process: whole or refused, bounded, and safe from each other."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lookahead import memory_file
from lookahead.memory import Memory, MemoryFileError, Stored, default_folder
from tests.memory.stand_ins import PRINT, start

OTHER = "fedcba9876543210"


def arrays(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {
        "products": torch.full((3, 5), value),
        "half": torch.arange(4, dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "nothing": torch.zeros(0, 3),
    }


def assert_same(found: Any, wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert torch.equal(found[name], array)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "deep" / "memory")


def test_what_was_saved_is_loaded(memory):
    assert memory.load(PRINT, "sums") is None
    path = memory.save(PRINT, "sums", arrays(), {"rows": "7"})
    assert_same(memory.load(PRINT, "sums"), arrays())
    memory.save(PRINT, "sums", arrays(2.0))
    assert_same(memory.load(PRINT, "sums"), arrays(2.0))
    assert memory.load(PRINT, "other") is None
    assert memory.load(OTHER, "sums") is None
    assert [p.name for p in path.parent.iterdir()] == ["sums.safetensors"]


def test_only_the_owner_can_read_it(memory):
    path = memory.save(PRINT, "sums", arrays())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(memory.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", "../../etc", "ABCDEF0123456789", "0123"])
def test_no_name_leads_out_of_the_folder(memory, name):
    with pytest.raises(ValueError, match="not the name"):
        memory.path(name, "sums")
    with pytest.raises(ValueError, match="not the name"):
        memory.path(PRINT, f"{name}/")


def test_every_truncated_file_is_refused_and_replaced(memory):
    path = memory.save(PRINT, "sums", arrays())
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(MemoryFileError, match="is ignored"):
            memory.load(PRINT, "sums")
    memory.save(PRINT, "sums", arrays(3.0))
    assert_same(memory.load(PRINT, "sums"), arrays(3.0))


@pytest.mark.parametrize("bit", [0x01, 0x10, 0x80])
def test_every_flipped_byte_is_noticed(memory, bit):
    path = memory.save(PRINT, "sums", arrays())
    whole = path.read_bytes()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= bit
        path.write_bytes(broken)
        try:
            found = memory.load(PRINT, "sums")
        except MemoryFileError:
            continue
        assert_same(found, arrays())  # blanks of the header may change, what it says may not


def test_files_that_are_not_ours_are_refused(memory):
    path = memory.save(PRINT, "sums", arrays())
    whole = path.read_bytes()
    for content in (b"hello", b"", bytes(9), b"\xff" * 40, b"\x02" + bytes(7) + b"[]"):
        path.write_bytes(content)
        with pytest.raises(MemoryFileError):
            memory.load(PRINT, "sums")
    save_file(arrays(), path)
    with pytest.raises(MemoryFileError, match="no file of lookahead"):
        memory.load(PRINT, "sums")
    for kind, print_ in (("other", PRINT), ("sums", OTHER)):
        elsewhere = memory.path(print_, kind)
        elsewhere.parent.mkdir(exist_ok=True)
        elsewhere.write_bytes(whole)
        with pytest.raises(MemoryFileError, match="another model"):
            memory.load(print_, kind)


def test_a_file_of_a_newer_version_is_left_alone(memory, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(memory_file, "FORMAT", 2)
        path = memory.save(PRINT, "sums", arrays())
    before = path.read_bytes()
    with pytest.raises(MemoryFileError, match=r"newer version .* update"):
        memory.load(PRINT, "sums")
    with pytest.raises(MemoryFileError, match="newer version"):
        memory.save(PRINT, "sums", arrays(2.0))
    assert path.read_bytes() == before


def test_a_file_of_an_older_version_is_replaced(memory, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(memory_file, "FORMAT", 0)
        memory.save(PRINT, "sums", arrays())
    with pytest.raises(MemoryFileError, match="older version"):
        memory.load(PRINT, "sums")
    memory.save(PRINT, "sums", arrays(2.0))
    assert_same(memory.load(PRINT, "sums"), arrays(2.0))


@pytest.mark.parametrize("function", ["os.fsync", "pathlib.Path.replace", "tempfile.mkstemp"])
def test_a_full_disk_leaves_the_older_file(memory, monkeypatch, function):
    path = memory.save(PRINT, "sums", arrays())
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(function, full)
        with pytest.raises(MemoryFileError, match="no space is left"):
            memory.save(PRINT, "sums", arrays(2.0))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    memory = Memory(tmp_path / "file" / "memory")
    with pytest.raises(MemoryFileError, match="remember=False"):
        memory.save(PRINT, "sums", arrays())
    with pytest.raises(MemoryFileError, match="cannot be read"):
        memory.load(PRINT, "sums")
    assert memory.entries() == []
    assert memory.clear() == 0


def test_a_file_that_cannot_be_read_now_is_not_replaced(memory, monkeypatch):
    path = memory.save(PRINT, "sums", arrays())
    before = path.read_bytes()

    def broken(_: Path) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", broken)
        with pytest.raises(MemoryFileError, match="Input/output error"):
            memory.save(PRINT, "sums", arrays(2.0))
    assert path.read_bytes() == before


def test_what_is_too_large_is_not_saved(memory, monkeypatch):
    memory.save(PRINT, "sums", arrays())
    monkeypatch.setattr("lookahead.memory.FILE_BYTES", 3000)
    with pytest.raises(MemoryFileError, match="is the limit"):
        memory.save(PRINT, "sums", {"a": torch.zeros(1000)})
    assert_same(memory.load(PRINT, "sums"), arrays())


def test_the_models_used_longest_ago_go_first(tmp_path):
    memory = Memory(tmp_path, total_bytes=20_000)
    prints = [f"{number:016x}" for number in range(6)]
    for age, print_ in enumerate(prints[:4]):
        memory.save(print_, "sums", {"a": torch.zeros(1000)})
        os.utime(tmp_path / print_, (age, age))
    memory.load(prints[0], "sums")  # used now, so the second is the oldest
    memory.save(prints[4], "sums", {"a": torch.zeros(1000)})
    left = {entry.fingerprint for entry in memory.entries()}
    assert left == {prints[0], prints[2], prints[3], prints[4]}
    memory.save(prints[5], "sums", {"a": torch.zeros(4000)})
    left = {entry.fingerprint for entry in memory.entries()}
    assert prints[5] in left
    assert sum(entry.num_bytes for entry in memory.entries()) <= 20_000


def test_it_can_be_listed_and_cleared(memory):
    assert memory.entries() == []
    memory.save(PRINT, "sums", arrays(), {"rows": "7", "label": "one"})
    memory.save(OTHER, "calibrated", arrays())
    path = memory.save(OTHER, "sums", arrays())
    path.write_bytes(b"broken")
    entries = {(e.fingerprint, e.kind): e for e in memory.entries()}
    assert entries[PRINT, "sums"].meta["rows"] == "7"
    assert entries[OTHER, "sums"].meta == {}
    assert memory.clear(PRINT) == entries[PRINT, "sums"].num_bytes
    assert {e.fingerprint for e in memory.entries()} == {OTHER}
    memory.clear()
    assert memory.entries() == []
    memory.save(PRINT, "sums", arrays())


def test_the_users_folder_is_not_touched_by_tests(memory_folder):
    assert memory_folder != default_folder()
    assert Memory().folder == memory_folder


ADDING = """
import sys, torch
from pathlib import Path
from lookahead.memory import Memory, Stored
memory = Memory(Path(sys.argv[1]))
def add(old):
    before = torch.zeros(2000) if old is None else old.arrays["a"]
    return Stored({"a": before + 1}, {})
for _ in range(40):
    memory.update(sys.argv[2], "sums", add)
"""


def test_two_processes_at_once_lose_nothing(memory):
    processes = [start(ADDING, memory.folder, PRINT) for _ in range(2)]
    for process in processes:
        said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    found = memory.load(PRINT, "sums")
    assert torch.equal(found["a"], torch.full((2000,), 80.0))


KILLED = """
import os, sys, torch
from pathlib import Path
from lookahead import memory as m
real = os.fsync
def stop(handle):
    real(handle)
    print("writing", flush=True)
    sys.stdin.read()
os.fsync = stop
m.Memory(Path(sys.argv[1])).save(sys.argv[2], "sums", {"a": torch.ones(9)})
"""


def test_a_process_killed_while_it_saves_leaves_the_older_file(memory):
    path = memory.save(PRINT, "sums", arrays())
    process = start(KILLED, memory.folder, PRINT)
    assert process.stdout.readline() == "writing\n", process.stderr.read()
    process.kill()
    process.communicate()
    assert len(list(path.parent.iterdir())) == 2
    assert_same(memory.load(PRINT, "sums"), arrays())
    memory.save(PRINT, "sums", arrays(2.0))
    assert list(path.parent.iterdir()) == [path]


def test_a_file_system_without_locks_will_do(memory, monkeypatch):
    class NoLock:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def acquire(self) -> None:
            raise NotImplementedError

    monkeypatch.setattr("lookahead.locks.FileLock", NoLock)
    memory.save(PRINT, "sums", arrays())
    memory.update(PRINT, "sums", lambda old: Stored({"a": old.arrays["count"]}, {}))
    assert_same(memory.load(PRINT, "sums"), {"a": torch.tensor(7)})


def test_a_lock_that_is_never_let_go_is_one_sentence(memory, monkeypatch):
    memory.save(PRINT, "sums", arrays())
    monkeypatch.setattr("lookahead.memory.LOCK_SECONDS", 0.1)
    code = (
        "import sys\nfrom filelock import FileLock\n"
        "with FileLock(sys.argv[1]):\n print('held', flush=True); sys.stdin.read()"
    )
    process = start(code, memory.folder / "memory.lock")
    assert process.stdout.readline() == "held\n"
    with pytest.raises(MemoryFileError, match="another process"):
        memory.save(PRINT, "sums", arrays(2.0))
    process.kill()
    process.communicate()
