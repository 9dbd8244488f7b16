from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lookahead.cli.benchmark.anatomy import STEP_PARTS
from lookahead.cli.benchmark.meters import MemoryMeter, PassMeter
from lookahead.cli.benchmark.runner import is_loop

CELL = {
    "prompts",
    "exact",
    "tokens",
    "passes",
    "mat",
    "nodes_per_pass",
    "seconds",
    "tokens_per_s",
    "speedup",
    "speedup_min",
    "ttft_s",
    "tpot_ms",
    "tpot_p95_ms",
    "peak_rss_bytes",
    "extra_rss_bytes",
    "by_source",
    "time_ms",
}
PROMPTS = [
    {"id": 1, "subtask": "talk", "turns": ["Say this twice.", "Say it again."]},
    {"id": 2, "subtask": "talk", "prompt": "abcabcabcabcabcabc"},
    {"id": "x/3", "subtask": "sums", "question": "What is 2 and 2 and 2 and 2?"},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return file


def measure(call: Any, folder: Path, data: Path, tmp_path: Path, *options: str) -> tuple[Any, Any]:
    out = tmp_path / "out.json"
    outcome = call(
        "bench", "--model", folder, "--data", data, "--dtype", "float32", "--max-new-tokens", "16",
        "--json", out, *options,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    return json.loads(out.read_text()), outcome


def test_json_has_the_shape_that_scripts_read(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path
) -> None:
    arms = "plain,lookahead,lookahead:sources=ngrams,nodes=4"
    plot = tmp_path / "out.png"
    report, outcome = measure(
        call, tiny_folder, data, tmp_path, "--arms", arms, "--nodes", "8", "--state", "cold",
        "--profile", "--plot", str(plot),
    )  # fmt: skip
    assert set(report) == {"settings", "machine", "versions", "arms", "prompts", "anatomy"}
    assert list(report["arms"]) == ["plain", "lookahead", "lookahead:sources=ngrams,nodes=4"]
    for arm in report["arms"].values():
        assert set(arm) == {"overall", "subtasks"}
        assert set(arm["subtasks"]) == {"talk", "sums"}
        for cell in (arm["overall"], *arm["subtasks"].values()):
            assert set(cell) >= CELL | {"looping"}
            assert cell["exact"] == cell["prompts"]
        assert arm["overall"]["prompts"] == 4
        assert sum(cell["tokens"] for cell in arm["subtasks"].values()) == arm["overall"]["tokens"]
    ours = report["arms"]["lookahead"]["overall"]
    assert set(ours["by_source"]["ngrams"]) == {"offered", "accepted"}
    assert {"prefill", "draft", "verify", "accept", "commit", "learn"} <= set(ours["time_ms"])
    assert report["settings"]["cache_passed_on"] is True
    assert report["settings"]["state"] == "cold"
    assert report["machine"]["threads"] >= 1
    assert report["versions"]["transformers"]
    assert plot.stat().st_size > 0
    for word in ("talk", "sums", "overall", "speed-up", "Time by part", "A step taken apart"):
        assert word in outcome.out
    machine = report["machine"]
    assert report["anatomy"]["bandwidth_gb_s"] == machine["bandwidth_gb_s"] > 0.1
    for arm in report["arms"].values():
        cell = arm["overall"]
        least_ms = machine["bytes_of_a_pass"] / machine["bandwidth_gb_s"] / 1e6
        assert cell["roofline"] == pytest.approx(least_ms / cell["tpot_ms"])
    assert set(report["anatomy"]["arms"]) == set(report["arms"])
    for name, one in report["anatomy"]["arms"].items():
        assert list(one["ms"]) == list(STEP_PARTS)
        assert one["passes"] > 0
        assert one["ms"]["matrices"] > 0
        assert (one["ms"]["draft"] > 0) == (name != "plain")
        assert set(one["memory_ms"]) == {"matrices", "attention", "output layer"}
        # Seconds are noise here; how near the sum comes on a quiet machine is in docs/bench.md.
        assert 0.1 < one["sum_by_step"] < 10


def test_quantised_layers_are_taken_apart_as_matrices_and_other_arms_keep_their_bits(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path
) -> None:
    arms = "plain,lookahead:nodes=4,lookahead:nodes=4,quantize=int8"
    report, _ = measure(call, tiny_folder, data, tmp_path, "--arms", arms, "--profile")
    full, few = (report["anatomy"]["arms"][name] for name in list(report["arms"])[1:])
    assert report["arms"]["lookahead:nodes=4"]["overall"]["exact"] == 4
    ratio = few["memory_ms"]["matrices"] / full["memory_ms"]["matrices"]
    assert 0.2 < ratio < 0.45, "8 bits and a scale in place of 32"


def test_without_a_profile_no_step_is_taken_apart(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path
) -> None:
    report, outcome = measure(call, tiny_folder, data, tmp_path, "--arms", "plain")
    assert set(report) == {"settings", "machine", "versions", "arms", "prompts"}
    assert "taken apart" not in outcome.out


def test_arms_that_draft_with_early_layers_are_not_taken_apart(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path
) -> None:
    """Their drafts run the very modules that the clock looks at."""
    exits = "lookahead:nodes=4,sources=ngrams+exit,exit_layer=1"
    arms = f"assisted_early_exit,lookahead:nodes=4,{exits}"
    report, _ = measure(call, tiny_folder, data, tmp_path, "--arms", arms, "--profile")
    assert set(report["arms"]) == {"plain", "assisted_early_exit", "lookahead:nodes=4", exits}
    assert set(report["anatomy"]["arms"]) == {"plain", "lookahead:nodes=4"}


def test_later_turns_can_be_left_out_and_window_rows_are_counted(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path
) -> None:
    arms = "lookahead:nodes=4,lookahead:nodes=4,window=4/3/4"
    report, outcome = measure(call, tiny_folder, data, tmp_path, "--arms", arms, "--turns", "1")
    assert [entry["turn"] for entry in report["prompts"]] == [1] * 9
    assert report["settings"]["turns"] == 1
    without, with_window = (
        report["arms"][f"lookahead:nodes=4{more}"]["overall"] for more in ("", ",window=4/3/4")
    )
    assert without["window_rows_per_pass"] == 0
    assert 0 < with_window["window_rows_per_pass"] <= 7
    assert f" + {with_window['window_rows_per_pass']:.1f}" in outcome.out


def test_plain_counts_as_plain(call: Any, tiny_folder: Path, data: Path, tmp_path: Path) -> None:
    report, _ = measure(call, tiny_folder, data, tmp_path, "--arms", "plain")
    cell = report["arms"]["plain"]["overall"]
    assert cell["mat"] == 1.0
    assert cell["nodes_per_pass"] == 0.0
    assert cell["speedup"] == cell["speedup_min"] == 1.0
    assert cell["passes"] == cell["tokens"] - cell["prompts"]
    for entry in report["prompts"]:
        assert {"id", "subtask", "arm"} <= set(entry)
        assert entry["passes"] == entry["tokens"] - 1
    assert [(entry["id"], entry["turn"]) for entry in report["prompts"]] == [
        (1, 1), (1, 2), (2, 1), ("x/3", 1),
    ]  # fmt: skip


def test_arms_of_the_library_run_without_the_cache_of_an_earlier_turn(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path
) -> None:
    """The library's assisted decoding gives wrong text when a cache with rows is passed in."""
    arms = "prompt_lookup,assisted_early_exit,lookahead"
    report, outcome = measure(call, tiny_folder, data, tmp_path, "--arms", arms)
    assert report["settings"]["cache_passed_on"] is False
    assert "cannot take the cache" in outcome.err
    for name in ("plain", "prompt_lookup", "assisted_early_exit", "lookahead"):
        cell = report["arms"][name]["overall"]
        assert cell["exact"] == cell["prompts"] == 4
    # Passes of the shortened model are drafts, not passes of the target.
    early = report["arms"]["assisted_early_exit"]["overall"]
    assert early["passes"] <= early["tokens"] - early["prompts"]


def test_repeats_and_seeds_give_the_same_ids(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path
) -> None:
    options = ("--repeats", "3", "--temperature", "0.9", "--seed", "5", "--nodes", "6")
    report, _ = measure(call, tiny_folder, data, tmp_path, *options)
    for entry in report["prompts"]:
        assert entry["exact"]
        assert len(entry["seconds_all"]) == 3
        assert entry["seconds"] == sorted(entry["seconds_all"])[1]


def test_batches_are_cut_at_their_end_tokens(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path
) -> None:
    one, _ = measure(call, tiny_folder, data, tmp_path, "--arms", "plain")
    two, _ = measure(call, tiny_folder, data, tmp_path, "--arms", "lookahead", "--batch-size", "2")
    first = {(e["id"], e["turn"]): e["new_ids"] for e in one["prompts"]}
    for entry in two["prompts"]:
        assert entry["exact"]
        assert entry["new_ids"] == first[entry["id"], entry["turn"]]


@pytest.mark.parametrize("length", [40, 80])
def test_a_context_makes_prompts_of_one_length(
    call: Any, tiny_folder: Path, data: Path, tmp_path: Path, length: int
) -> None:
    report, _ = measure(call, tiny_folder, data, tmp_path, "--context", str(length))
    assert report["settings"]["context"] == length
    assert {entry["prompt_tokens"] for entry in report["prompts"]} == {length}
    assert {entry["turn"] for entry in report["prompts"]} == {1}
    assert all(entry["exact"] for entry in report["prompts"])


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--arms", "nothing"), 2, "no arm"),
        (("--arms", "lookahead:nodes=9999"), 2, "nodes"),
        (("--nodes", "many"), 2, "auto or a whole number"),
        (("--data", "missing.jsonl"), 1, "no prompt file"),
        (("--json", "no/such/folder/x.json"), 2, "no folder"),
        (("--max-new-tokens", "5000"), 1, "smaller --max-new-tokens"),
        (("--context", "5000"), 1, "smaller --max-new-tokens or --context"),
        (("--arms", "prompt_lookup", "--batch-size", "2"), 1, "one prompt at a time"),
    ],
)
def test_errors_are_one_sentence(
    call: Any, tiny_folder: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    outcome = call("bench", "--model", tiny_folder, *options)
    assert outcome.code == code
    assert words in " ".join(outcome.err.replace("│", " ").split())
    assert "Traceback" not in outcome.err


def test_loops_are_recognised() -> None:
    assert is_loop([1, 2, 3] * 20)
    assert is_loop([9, 8, 7] + [4] * 40)
    assert not is_loop([4] * 20)
    assert not is_loop(list(range(60)))
    assert not is_loop(list(range(9)) * 8)


def test_pass_meter_counts_rows_and_removes_its_hook(tiny: Any) -> None:
    meter = PassMeter(tiny)
    with meter, torch.no_grad():
        for rows in (5, 1, 3):
            tiny(torch.ones(1, rows, dtype=torch.long))
    assert meter.num_passes == 2
    assert meter.num_drafted == 2
    assert not tiny._forward_pre_hooks


def test_memory_meter_sees_a_large_block() -> None:
    meter = MemoryMeter()
    meter.begin()
    before = meter.current_bytes()
    block = torch.ones(40 << 20, dtype=torch.uint8)
    assert meter.peak_bytes() - before > block.numel() * 0.8
