"""Which model it is: the same in every process and number format, another one with an adapter."""

from __future__ import annotations

import copy

import pytest
import torch

import lookahead
from lookahead.hf.fingerprint import identify, weights_key
from tests.helpers import FAMILIES, fresh, make_bloom, make_gemma3, make_model, prompt

peft = pytest.importorskip("peft")


def print_of(model) -> str:
    return identify(model).fingerprint


def make_lora(model, *, seed: int = 0, alpha: int = 32):
    config = peft.LoraConfig(
        r=4, lora_alpha=alpha, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(model, config, adapter_name="one").eval()
    model.add_adapter("two", config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_of_the_weights_and_not_of_the_object(family):
    model = fresh(family)
    first = print_of(model)
    assert len(first) == 32
    assert print_of(copy.deepcopy(model)) == first
    model.generate(prompt(), max_new_tokens=2)
    with lookahead.accelerate(model):
        model.generate(prompt(), max_new_tokens=2)
        assert print_of(model) == first
    assert print_of(make_model(family, seed=1)) != first


def test_all_models_differ():
    models = [make_model(family) for family in FAMILIES] + [
        make_gemma3(),
        make_bloom(attention="eager"),
    ]
    models += [make_model("llama", num_hidden_layers=3), make_model("llama", seed=5)]
    assert len({print_of(model) for model in models}) == len(models)


def test_a_model_in_another_number_format_is_the_same():
    model = fresh()
    assert print_of(copy.deepcopy(model).to(torch.bfloat16)) == print_of(model)
    # A checkpoint in bfloat16, as most are, is the same in all formats.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    formats = (torch.bfloat16, torch.float16, torch.float32)
    assert len({print_of(copy.deepcopy(model).to(dtype)) for dtype in formats}) == 1


def test_it_survives_a_folder(tmp_path):
    model = fresh()
    model.save_pretrained(tmp_path / "some_name")
    again = type(model).from_pretrained(tmp_path / "some_name")
    assert print_of(again) == print_of(model)
    assert identify(again).label == "some_name (LlamaForCausalLM 2x64)"
    assert identify(model).label == "LlamaForCausalLM 2x64"


def test_any_trained_matrix_of_a_small_model_is_noticed():
    model = fresh()
    before = print_of(model)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            kept = parameter.detach().clone()
            with torch.no_grad():
                parameter.mul_(1.1)
            assert print_of(model) != before, name
            with torch.no_grad():
                parameter.copy_(kept)
    assert print_of(model) == before


def test_an_adapter_makes_another_model():
    base = print_of(fresh())
    model = make_lora(fresh())
    one = print_of(model)
    keys = {weights_key(model)}
    assert print_of(model.get_base_model()) == one
    model.set_adapter("two")
    two = print_of(model)
    keys.add(weights_key(model))
    with model.disable_adapter():
        off = print_of(model)
        keys.add(weights_key(model))
    model.set_adapter("one")
    assert print_of(model) == one
    assert weights_key(model) in keys
    assert len({one, two, base}) == len(keys) == 3
    assert off == base
    assert print_of(make_lora(fresh(), seed=1)) != one
    assert print_of(make_lora(fresh(), alpha=8)) != one
    model.merge_adapter()
    assert weights_key(model) not in keys
    model.unmerge_adapter()
    assert weights_key(model) in keys


def test_a_step_of_an_optimiser_is_noticed():
    model = fresh()
    before = weights_key(model)
    model.generate(prompt(), max_new_tokens=2)
    assert weights_key(model) == before
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(input_ids=prompt(), labels=prompt()).loss.backward()
    optimiser.step()
    assert weights_key(model) != before


def test_weights_that_are_elsewhere_are_left_out():
    model = fresh().to("meta")
    assert len(print_of(model)) == 32
    with torch.inference_mode():
        model = make_model("llama")
    assert print_of(model) == print_of(fresh())
    assert weights_key(model) == weights_key(model)


def test_whole_numbers_of_a_quantised_model_count():
    model, other = fresh(), fresh()
    for number, one in enumerate((model, other)):
        layer = one.model.layers[0].mlp.up_proj
        del layer.weight
        layer.register_buffer("qweight", torch.full((64, 32), number + 1, dtype=torch.int32))
    assert len({print_of(model), print_of(other), print_of(fresh())}) == 3


def test_a_tensor_that_cannot_be_cut_does_no_harm():
    class Strange(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.Tensor.__getitem__:
                raise NotImplementedError("packed")
            return super().__torch_function__(func, types, args, kwargs or {})

    model = fresh()
    weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(
        weight.detach().as_subclass(Strange), requires_grad=False
    )
    assert len(print_of(model)) == 32
