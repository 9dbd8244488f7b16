from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from lookahead.cli.benchmark.arms import check_settings, parse_arms

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ablation.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_every_row_is_an_arm_of_the_benchmark(script: dict[str, Any]) -> None:
    options = argparse.Namespace(
        groups="sources,budgets", nodes=16, budgets="4,8", window="7/3/7", exit_layer="2"
    )
    cases = list(script["make_cases"](options))
    names = list(dict.fromkeys(case["arm"] for case in cases))
    specs = parse_arms(",".join(names))
    check_settings(specs)
    assert [spec.name for spec in specs] == ["plain", *names]
    settings = {case["label"]: specs[1 + names.index(case["arm"])].settings for case in cases}
    assert settings["head alone"] == {"nodes": 16, "sources": ("head",)}
    assert settings["window alone"] == {"nodes": 16, "sources": (), "window": (7, 3, 7)}
    assert settings["without head"]["sources"] == ("ngrams", "recycled")
    assert settings["with exit"]["exit_layer"] == 2
    assert settings["8 nodes"] == {"nodes": 8}
    assert settings["auto nodes"] == {"nodes": "auto"}


def test_the_calculation_divides_mat_by_the_cost_of_all_rows(
    script: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"rows": [1, 11, 21], "seconds": [0.1, 0.2, 0.4]}')
    cell = {"mat": 3.0, "nodes_per_pass": 8.0, "window_rows_per_pass": 2.0}
    far = {**cell, "nodes_per_pass": 100.0}
    report = {
        "arms": {"a": {"overall": cell}, "b": {"overall": far}},
        "ablation": [{"label": "one", "arm": "a"}, {"label": "two", "arm": "b"}],
    }
    table = script["calculated_table"](report, {str(file): script["read_curve"](str(file))})
    assert "| one | 3.00 | 11.0 | 1.50 (2.00) |" in table
    assert "| two | 3.00 | 103.0 | - |" in table, "nothing is said beyond the curve"
    assert "`mine`" in table


@pytest.mark.parametrize("text", ["{}", '{"rows": [1, 1], "seconds": [1, 2]}', "[", '{"rows": []}'])
def test_a_file_without_a_curve_is_refused(
    script: dict[str, Any], tmp_path: Path, text: str
) -> None:
    file = tmp_path / "none.json"
    file.write_text(text)
    with pytest.raises(SystemExit, match=r"curve|rows"):
        script["read_curve"](str(file))


def test_tables_and_figure_of_a_small_run(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    pytest.importorskip("matplotlib")
    data, out, plot = tmp_path / "few.jsonl", tmp_path / "out.md", tmp_path / "out.png"
    data.write_text('{"subtask": "a", "prompt": "abab"}\n{"subtask": "b", "turns": ["x", "y"]}\n')
    command = ["ablation.py", "--groups", "budgets", "--budgets", "2,4", "--out", out]
    command += ["--plot", plot, "--model", tiny_folder, "--data", data, "--turns", "1"]
    command += ["--max-new-tokens", "8", "--dtype", "float32", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [str(word) for word in command])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    text = out.read_text()
    assert text.strip() == capfd.readouterr().out.strip()
    assert "| plain | 2/2 |" in text
    assert "| 4 nodes | 2/2 |" in text
    assert "a calculation, not a measurement" in text
    assert plot.stat().st_size > 0
