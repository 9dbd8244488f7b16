from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lookahead.choose import NodeChooser
from tests.cli.conftest import make_tokenizer

MODEL = ("--dtype", "float32", "--max-new-tokens", "12", "--nodes", "8")


def _default(monkeypatch: pytest.MonkeyPatch, kind: str, **values: Any) -> None:
    """Have the default model be one of another kind."""
    torch.manual_seed(0)
    common = {"vocab_size": 259, "hidden_size": 32, "num_hidden_layers": 2}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**common, **ends, **values)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    monkeypatch.setattr(
        "lookahead.hf.default_model.load_model", lambda *_, **__: (model, make_tokenizer())
    )


@pytest.fixture
def mamba_for_default(monkeypatch: pytest.MonkeyPatch) -> None:
    _default(monkeypatch, "Mamba", state_size=4)


@pytest.fixture
def mamba2_for_default(monkeypatch: pytest.MonkeyPatch) -> None:
    _default(monkeypatch, "Mamba2", state_size=8, num_heads=4, head_dim=16, n_groups=1, expand=2)


def test_an_accelerated_model(call: Any, tiny_folder: Path) -> None:
    outcome = call("explain", tiny_folder, *MODEL)
    assert outcome.code == 0
    said = dict(line.split(":", 1) for line in outcome.out.splitlines())
    assert "LlamaForCausalLM" in said["model"]
    assert "float32 on cpu, attention sdpa" in said["model"]
    assert "accelerated" in said["way"]
    assert said["self-test"].strip() == "passed"
    assert said["sources"].strip().startswith("ngrams, recycled, head (exit off")
    assert said["fused"].strip().startswith("off: the model is so small")
    assert "1 rows 1.00" in said["cost"]
    assert "16 rows pays from" in said["break-even"]
    assert "MAT" in said["run"]
    assert "difference" not in said


def test_as_json(call: Any, tiny_folder: Path) -> None:
    outcome = call("explain", tiny_folder, "hello", *MODEL, "--json", "--first-difference")
    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert (report["way"], report["reason"], report["self_test"]) == ("tree", None, "passed")
    assert report["layers"] == 3
    assert report["sources"]["head"] == "used"
    assert report["fused"].startswith("off: the model is so small")
    assert report["cost"]["rows"] == [1, 2, 4, 8, 16]
    assert report["cost"]["relative"] == sorted(report["cost"]["relative"])
    assert report["cost"]["measured_passes"] > 0
    assert report["run"]["accelerated"]
    assert report["differences"] == [None]


def test_it_says_which_sources_are_off(call: Any, tiny_folder: Path) -> None:
    report = json.loads(call("explain", tiny_folder, *MODEL[:4], "--nodes", "0", "--json").out)
    assert set(report["sources"].values()) == {"off: no nodes are allowed"}


@pytest.mark.usefixtures("mamba_for_default")
def test_a_model_that_runs_plain(call: Any) -> None:
    outcome = call("explain", "default", *MODEL, "--first-difference")
    assert outcome.code == 0
    assert "plain, because MambaForCausalLM keeps a recurrent state" in outcome.out
    assert "self-test:  MambaForCausalLM keeps a recurrent state" in outcome.out
    assert "both runs are plain" in outcome.out
    assert "cost:" not in outcome.out
    report = json.loads(call("explain", "default", *MODEL, "--json").out)
    assert report["way"] == "plain"
    assert set(report["sources"].values()) == {"off: the model runs plain"}
    assert "cost" not in report


@pytest.mark.usefixtures("mamba2_for_default")
def test_a_model_that_reads_chains(call: Any) -> None:
    outcome = call("explain", "default", *MODEL, "--first-difference")
    assert outcome.code == 0
    assert "accelerated: one branch of guesses at a time, because Mamba2ForCausalLM" in outcome.out
    assert "self-test:  passed" in outcome.out
    assert "cost:" in outcome.out
    report = json.loads(call("explain", "default", *MODEL, "--json").out)
    assert (report["way"], report["run"]["accelerated"]) == ("chain", True)
    assert report["fused"] == f"off: {report['reason']}"
    assert report["sources"]["exit"] == "off: it needs a tree"
    assert "cost" in report


def test_a_file_of_prompts(call: Any, tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"prompt": "one"}\n{"turns": ["two", "three"]}\n', encoding="utf-8")
    outcome = call("explain", tiny_folder, path, *MODEL, "--first-difference")
    assert outcome.code == 0
    assert "0 of 2 answers have other ids than plain" in outcome.out
    missing = call("explain", tiny_folder, "no_such.jsonl", *MODEL)
    assert missing.code == 1
    assert "There is no prompt file" in missing.err


def test_a_fault_is_shown_and_is_the_exit_code(
    call: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = NodeChooser.choose

    def wrong(self: Any, node: int, ids: Any) -> int:
        return (choose(self, node, ids) + 1) % 259

    monkeypatch.setattr(NodeChooser, "choose", wrong)
    outcome = call("explain", tiny_folder, "hello", *MODEL, "--first-difference")
    assert outcome.code == 1
    assert "1 of 1 answers have other ids" in outcome.out
    assert "new token 0: plain" in outcome.out
    assert "a fault, please report it" in outcome.out


def test_nothing_is_kept_of_an_explanation(
    call: Any, tiny_folder: Path, memory_folder: Path
) -> None:
    assert call("explain", tiny_folder, *MODEL).code == 0
    assert not memory_folder.exists()
