"""Encoder-decoder models: ids, result objects and caches are those of plain generation."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

import lookahead
from lookahead.hf.masks import install
from lookahead.hf.outputs import StepOutputs
from lookahead.hf.outputs_check import find_outputs_fault
from lookahead.hf.split import LayerSplit
from tests.drafters import DRAFTERS
from tests.helpers import CACHE, Recorder, cache_of, check, first_seen, prompt
from tests.oracles import assert_same_cache, assert_same_outputs
from tests.slot_families import TWO_PART_FAMILIES, cases_of, make_two_parts, make_whisper
from tests.zoo.others import build_other, inputs

NEW = 16
CASES = cases_of(TWO_PART_FAMILIES)
GREEDY = {"max_new_tokens": NEW, "do_sample": False}
SAMPLED = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0}
SOUND = torch.randn((1, 8, 40), generator=torch.Generator().manual_seed(5))

model_of = functools.cache(make_two_parts)
whisper_of = functools.cache(make_whisper)


def _settings(model: Any, ids: Any, drafter: str, **arguments: Any) -> dict[str, Any]:
    text = model.generate(ids, **(GREEDY | arguments))
    return DRAFTERS[drafter](text[0].tolist())


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_one_text_gives_the_same(family, attention, drafter):
    model, ids = model_of(family, attention=attention), prompt(12)
    settings = _settings(model, ids, drafter)
    runs = check(model, ids, settings=settings, **GREEDY)
    if drafter == "half":
        assert runs.stats.passes <= NEW // 4 + 1
    if drafter in ("half", "random"):
        check(model, ids, settings=settings, **SAMPLED)


@pytest.mark.parametrize("drafter", ["half", "random"])
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_batches_whose_texts_are_padded_give_the_same(family, attention, drafter):
    model = model_of(family, attention=attention)
    ids = torch.cat([prompt(12, seed=seed) for seed in (1, 2, 3)])
    mask = torch.ones_like(ids)
    ids[1, 7:], mask[1, 7:] = 0, 0
    settings = _settings(model, ids, drafter, attention_mask=mask)
    check(model, ids, settings=settings, attention_mask=mask, **GREEDY)


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_decoder_prompts_give_the_same(family):
    model, ids = model_of(family), prompt(12)
    own = torch.tensor([[1, 9, 8, 7, 9, 8, 7], [0, 0, 1, 4, 5, 4, 5]])
    settings = _settings(model, ids, "random", decoder_input_ids=own[:1])
    check(model, ids, settings=settings, decoder_input_ids=own[:1], **GREEDY)
    ids, mask = prompt(12).expand(2, -1), torch.ones_like(own)
    mask[1, :2] = 0
    arguments = {"decoder_input_ids": own, "decoder_attention_mask": mask} | GREEDY
    check(model, ids, settings=settings, **arguments)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_whisper_gives_the_same(attention, drafter):
    model = whisper_of(attention=attention)
    settings = _settings(model, SOUND, drafter)
    own = {"decoder_input_ids": torch.tensor([[1, 5, 6, 7]])}
    for arguments in (GREEDY, SAMPLED, GREEDY | own):
        runs = check(model, SOUND, settings=settings, **arguments)
        assert runs.stats.accelerated


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_the_result_object_is_that_of_plain_generation(family):
    model, ids = model_of(family), prompt(12)
    runs = check(
        model,
        ids,
        settings=_settings(model, ids, "half"),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **GREEDY,
    )
    assert type(runs.fast) is type(runs.plain)
    assert list(runs.fast.keys()) == list(runs.plain.keys())
    for name in ("scores", "logits"):
        for mine, right in zip(runs.fast[name], runs.plain[name], strict=True):
            torch.testing.assert_close(mine, right, atol=1e-4, rtol=1e-4)
    assert type(cache_of(runs.fast)) is EncoderDecoderCache
    for part in ("self_attention_cache", "cross_attention_cache"):
        assert_same_cache(
            getattr(cache_of(runs.fast), part), getattr(cache_of(runs.plain), part), 1e-4
        )
    assert cache_of(runs.fast).is_updated == cache_of(runs.plain).is_updated


OUTPUTS = {
    "return_dict_in_generate": True,
    "output_hidden_states": True,
    "output_attentions": True,
    "output_scores": True,
    "output_logits": True,
}
OF_DECODER = ("decoder_hidden_states", "decoder_attentions", "cross_attentions")


def _assert_same_outputs(runs: Any) -> None:
    assert list(runs.fast.keys()) == list(runs.plain.keys())
    assert_same_outputs(runs.fast, runs.plain, OF_DECODER)
    for name in ("scores", "logits"):
        found, right = ({name: [(row,) for row in out[name]]} for out in (runs.fast, runs.plain))
        assert_same_outputs(found, right, [name])
    for name in ("encoder_hidden_states", "encoder_attentions"):
        torch.testing.assert_close(runs.fast[name], runs.plain[name])


@pytest.mark.parametrize("drafter", ["half", "random"])
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_hidden_states_and_attentions_are_those_of_single_tokens(family, attention, drafter):
    model, ids = model_of(family, attention=attention), prompt(12)
    runs = check(model, ids, settings=_settings(model, ids, drafter), **GREEDY, **OUTPUTS)
    _assert_same_outputs(runs)
    assert all(h.shape[1] == 1 for step in runs.fast.decoder_hidden_states for h in step)
    if attention == "eager":
        assert all(a.shape[-2] == 1 for step in runs.fast.cross_attentions for a in step)


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_a_batch_returns_what_plain_returns_for_rows_that_have_ended_too(family):
    model = model_of(family)
    ids = torch.cat([prompt(12, seed=seed) for seed in (1, 2, 3)])
    mask = torch.ones_like(ids)
    ids[1, 7:], mask[1, 7:] = 0, 0
    own = torch.tensor([[0, 1, 9, 8], [1, 4, 5, 4], [0, 0, 1, 4]])
    live = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]])
    given = {"attention_mask": mask, "decoder_input_ids": own, "decoder_attention_mask": live}
    new = model.generate(ids, **given, **GREEDY)
    end = [int(new[0, 7]), int(new[1, 12])]
    settings = _settings(model, ids, "half", **given)
    runs = check(model, ids, settings=settings, eos_token_id=end, **given, **GREEDY, **OUTPUTS)
    _assert_same_outputs(runs)


@pytest.mark.parametrize("wanted", ["output_hidden_states", "output_attentions"])
def test_one_of_the_two_kinds_only(wanted):
    model, ids = model_of("bart"), prompt(12)
    runs = check(model, ids, return_dict_in_generate=True, **{wanted: True}, **GREEDY)
    assert list(runs.fast.keys()) == list(runs.plain.keys())
    given = [name for name in OF_DECODER if name in runs.plain]
    assert len(given) == (1 if wanted == "output_hidden_states" else 2)
    assert_same_outputs(runs.fast, runs.plain, given)


@pytest.mark.parametrize("field", OF_DECODER)
def test_the_check_finds_rows_of_others_in_each_field(field, monkeypatch):
    install()
    model, right = model_of("bart"), StepOutputs.joined
    assert find_outputs_fault(model, OF_DECODER) is None

    def wrong(self):
        found = right(self)
        prompt, first, last = found[field]
        return found | {field: (prompt, first, tuple(layer.flip(-1) for layer in last))}

    monkeypatch.setattr(StepOutputs, "joined", wrong)
    fault = find_outputs_fault(model, OF_DECODER)
    assert fault == f"{field} of a tree pass differ from those of single-token passes"


def test_whisper_returns_them_too():
    model = whisper_of()
    runs = check(model, SOUND, settings=_settings(model, SOUND, "half"), **GREEDY, **OUTPUTS)
    assert_same_outputs(runs.fast, runs.plain, OF_DECODER)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_ends_streams_and_processors_are_those_of_plain_generation(family):
    model, ids = model_of(family), prompt(12)
    torch.manual_seed(3)
    text = model.generate(ids, **SAMPLED)[0].tolist()
    settings = DRAFTERS["half"](text)
    end = text[first_seen(text, 5)[0]]
    streamer = Recorder()
    runs = check(model, ids, settings=settings, seed=3, eos_token_id=end, **SAMPLED)
    assert runs.fast.shape[1] < len(text)
    check(model, ids, settings=settings, repetition_penalty=1.3, no_repeat_ngram_size=2, **GREEDY)
    with lookahead.accelerate(model, strict=True, **settings):
        fast = model.generate(ids, streamer=streamer, **GREEDY)
    assert streamer.ids == fast[0].tolist()


def test_what_is_not_supported_runs_plain_with_a_reason():
    model, ids = model_of("bart"), prompt(12)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    plain = model.generate(ids, **GREEDY)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="cache passed in with an encoder-decoder"),
    ):
        fast = model.generate(ids, **{CACHE: cache}, **GREEDY)
    assert fast.tolist() == plain.tolist()
    assert LayerSplit(model).reason.endswith("has an encoder")


def test_early_exit_is_off_with_a_note():
    model, ids = model_of("t5"), prompt(12)
    runs = check(model, ids, settings={"sources": ("ngrams", "exit")}, **GREEDY)
    assert any("has an encoder" in note for note in runs.stats.notes)


@pytest.mark.filterwarnings("ignore::lookahead.LookaheadWarning")
@pytest.mark.parametrize("beams", [1, 2])
def test_statistics_count_the_tokens_of_the_decoder(beams):
    model = build_other("t5:encoder", "eager")
    arguments = inputs("t5:encoder") | {"max_new_tokens": 7, "do_sample": False}
    with lookahead.accelerate(model):
        model.generate(**arguments, num_beams=beams)
        stats = lookahead.last_stats(model)
    assert stats.accelerated == (beams == 1)
    assert (stats.new_tokens, stats.prompt_tokens) == (7, 1)
