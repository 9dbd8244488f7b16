"""The scripts under benchmarks/ run, on small sizes: what they measure is not judged here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_costs_of_passes_are_measured_on_a_model_of_random_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "costs.json"
    script("pass_costs").main(
        shape=["tiny"], dtype="float32", context="20,40", rows="1,8", repeats=1, out=out
    )
    tiny = json.loads(out.read_text())["shapes"]["tiny"]
    assert set(tiny["contexts"]) == {"20", "40"}
    for costs in tiny["contexts"].values():
        assert costs["plain_ms"] > 0
        assert set(costs["rows_ms"]) == {"1", "8"}
        assert all(ms > 0 for ms in costs["rows_ms"].values())
    assert "8 rows" in capsys.readouterr().out


def test_the_head_is_measured_on_random_data(capsys: pytest.CaptureFixture[str]) -> None:
    script("bench_head").measure(16, 3000)
    said = capsys.readouterr().out
    for part in ("ask about the root", "learn a pass of 17 rows", "memory of a sequence"):
        assert part in said


def test_the_script_for_a_gpu_is_well_formed() -> None:
    file = FOLDER / "gpu.sh"
    assert file.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", str(file)], check=True)
    shapes = script("pass_costs").SHAPES
    assert {"1b", "8b", "32b"} <= set(shapes)
