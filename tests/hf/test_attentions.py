"""Attention that takes no tree: chains where they are exact, else plain, and no stack trace."""

from __future__ import annotations

import pytest
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lookahead.hf.support import reason_for_model
from tests.helpers import fresh, make_model, prompt, run

IDS = prompt(20, repeat=6)


def _own(module, query, key, value, mask, **options):
    return sdpa_attention_forward(module, query, key, value, mask, **options)


@pytest.fixture(params=[None, sdpa_mask], ids=["no mask", "the mask of sdpa"])
def own(request):
    AttentionInterface.register("own_attention", _own)
    if request.param is not None:
        AttentionMaskInterface.register("own_attention", request.param)
    yield "own_attention"
    AttentionInterface._global_mapping.pop("own_attention")
    AttentionMaskInterface._global_mapping.pop("own_attention", None)


@pytest.mark.filterwarnings("ignore::lookahead.LookaheadWarning")
def test_a_function_that_somebody_registered_reads_chains_if_it_can(own):
    """Without a mask this one is wrong for several rows behind others; one with a mask is right."""
    model = fresh()
    model.set_attn_implementation(own)
    runs = run(model, IDS, settings={"strict": False}, max_new_tokens=16, do_sample=False)
    assert runs.fast.tolist() == runs.plain.tolist()
    has_mask = own in AttentionMaskInterface._global_mapping
    assert runs.stats.accelerated == has_mask
    said = runs.stats.notes[0] if has_mask else runs.stats.plain_reason
    assert "'own_attention' takes no tree mask" in said
    assert runs.stats.shape == ("chain" if has_mask else "tree")
    model.set_attn_implementation("sdpa")
    runs = run(model, IDS, max_new_tokens=16, do_sample=False)
    assert runs.fast.tolist() == runs.plain.tolist()
    assert runs.stats.accelerated


def test_flex_attention_runs_plain_with_the_reason():
    """Its kernels for the CPU do not compile for all trees; see docs/back_ends.md."""
    model = make_model(attention="flex_attention")
    assert "compiled anew for each number of rows" in reason_for_model(model)
