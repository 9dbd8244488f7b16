"""One of the processes of tests/hf/test_ranks.py: its part of a model, plain and accelerated."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import lookahead
from lookahead.hf.target import HFTarget
from tests.helpers import prompt

IDS = prompt(20, repeat=6)
CALLS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.7},
    "batch": {"do_sample": False},
}
SETTINGS = {
    "fixed": {"nodes": 8},
    "auto": {"nodes": "auto"},
    "packed": {"nodes": 8, "prepack": True},
    "all": {"nodes": "auto", "sources": ("ngrams", "recycled", "head", "exit"), "window": "auto"},
}


def _ids(name):
    return torch.cat([IDS, prompt(20, seed=2, repeat=6)]) if name == "batch" else IDS


def _run(model, name):
    torch.manual_seed(0)
    return model.generate(_ids(name), max_new_tokens=32, **CALLS[name]).tolist()


def _part(model):
    """Return the share of the outputs of a layer that this process has the weights of.

    Tensors that know of the others' parts, or (from 5.0 to 5.12, say) of no others.
    """
    layer = model.model.layers[0].self_attn.q_proj
    own = getattr(layer.weight, "to_local", lambda: layer.weight)()
    return own.shape[0] / (model.config.num_attention_heads * model.config.head_dim)


def _scaled(_module: Any, _args: Any, output: Any) -> Any:
    return 1.5 * output


def _newest_row_changed(_module: Any, _args: Any, output: Any) -> Any:
    changed = output.clone()
    changed[:, -1] += 2.0
    return changed


def _with_hooks(model: Any) -> list[dict[str, Any]]:
    """Put a hook on the part of every process, when calls have been accelerated without it."""
    found = []
    for function in (_scaled, _newest_row_changed):
        hook = model.model.layers[0].mlp.register_forward_hook(function)
        plain = _run(model, "greedy")
        with lookahead.accelerate(model, nodes=8), warnings.catch_warnings():
            warnings.simplefilter("ignore", lookahead.LookaheadWarning)
            fast = _run(model, "greedy")
            accelerated = lookahead.last_stats(model).accelerated
        hook.remove()
        found.append(
            {
                "what": function.__name__,
                "same": fast == plain,
                "ids": fast,
                "accelerated": accelerated,
            }
        )
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    spread: dict[str, Any] = {"tp_plan": "auto"}
    if "tp_size" in inspect.signature(DistributedConfig).parameters:
        spread = {"distributed_config": DistributedConfig(tp_size=2, tp_plan="auto")}
    model = AutoModelForCausalLM.from_pretrained(folder, **spread).eval()
    model.generation_config.eos_token_id = None
    widths = []
    verify = HFTarget.verify

    def slow_and_seen(self, slots, trees, windows=None):
        widths.append([tree.tokens.tolist() for tree in trees])
        if rank:
            time.sleep(0.004 * (len(widths) % 5))  # times of the processes differ
        return verify(self, slots, trees, windows)

    HFTarget.verify = slow_and_seen
    found = {"part": _part(model), "runs": []}
    for setting, settings in SETTINGS.items():
        for name in CALLS:
            plain = _run(model, name)
            widths.clear()
            with lookahead.accelerate(model, strict=True, **settings):
                fast = _run(model, name)
                stats = lookahead.last_stats(model)
            found["runs"].append(
                {
                    "what": f"{setting} {name}",
                    "same": fast == plain,
                    "ids": fast,
                    "trees": list(widths),
                    "tokens_per_pass": stats.new_tokens / (1 + stats.passes),
                    "notes": stats.notes,
                    "prepacked_bytes": stats.prepacked_bytes,
                }
            )
    found["hooked"] = _with_hooks(model)
    (folder / f"found_{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
