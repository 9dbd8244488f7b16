"""``quantize``: fewer bits of the same weights, exact with respect to the quantised model."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import lookahead
from lookahead.hf.quantised import GROUP, KINDS, MANY_ROWS, QuantisedLinear, quantised_kind
from tests.helpers import check, fresh, prompt

IDS = prompt(20, repeat=6)
GREEDY = {"max_new_tokens": 24, "do_sample": False}
SAMPLED = {"max_new_tokens": 24, "do_sample": True, "temperature": 1.3}
BITS = sorted(KINDS)


def layers_of(model):
    return {name: module for name, module in model.named_modules() if name.count(".") > 2}


def _matrix(outputs=48, inputs=96):
    torch.manual_seed(1)
    return torch.randn(outputs, inputs) * torch.rand(outputs, 1)


def _values(layer):
    """What the numbers of a layer stand for: its products with unit vectors, [outputs, inputs]."""
    return layer(torch.eye(layer.in_features)).T


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gpt2"])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_text_is_that_of_the_quantised_model(kind, family, options):
    model = fresh(family)
    lookahead.quantize(model, kind)
    runs = check(model, IDS, **options)
    assert runs.stats.accelerated
    assert runs.stats.drafted


@pytest.mark.parametrize("kind", BITS)
def test_it_is_that_of_accelerate_too_and_not_that_of_all_bits(kind):
    model, twin = fresh(), fresh()
    lookahead.quantize(twin, kind)
    full, few = model(IDS).logits, twin(IDS).logits
    assert not torch.equal(full, few)
    right = twin.generate(IDS, **GREEDY)
    with lookahead.accelerate(model, quantize=kind):
        assert torch.equal(model(IDS).logits, few)
        assert torch.equal(model.generate(IDS, **GREEDY), right)
        assert lookahead.last_stats(model).accelerated


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("rows", [1, 3, MANY_ROWS])
def test_in_16_bits_a_row_is_the_same_whatever_stands_beside_it(kind, rows):
    layer = KINDS[kind](_matrix().bfloat16(), None)
    made = torch.randn(rows, 96).bfloat16()
    alone = torch.cat([layer(row[None]) for row in made])
    assert torch.equal(layer(made), alone)


@pytest.mark.parametrize("rows", [1, 5, MANY_ROWS, MANY_ROWS + 1, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", BITS)
def test_products_are_those_of_the_rounded_weights(kind, dtype, rows):
    bias = torch.randn(48)
    layer = KINDS[kind](_matrix().to(dtype), bias.to(dtype))
    made = torch.randn(2, rows, 96).to(dtype)
    exact = KINDS[kind](_matrix().to(dtype).float(), None)
    right = made.float() @ _values(exact).T + bias
    found = layer(made)
    assert found.shape == (2, rows, 48)
    assert found.dtype == dtype
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    error = (found.float() - right).abs().max()
    assert error <= limit * right.abs().max()


def test_weights_of_8_bits_are_off_by_half_a_step_of_their_row_at_most():
    matrix = _matrix()
    error = (_values(KINDS["int8"](matrix, None)) - matrix).abs()
    assert (error <= 0.5001 * matrix.abs().amax(1, keepdim=True) / 127).all()


def test_weights_of_4_bits_are_off_by_half_a_step_of_their_group_at_most():
    matrix = _matrix()
    groups = matrix.view(48, -1, GROUP)
    step = (groups.amax(2) - groups.amin(2)) / 15
    error = (_values(KINDS["int4"](matrix, None)) - matrix).abs().view(48, -1, GROUP)
    assert (error <= 0.5001 * step[..., None] + 1e-6).all()


@pytest.mark.parametrize("kind", BITS)
def test_rows_of_zeros_and_of_one_value_are_kept(kind):
    matrix = torch.zeros(16, GROUP)
    matrix[1] = 0.75
    found = _values(KINDS[kind](matrix, None))
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, matrix, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("kind", BITS)
def test_the_end_of_a_block_puts_the_layers_back(kind):
    model = fresh()
    before, state = layers_of(model), copy.deepcopy(model.state_dict())
    plain = model.generate(IDS, **GREEDY)

    def stop(*_):
        assert quantised_kind(model) == kind
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lookahead.accelerate(model, quantize=kind):
        model.generate(IDS, stopping_criteria=[stop], **GREEDY)
    assert layers_of(model) == before
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model.generate(IDS, **GREEDY), plain)


def test_restore_puts_them_back_and_other_settings_leave_them():
    model = fresh()
    before = layers_of(model)
    lookahead.accelerate(model, quantize="int8")
    lookahead.accelerate(model, nodes=3)
    assert quantised_kind(model) == "int8"
    with lookahead.accelerate(model, quantize="int4"):
        assert quantised_kind(model) == "int4"
    assert quantised_kind(model) == "int8"
    lookahead.restore(model)
    assert layers_of(model) == before


def test_what_is_accelerated_becomes_exact_for_the_new_weights():
    """What was found of the model with all its bits says nothing of it now."""
    model = fresh()
    check(model, IDS, **GREEDY)
    lookahead.quantize(model, "int8")
    check(model, IDS, **GREEDY)


def test_for_good_lets_go_of_the_weights():
    model = fresh()
    weight = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
    with lookahead.accelerate(model, quantize="int8"):
        gc.collect()
        assert weight() is not None
        lookahead.quantize(model, "int8")
    gc.collect()
    assert weight() is None
    assert quantised_kind(model) == "int8"
    lookahead.restore(model)
    assert quantised_kind(model) == "int8"


def test_ends_hooked_layers_and_those_of_odd_shapes_stay_as_they_are():
    model = fresh(hidden_size=80)  # 80 inputs are no whole number of groups
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *_: None)
    lookahead.quantize(model, "int4")
    kinds = {name: type(module) for name, module in layers_of(model).items()}
    assert type(model.lm_head) is nn.Linear
    assert kinds["model.layers.0.mlp.up_proj"] is nn.Linear
    assert kinds["model.layers.0.mlp.down_proj"] is nn.Linear
    assert isinstance(model.model.layers[1].mlp.down_proj, QuantisedLinear)


def test_a_layer_with_two_places_is_quantised_once():
    model = fresh()
    first, second = model.model.layers
    second.mlp = first.mlp
    lookahead.quantize(model, "int8")
    assert first.mlp.up_proj is second.mlp.up_proj
    check(model, IDS, **GREEDY)


def test_what_is_quantised_for_good_has_no_other_form():
    model = fresh()
    lookahead.quantize(model, "int8")
    lookahead.quantize(model, "int8")
    with pytest.raises(lookahead.ConfigError, match="found nothing to quantise"):
        lookahead.accelerate(model, quantize="int4")
    assert quantised_kind(model) == "int8"


def test_a_form_that_cannot_be_had_leaves_the_one_before():
    model = fresh(hidden_size=80, intermediate_size=80)
    with lookahead.accelerate(model, quantize="int8"):
        with pytest.raises(lookahead.ConfigError, match="nothing to quantise"):
            lookahead.accelerate(model, quantize="int4")
        assert quantised_kind(model) == "int8"
        check(model, IDS, **GREEDY)
    assert quantised_kind(model) is None


def test_a_model_with_nothing_to_quantise_is_refused_and_left_alone():
    model = fresh()
    for layer in layers_of(model).values():
        layer.register_forward_hook(lambda *_: None)
    before = layers_of(model)
    with pytest.raises(lookahead.ConfigError, match="found nothing to quantise in Llama"):
        lookahead.accelerate(model, quantize="int8")
    assert layers_of(model) == before
    assert "generate" not in vars(model)


@pytest.mark.parametrize("kind", ["int2", "INT8", 8, True])
def test_other_kinds_are_refused(kind):
    for call in (lookahead.quantize, lambda m, k: lookahead.accelerate(m, quantize=k)):
        with pytest.raises(lookahead.ConfigError, match='must be "int8", "int4" or None'):
            call(fresh(), kind)
    with pytest.raises(lookahead.ConfigError, match="restore the model"):
        lookahead.quantize(fresh(), None)


def test_a_batch_and_16_bits_are_exact_where_rows_are():
    model = fresh().to(torch.bfloat16)
    lookahead.quantize(model, "int8")
    ids = torch.cat([IDS, IDS.flip(1)])
    with torch.no_grad():
        both = model(ids[:, :8]).logits
        one = model(ids[:1, :8]).logits
    assert torch.equal(both[:1], one)
