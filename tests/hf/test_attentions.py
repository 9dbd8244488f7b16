"""Attention implementations that take no tree: plain, with a reason and no stack trace."""

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
def test_a_function_that_somebody_registered_runs_plain_with_the_reason(own):
    model = fresh()
    model.set_attn_implementation(own)
    runs = run(model, IDS, settings={"strict": False}, max_new_tokens=16, do_sample=False)
    assert runs.fast.tolist() == runs.plain.tolist()
    assert "'own_attention' takes no tree mask" in runs.stats.plain_reason
    model.set_attn_implementation("sdpa")
    runs = run(model, IDS, max_new_tokens=16, do_sample=False)
    assert runs.fast.tolist() == runs.plain.tolist()
    assert runs.stats.accelerated


def test_flex_attention_runs_plain_with_the_reason():
    """Its kernels for the CPU do not compile for all trees; see docs/back_ends.md."""
    model = make_model(attention="flex_attention")
    assert "'flex_attention' takes no tree mask" in reason_for_model(model)
