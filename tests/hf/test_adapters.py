"""Adapters: a peft model, with its adapter on, off and switched."""

from __future__ import annotations

import pytest
import torch

import lookahead
from tests.helpers import Recorder, fresh, prompt, run

peft = pytest.importorskip("peft")

IDS = prompt(18, repeat=4)
ARGUMENTS = {"max_new_tokens": 16, "do_sample": False}


def _lora(family="llama"):
    targets = ["c_attn"] if family == "gpt2" else ["q_proj", "v_proj"]
    config = peft.LoraConfig(
        r=4,
        lora_alpha=32,
        target_modules=targets,
        task_type="CAUSAL_LM",
        fan_in_fan_out=family == "gpt2",
    )
    model = peft.get_peft_model(fresh(family), config, adapter_name="one").eval()
    model.add_adapter("two", config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model.eval()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_adapter_on_off_and_switched_gives_what_plain_gives(family):
    """O5: n-gram drafting crashed once an adapter was on."""
    model = _lora(family)

    def all_ways():
        out = []
        for name in ("one", "two", "one"):
            model.set_adapter(name)
            out.append(model.generate(input_ids=IDS, **ARGUMENTS).tolist())
        with model.disable_adapter():
            out.append(model.generate(input_ids=IDS, **ARGUMENTS).tolist())
        return out

    plain = all_ways()
    with lookahead.accelerate(model, nodes=8, strict=True):
        fast = all_ways()
        assert lookahead.last_stats(model).accelerated
    assert fast == plain
    assert len({str(ids) for ids in plain}) == 3
    assert all_ways() == plain


def test_ids_may_be_positional():
    """O5: what the adapter's generate takes, ours takes."""
    model = _lora()
    plain = model.generate(IDS, **ARGUMENTS).tolist()
    with lookahead.accelerate(model, strict=True):
        assert model.generate(IDS, **ARGUMENTS).tolist() == plain
        assert lookahead.last_stats(model).accelerated


def test_streams_samples_and_outputs_work_through_an_adapter():
    """O5, with everything that goes around the loop."""
    model = _lora()
    options = {
        "max_new_tokens": 16,
        "do_sample": True,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    torch.manual_seed(0)
    plain = model.generate(input_ids=IDS, **options)
    streamer = Recorder()
    with lookahead.accelerate(model, strict=True):
        torch.manual_seed(0)
        fast = model.generate(input_ids=IDS, streamer=streamer, **options)
    assert fast.sequences.tolist() == plain.sequences.tolist()
    assert streamer.ids == fast.sequences[0].tolist()
    assert len(fast.scores) == len(plain.scores)


def test_an_adapter_put_on_an_accelerated_model_is_used():
    """O5: the model inside may be the accelerated one."""
    inner = fresh()
    lookahead.accelerate(inner, strict=True)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False
    )
    torch.manual_seed(0)
    model = peft.get_peft_model(inner, config).eval()
    fast = model.generate(input_ids=IDS, **ARGUMENTS).tolist()
    assert lookahead.last_stats(inner).accelerated
    lookahead.restore(inner)
    assert model.generate(input_ids=IDS, **ARGUMENTS).tolist() == fast


def test_a_merged_adapter_gives_what_plain_gives():
    """O5: weights that were changed between calls."""
    model = _lora()
    lookahead.accelerate(model, strict=True)
    model.generate(input_ids=IDS, **ARGUMENTS)
    merged = model.merge_and_unload()
    plain = type(merged).generate(merged, IDS, **ARGUMENTS)
    with lookahead.accelerate(merged, strict=True):
        assert merged.generate(IDS, **ARGUMENTS).tolist() == plain.tolist()


def test_restore_gives_the_adapter_its_own_generate_back():
    """O9 for a wrapper that is no model class of the library."""
    model = _lora()
    function = model.generate.__func__
    lookahead.accelerate(model)
    lookahead.restore(model)
    assert model.generate.__func__ is function


LAYERS = {
    "ia3": lambda: peft.IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    ),
    "dora": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], use_dora=True
    ),
    "loha": lambda: peft.LoHaConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]),
    "oft": lambda: peft.OFTConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], oft_block_size=4
    ),
    "both ends": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj", "lm_head", "embed_tokens"]
    ),
    "a saved output layer": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], modules_to_save=["lm_head"]
    ),
    "new rows of the embedding": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], trainable_token_indices=[3, 4, 5]
    ),
    "adaption prompt": lambda: peft.AdaptionPromptConfig(
        task_type="CAUSAL_LM", adapter_len=4, adapter_layers=2
    ),
}
VIRTUAL = {
    "prompt tuning": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5),
    "prefix tuning": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5),
    "p-tuning": lambda: peft.PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=5, encoder_hidden_size=32
    ),
}
ALL_SOURCES = ("ngrams", "recycled", "head", "exit")


def _adapted(make):
    model = peft.get_peft_model(fresh(), make())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_adapters_that_change_layers_give_what_plain_gives(kind):
    model = _adapted(LAYERS[kind])
    for settings in ({}, {"sources": ALL_SOURCES, "remember": False}):
        runs = run(model, None, settings=settings, input_ids=IDS, **ARGUMENTS)
        assert runs.fast.tolist() == runs.plain.tolist()
        assert runs.stats.accelerated


@pytest.mark.parametrize("kind", VIRTUAL)
@pytest.mark.filterwarnings("ignore")
def test_virtual_tokens_run_plain_with_the_reason_and_are_accelerated_while_off(kind):
    model = _adapted(VIRTUAL[kind])
    settings = {"strict": False}
    for _ in range(2):
        with model.disable_adapter():
            off = run(model, None, settings=settings, input_ids=IDS, **ARGUMENTS)
        on = run(model, None, settings=settings, input_ids=IDS, **ARGUMENTS)
        assert off.fast.tolist() == off.plain.tolist()
        assert on.fast.tolist() == on.plain.tolist()
        assert off.stats.accelerated
        assert "of its own before the prompt" in on.stats.plain_reason


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_that_waits_for_tokens_runs_plain():
    model = _adapted(
        lambda: peft.LoraConfig(
            task_type="CAUSAL_LM",
            target_modules=["q_proj"],
            alora_invocation_tokens=IDS[0, 3:5].tolist(),
        )
    )
    runs = run(model, None, settings={"strict": False}, input_ids=IDS, **ARGUMENTS)
    assert runs.fast.tolist() == runs.plain.tolist()
    assert "behind its invocation tokens only" in runs.stats.plain_reason


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_several_adapters_at_once_and_early_exit():
    model = _lora()
    model.base_model.set_adapter(["one", "two"])
    settings = {"sources": ALL_SOURCES, "remember": False}
    both = run(model, None, settings=settings, input_ids=IDS, **ARGUMENTS)
    model.set_adapter("two")
    alone = run(model, None, settings=settings, input_ids=IDS, **ARGUMENTS)
    for runs in (both, alone):
        assert runs.fast.tolist() == runs.plain.tolist()
        assert runs.stats.accelerated
    assert both.fast.tolist() != alone.fast.tolist()
