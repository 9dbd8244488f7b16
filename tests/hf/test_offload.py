"""Weights that are elsewhere until a layer needs them."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from lookahead.hf.compat import KNOWS_STATES
from tests.helpers import check, fresh, prompt

accelerate = pytest.importorskip("accelerate")

IDS = prompt(20, repeat=6)
GREEDY = {"max_new_tokens": 24, "do_sample": False}
PARTS = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb")
SETTINGS = {"sources": ("ngrams", "recycled", "head", "exit"), "remember": False}


def _hooked(model):
    return {
        name: (module._hf_hook, vars(module)["forward"])
        for name, module in model.named_modules()
        if hasattr(module, "_hf_hook") and "forward" in vars(module)
    }


@pytest.mark.parametrize(
    ("on_disk", "notes"),
    [
        (["model.layers.1"], 0),
        (["lm_head"], 1),
        (["model.embed_tokens"], 1),
        ([*PARTS, "lm_head"], 1),
    ],
    ids=["layer", "output layer", "embedding", "all"],
)
@pytest.mark.filterwarnings("ignore")
def test_parts_on_the_disk_change_no_id_and_keep_their_hooks(on_disk, notes, tmp_path):
    fresh().save_pretrained(tmp_path)
    places = dict.fromkeys([*PARTS, "lm_head"], "cpu") | dict.fromkeys(on_disk, "disk")
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map=places, offload_folder=tmp_path / "off"
    ).eval()
    model.generation_config.eos_token_id = None
    before = _hooked(model)
    try:
        model.generate(IDS, **GREEDY)
    except RuntimeError as error:
        if KNOWS_STATES:
            raise
        pytest.skip(f"transformers {transformers.__version__}, plain generate: {error}")
    runs = check(model, IDS, settings=SETTINGS, **GREEDY)
    assert len(runs.stats.notes) == notes
    assert before
    assert _hooked(model) == before


@pytest.mark.filterwarnings("ignore")
def test_weights_in_main_memory_that_are_brought_layer_by_layer():
    model = fresh()
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    before = _hooked(model)
    check(model, IDS, settings=SETTINGS, **GREEDY)
    assert _hooked(model) == before
