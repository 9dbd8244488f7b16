from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lookahead import calibrate as logic
from lookahead.cli.benchmark.arms import parse_arms, with_state
from lookahead.cli.calibrate import _prompts
from lookahead.memory import Memory
from tests.memory.stand_ins import Sums


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic, "MAX_NEW_TOKENS", 6)
    monkeypatch.setattr(logic, "MAX_ROWS", 400)
    monkeypatch.setattr(logic, "empty_sums", lambda _model: Sums(32))


@pytest.mark.usefixtures("short")
def test_calibrate_stores_and_says_what(call: Any, tiny_folder: Path) -> None:
    outcome = call("calibrate", tiny_folder, "--dtype", "float32")
    assert outcome.code == 0, outcome.err
    (entry,) = Memory().entries()
    assert entry.kind == "calibrated"
    assert f"{int(entry.meta['rows']):,} positions" in outcome.err
    assert str(entry.path) in outcome.err
    raw = call("calibrate", tiny_folder, "--dtype", "float32", "--no-chat-template")
    assert raw.code == 0
    assert len(Memory().entries()) == 1


@pytest.mark.usefixtures("short")
def test_a_quantised_model_is_calibrated_as_another_one(call: Any, tiny_folder: Path) -> None:
    for bits in ("none", "int8"):
        outcome = call("calibrate", tiny_folder, "--dtype", "float32", "--quantize", bits)
        assert outcome.code == 0, outcome.err
    assert [entry.kind for entry in Memory().entries()] == ["calibrated"] * 2
    assert len({entry.path.parent for entry in Memory().entries()}) == 2


def test_calibrate_says_where_there_is_nothing_to_do(
    call: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logic, "ends_of", lambda _model: None)
    outcome = call("calibrate", tiny_folder)
    assert outcome.code == 1
    assert "nothing to calibrate" in outcome.err


def test_the_built_in_prompts_begin_with_one_of_each_kind() -> None:
    prompts = _prompts()
    assert len(prompts) == len(set(prompts)) == 50
    assert len({prompt[:20] for prompt in prompts[:9]}) == 9
    assert prompts[0].startswith("Write a short travel report")
    assert prompts[1].startswith("What are the advantages")


@pytest.mark.usefixtures("short")
def test_memory_is_shown_and_cleared(call: Any, tiny_folder: Path) -> None:
    assert "Nothing is kept" in call("memory", "info").err
    call("calibrate", tiny_folder, "--dtype", "float32")
    other = Memory().save("0123456789abcdef", "curve-0a", {"a": torch.ones(2)}, {"for": "a cpu"})
    other.with_name("sums.safetensors").write_bytes(b"broken")
    shown = call("memory", "info")
    assert shown.code == 0
    assert "0123456789ab" in shown.out
    assert "cannot be" in shown.out
    assert "kB in" in shown.err
    assert call("memory", "clear", "0123").code == 0
    (left,) = Memory().entries()
    assert left.kind == "calibrated"
    assert call("memory", "clear", tiny_folder).code == 0
    assert Memory().entries() == []
    Memory().save("0123456789abcdef", "sums", {"a": torch.ones(2)})
    Memory().save("0123456789abcdff", "sums", {"a": torch.ones(2)})
    assert "more digits" in call("memory", "clear", "0123").err
    assert call("memory", "clear").code == 0
    assert Memory().entries() == []


def test_a_benchmark_saves_nothing_and_cold_knows_nothing() -> None:
    specs = parse_arms("lookahead,lookahead:remember=on")
    assert [s.settings.get("remember") for s in with_state(specs, "cold")] == [None, False, True]
    found = [s.settings.get("remember") for s in with_state(specs, "session")]
    assert found == [None, "calibrated", True]


def test_a_benchmark_leaves_the_memory_alone(
    call: Any, tiny_folder: Path, memory_folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "one.jsonl"
    data.write_text('{"prompt": "Count to ten."}\n')
    arguments = ("bench", "-m", tiny_folder, "--data", data, "--dtype", "float32", "-n", "80")
    for state in ("cold", "session"):
        assert call(*arguments, "--state", state).code == 0
    assert not memory_folder.exists()
