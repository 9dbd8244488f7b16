"""A model spread over two processes: both verify the same trees, and give what plain gives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import fresh

ROOT = Path(__file__).resolve().parents[2]


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    fresh().save_pretrained(folder)
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.hf.ranks_worker", str(folder)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [worker.communicate(timeout=400)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, text in zip(workers, said, strict=True):
        assert worker.returncode == 0, text[-3000:]
    return [json.loads((folder / f"found_{rank}.json").read_text()) for rank in range(2)]


def test_both_processes_give_what_plain_gives(found):
    for one in found:
        assert one["part"] == 0.5
        assert [run["what"] for run in one["runs"] if not run["same"]] == []
    for one, other in zip(found[0]["runs"], found[1]["runs"], strict=True):
        assert one["ids"] == other["ids"]


def test_both_processes_verify_the_same_trees_whatever_their_times(found):
    for one, other in zip(found[0]["runs"], found[1]["runs"], strict=True):
        assert one["trees"] == other["trees"], one["what"]
    assert any(len(tree) > 1 for run in found[0]["runs"] for step in run["trees"] for tree in step)


def test_no_process_computes_with_copies_that_the_others_may_not_have(found):
    for one in found:
        packed = [run for run in one["runs"] if run["what"].startswith("packed")]
        why = "weights are not prepacked: the model is spread over several processes"
        assert packed
        assert [run["what"] for run in packed if why not in run["notes"]] == []
        assert [run["prepacked_bytes"] for run in one["runs"]] == [0] * len(one["runs"])


def test_what_runs_parts_of_the_model_by_itself_is_off_with_a_note(found):
    last = found[0]["runs"][-1]
    assert last["notes"] == ["head and exit off: the model is spread over several processes"]


def test_a_hook_put_on_later_is_seen_by_both(found):
    """One that keeps rows apart is borne; one that looks for the newest row ends in a plain run."""
    for one, other in zip(found[0]["hooked"], found[1]["hooked"], strict=True):
        assert one["same"], one["what"]
        assert one == other
    assert [run["accelerated"] for run in found[0]["hooked"]] == [True, False]
