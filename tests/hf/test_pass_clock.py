"""A clock on the parts of passes: it counts right, changes nothing, and leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from transformers.modeling_utils import AttentionInterface

import lookahead
from lookahead.hf.pass_clock import PASS_PARTS, PassClock, read_bandwidth
from tests.helpers import fresh, new_ids, prompt


def hooks_of(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_it_counts_passes_and_what_they_read_and_leaves_ids_alone(family):
    model = fresh(family)
    plain = new_ids(model, prompt(12), 6)
    clock = PassClock(model)
    with clock.running(lambda: True):
        ids = new_ids(model, prompt(12), 6)
    assert ids == plain
    assert clock.passes == 6
    layers = model.model.layers if family == "llama" else model.transformer.h
    weights = sum(w.nbytes for layer in layers for w in layer.parameters() if w.ndim == 2)
    assert clock.read_bytes["matrices"] == 6 * weights
    assert clock.read_bytes["output layer"] == 6 * model.get_output_embeddings().weight.nbytes
    assert clock.read_bytes["attention"] > 0
    assert set(clock.seconds) == set(PASS_PARTS)
    assert clock.seconds["matrices"] > 0
    assert clock.seconds["attention"] > 0


def test_the_parts_are_the_pass():
    model = fresh("llama")
    clock = PassClock(model)
    with clock.running(lambda: True):
        new_ids(model, prompt(12), 20)
    parts = sum(clock.seconds.values()) + clock.own_seconds
    assert parts == pytest.approx(clock._raw["pass"])


def test_passes_count_only_while_asked_to():
    model, begun = fresh("llama"), []
    clock = PassClock(model)
    with clock.running(lambda: len(begun) > 2):
        for _ in range(5):
            begun.append(1)
            model(prompt(4))
    assert clock.passes == 3


def test_accelerated_passes_are_counted_and_the_answer_is_the_same():
    model = fresh("llama")
    plain = new_ids(model, prompt(20))
    lookahead.accelerate(model, nodes=6)
    clock = PassClock(model)
    with clock.running(lambda: True):
        assert new_ids(model, prompt(20)) == plain
    assert clock.passes >= lookahead.last_stats(model).passes


def test_nothing_is_left_behind_where_a_pass_raises():
    model = fresh("llama")
    hooks, entry = hooks_of(model), AttentionInterface._global_mapping["sdpa"]
    clock = PassClock(model)

    class StopHereError(Exception):
        pass

    def stop():
        assert AttentionInterface._global_mapping["sdpa"] is not entry
        raise StopHereError

    with pytest.raises(StopHereError), clock.running(lambda: True):
        stop()
    assert hooks_of(model) == hooks
    assert AttentionInterface._global_mapping["sdpa"] is entry


def test_memory_has_a_bandwidth():
    assert 1e8 < read_bandwidth(torch.device("cpu")) < 1e13
