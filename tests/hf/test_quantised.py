"""Quantised weights: exact, or plain with the reason; never the ids of another model."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from lookahead.hf import layers
from tests.helpers import check, fresh, prompt, run

IDS = prompt(20, repeat=6)
GREEDY = {"max_new_tokens": 24, "do_sample": False}
SCALE_OF_ALL = "makes something else of a row when other rows stand in the same pass"
STEPS = "rounds its input to a few bits"


class Steps(nn.Module):
    """A layer as 8-bit kernels compute it: inputs in steps, of one size for all rows or each."""

    def __init__(self, inner, *, per_row):
        super().__init__()
        self.weight, self.per_row = inner.weight, per_row
        self.in_features, self.out_features = inner.in_features, inner.out_features

    def forward(self, x):
        largest = x.abs().amax(dim=-1, keepdim=True) if self.per_row else x.abs().amax()
        step = largest.clamp(min=1e-6) / 127
        return nn.functional.linear((x / step).round() * step, self.weight)


class FewerBits(nn.Linear):
    """A layer whose weights alone are rounded."""

    def forward(self, x):
        step = self.weight.abs().amax(dim=-1, keepdim=True) / 127
        return nn.functional.linear(x, (self.weight / step).round() * step)


def _with_layer(make, dtype=torch.float32):
    model = fresh().to(dtype)
    model.model.layers[1].mlp.up_proj = make(model.model.layers[1].mlp.up_proj)
    return model


def _dynamic(model, kind=torch.qint8, *, inplace=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(
            model, {nn.Linear}, dtype=kind, inplace=inplace
        )


def _plain_reason(model, **options):
    runs = run(model, IDS, settings={"strict": False}, **(GREEDY | options))
    assert runs.fast.tolist() == runs.plain.tolist()
    assert not runs.stats.accelerated
    return runs.stats.plain_reason


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("options", [{}, {"do_sample": True}], ids=["greedy", "sampled"])
@pytest.mark.filterwarnings("ignore::lookahead.LookaheadWarning")
def test_dynamic_int8_runs_plain_since_the_rows_of_a_pass_share_a_scale(family, options):
    """D11: ids were those of another model."""
    model = _dynamic(fresh(family))
    assert SCALE_OF_ALL in _plain_reason(model, **options)


@pytest.mark.filterwarnings("ignore::lookahead.LookaheadWarning")
def test_quantising_an_accelerated_model_in_place_is_noticed():
    """D11: what was found of the model before says nothing of it now."""
    model = fresh()
    check(model, IDS, **GREEDY)
    _dynamic(model, inplace=True)
    assert SCALE_OF_ALL in _plain_reason(model)


def test_dynamic_float16_rounds_weights_only_and_is_exact():
    check(_dynamic(fresh(), torch.float16), IDS, **GREEDY)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_scale_for_all_rows_is_found_in_any_precision(dtype):
    """In 16 bits the self-test takes it for rounding."""
    model = _with_layer(lambda inner: Steps(inner, per_row=False), dtype)
    reason = layers.reason_for_layers(model)
    assert reason == f"model.layers.1.mlp.up_proj (Steps) {SCALE_OF_ALL}"


@pytest.mark.filterwarnings("ignore::lookahead.LookaheadWarning")
def test_a_scale_for_each_row_is_exact_up_to_steps_of_rounding_only():
    model = _with_layer(lambda inner: Steps(inner, per_row=True))
    assert STEPS in _plain_reason(model)
    assert layers.reason_for_layers(model.to(torch.bfloat16)) is None


def _rounded(inner):
    layer = FewerBits(inner.in_features, inner.out_features, bias=False)
    layer.weight = inner.weight
    return layer


def test_rounded_weights_alone_are_exact():
    check(_with_layer(_rounded), IDS, **GREEDY)


def test_a_layer_that_cannot_be_asked_is_left_to_the_self_test():
    class Picky(nn.Linear):
        def forward(self, x):
            if x.ndim != 3:
                raise ValueError("three dimensions, please")
            return nn.Linear.forward(self, x)

    model = fresh()
    old = model.model.layers[0].mlp.up_proj
    model.model.layers[0].mlp.up_proj = Picky(old.in_features, old.out_features, bias=False)
    assert layers.reason_for_layers(model) is None
    check(model, IDS, **GREEDY)


class OwnTensor(torch.Tensor):
    """Stands for tensors of quantising packages: it multiplies, and cannot be cut."""

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if function in (torch.Tensor.__getitem__, torch.Tensor.float, torch.Tensor.new_zeros):
            raise NotImplementedError(f"{function} of a packed tensor")
        if function in (torch.Tensor.detach, torch.Tensor.requires_grad_):
            return super().__torch_function__(function, kinds, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("end", ["lm_head", "embed_tokens"])
def test_the_head_stays_out_with_a_note_where_an_end_is_packed(end):
    model = fresh()
    module = model.lm_head if end == "lm_head" else model.model.embed_tokens
    module.weight = nn.Parameter(module.weight.detach().as_subclass(OwnTensor))
    runs = check(model, IDS, settings={"remember": False}, **GREEDY)
    assert len(runs.stats.notes) == 1
    assert "not two plain matrices in memory" in runs.stats.notes[0]


TORCHAO_KINDS = {
    "Int8WeightOnlyConfig": None,
    "IntxWeightOnlyConfig": None,
    "Float8WeightOnlyConfig": None,
    "Int8DynamicActivationInt8WeightConfig": STEPS,
    "Int8DynamicActivationIntxWeightConfig": STEPS,
}


@pytest.mark.parametrize("kind", TORCHAO_KINDS)
@pytest.mark.filterwarnings("ignore")
def test_torchao_is_exact_where_only_weights_are_rounded(kind):
    quantization = pytest.importorskip("torchao.quantization")
    model = fresh()
    quantization.quantize_(model, getattr(quantization, kind)())
    if TORCHAO_KINDS[kind] is None:
        check(model, IDS, **GREEDY)
    else:
        assert TORCHAO_KINDS[kind] in _plain_reason(model)


@pytest.mark.filterwarnings("ignore")
def test_torchao_with_a_scale_for_all_rows_runs_plain_in_16_bits():
    quantization = pytest.importorskip("torchao.quantization")
    model = fresh().to(torch.bfloat16)
    config = quantization.Int8DynamicActivationInt8WeightConfig(
        granularity=quantization.PerTensor()
    )
    quantization.quantize_(model, config)
    assert SCALE_OF_ALL in _plain_reason(model)


@pytest.mark.parametrize(
    ("bits", "dtype"), [(4, torch.float32), (8, torch.float32), (8, torch.bfloat16)]
)
@pytest.mark.filterwarnings("ignore")
def test_bitsandbytes_is_exact_in_4_bits_and_plain_in_8(bits, dtype, tmp_path):
    functional = pytest.importorskip("bitsandbytes.functional")
    transformers = pytest.importorskip("transformers")
    fresh().save_pretrained(tmp_path)
    config = transformers.BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=config, dtype=dtype, device_map="cpu"
    )
    if bits == 4 and functional.has_avx512bf16():  # there it multiplies in bfloat16
        assert "rounds its input to a few bits" in _plain_reason(model)
    elif bits == 4:
        check(model, IDS, **GREEDY)
    else:
        assert "in the same pass" in _plain_reason(model)


def _write_gguf(model, path):
    gguf = pytest.importorskip("gguf")
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        stored = names.get_name(name, try_suffixes=(".weight",))
        if values.ndim == 2:
            writer.add_tensor(stored, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_is_loaded_as_floats_and_exact(tmp_path):
    from transformers import AutoModelForCausalLM

    _write_gguf(fresh(), tmp_path / "tiny.gguf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf").eval()
    model.generation_config.eos_token_id = None
    check(model, IDS, **GREEDY)
