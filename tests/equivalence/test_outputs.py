"""What is returned besides ids: for every token what a pass over it alone would give."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import DynamicCache, StaticCache

import lookahead
from lookahead.hf import outputs as outputs_module
from lookahead.hf.compat import COUNTS_SLOTS
from lookahead.hf.outputs_check import _close, find_outputs_fault
from tests.cases.test_batches import ragged
from tests.drafters import ALL
from tests.families import make_family
from tests.helpers import CACHE, FAMILIES, Recorder, cache_of, check, fresh, new_ids, prompt, shared
from tests.oracles import assert_same_cache, assert_same_outputs

IDS = prompt(18, repeat=4)
FIELDS = ("hidden_states", "attentions")
OUTPUTS = {
    "return_dict_in_generate": True,
    "output_hidden_states": True,
    "output_attentions": True,
}
SCORES = {"output_scores": True, "output_logits": True}


@pytest.mark.parametrize("drafter", ["all", "half", "oracle-20", "none"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_they_are_those_of_single_tokens_whatever_is_guessed(family, drafter):
    model = shared(family, attention="eager")
    text = IDS[0].tolist() + new_ids(model, IDS)
    for sample in (False, True):
        runs = check(
            model, IDS, settings=ALL[drafter](text), max_new_tokens=20, do_sample=sample, **OUTPUTS
        )
        assert_same_outputs(runs.fast, runs.plain, FIELDS)
        assert all(h.shape[1] == 1 for step in runs.fast.hidden_states[1:] for h in step)


@pytest.mark.parametrize(
    "options",
    [{}, {"prefill_chunk_size": 7}, {"cache_implementation": "static"}],
    ids=["", "chunks", "static"],
)
@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "deepseek_v3", "opt", "falcon", "phi"])
def test_other_families_show_the_same_columns(family, options):
    model = make_family(family)
    if COUNTS_SLOTS and family == "deepseek_v3" and "cache_implementation" in options:
        pytest.skip("before transformers 5.4 a static cache has no values smaller than keys")
    runs = check(model, IDS, max_new_tokens=14, do_sample=False, **OUTPUTS, **options)
    assert_same_outputs(runs.fast, runs.plain, FIELDS)


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_static_cache_shows_its_whole_buffer(family, chunk):
    model = shared(family, attention="eager")

    def make():
        return {CACHE: StaticCache(config=model.config, max_cache_len=60)}

    ids = prompt(5)  # the window is reached on the way
    runs = check(
        model,
        ids,
        make=make,
        max_new_tokens=20,
        do_sample=False,
        prefill_chunk_size=chunk,
        **OUTPUTS,
    )
    assert_same_outputs(runs.fast, runs.plain, FIELDS)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_what_a_cache_brings_has_its_columns(family):
    model = shared(family, attention="eager")

    def make():
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=IDS[:, :11], **{CACHE: cache})
        return {CACHE: cache}

    runs = check(model, IDS, make=make, max_new_tokens=14, do_sample=False, **OUTPUTS)
    assert_same_outputs(runs.fast, runs.plain, FIELDS)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_padding_on_the_left_has_columns_too(family):
    model = shared(family, attention="eager")
    ids = torch.cat([torch.zeros((1, 5), dtype=torch.long), IDS], dim=1)
    mask = torch.ones_like(ids)
    mask[:, :5] = 0
    runs = check(model, ids, attention_mask=mask, max_new_tokens=14, do_sample=False, **OUTPUTS)
    assert_same_outputs(runs.fast, runs.plain, FIELDS)


@pytest.mark.parametrize("wanted", [True, [0, -1], 1])
def test_some_hidden_states_only(wanted):
    options = {"return_dict_in_generate": True, "output_hidden_states": wanted}
    runs = check(shared(), IDS, max_new_tokens=9, do_sample=False, **options)
    assert_same_outputs(runs.fast, runs.plain, ["hidden_states"])


@pytest.mark.filterwarnings("ignore:`output_attentions=True` is not supported")
def test_attentions_that_a_kernel_does_not_give_are_missing_as_in_plain():
    runs = check(shared(), IDS, max_new_tokens=6, do_sample=False, **OUTPUTS)
    assert runs.fast.attentions == runs.plain.attentions
    assert not any(map(any, filter(None, runs.fast.attentions)))


def test_nothing_is_collected_where_ids_alone_are_returned():
    options = {"output_hidden_states": True, "output_attentions": True}
    runs = check(shared(attention="eager"), IDS, max_new_tokens=9, do_sample=False, **options)
    assert isinstance(runs.fast, torch.Tensor)


def test_early_exit_is_left_out_and_says_so():
    runs = check(
        shared(attention="eager"),
        IDS,
        settings={"sources": ("ngrams", "recycled", "exit"), "exit_layer": 1},
        max_new_tokens=14,
        do_sample=False,
        **OUTPUTS,
    )
    assert_same_outputs(runs.fast, runs.plain, FIELDS)
    assert any("early exit is off" in note for note in runs.stats.notes)


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_the_check_finds_no_fault_in_a_right_model(family):
    lookahead.hf.masks.install()
    for dtype in (torch.float32, torch.bfloat16):
        assert find_outputs_fault(fresh(family, attention="eager").to(dtype), FIELDS) is None


def test_the_check_takes_no_rounding_for_a_fault_where_attention_looks_everywhere_alike():
    """Norms that scale everything down, as the library's own tests have: found by trying seeds."""
    lookahead.hf.masks.install()
    torch.manual_seed(56)
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=37,
        rms_norm_eps=1.0,
        initializer_range=0.03,
        pad_token_id=0,
    )
    config._attn_implementation = "eager"
    assert find_outputs_fault(transformers.LlamaForCausalLM(config).eval(), FIELDS) is None


def test_the_check_tells_rounding_from_other_values_that_are_nearly_the_same():
    right = torch.full((1, 8, 1, 7), 1 / 7) + torch.linspace(-3e-5, 3e-5, 7)
    last_bit = torch.finfo(torch.float32).eps / 7
    assert _close(right + 2 * last_bit, right, exact=True)
    assert not _close(right.roll(1, dims=-1), right, exact=True)


def test_the_check_finds_columns_that_are_those_of_other_rows(monkeypatch):
    lookahead.hf.masks.install()
    right = outputs_module.StepOutputs.keep

    def wrong(self, slot, path):
        right(self, slot, [min(1, row) for row in path])

    monkeypatch.setattr(outputs_module.StepOutputs, "keep", wrong)
    fault = find_outputs_fault(shared(attention="eager"), FIELDS)
    assert "differ from those of single-token passes" in fault


def test_a_model_that_fails_the_check_runs_plain_with_the_reason(monkeypatch):
    monkeypatch.setattr(outputs_module.StepOutputs, "keep", lambda *_: 1 // 0)
    model = fresh(attention="eager")
    plain = model.generate(IDS, max_new_tokens=6, do_sample=False, **OUTPUTS)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="cannot be told: ZeroDivisionError"),
    ):
        fast = model.generate(IDS, max_new_tokens=6, do_sample=False, **OUTPUTS)
    assert_same_outputs(fast, plain, FIELDS)


def _ends(model, ids, mask):
    """Return end tokens that end no row, one, several, and each at another step."""
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False)
    new = plain[:, ids.shape[1] :]
    yield None
    yield [int(new[0, 3])]
    yield [int(new[0, 0]), int(new[1, 6])]
    yield new[:, 4].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.3, "min_new_tokens": 5},
        {"encoder_repetition_penalty": 1.4, "encoder_no_repeat_ngram_size": 2},
    ],
    ids=["", "penalty", "encoder"],
)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_batch_returns_what_plain_returns_for_rows_that_have_ended_too(family, options):
    model = fresh(family, attention="eager")
    ids, mask = ragged((5, 19, 11))
    passes, tokens = 0, 0
    for end in _ends(model, ids, mask):
        if end is None and "min_new_tokens" in options:
            continue
        runs = check(
            model,
            ids,
            attention_mask=mask,
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=end,
            **OUTPUTS,
            **SCORES,
            **options,
        )
        assert_same_outputs(runs.fast, runs.plain, FIELDS)
        for name in ("scores", "logits"):
            torch.testing.assert_close(runs.fast[name], runs.plain[name], atol=1e-4, rtol=1e-4)
        assert_same_cache(cache_of(runs.fast), cache_of(runs.plain))
        new = runs.plain.sequences.shape[1] - ids.shape[1]
        assert runs.stats.passes <= new  # one more than plain, to fill up, where no guess is right
        passes, tokens = passes + runs.stats.passes, tokens + new
    assert passes < tokens


def test_a_row_that_ends_long_before_the_others_reads_its_padding_in_parts(monkeypatch):
    from lookahead.hf import in_step

    monkeypatch.setattr(in_step, "PADS_AT_A_TIME", 3)
    model = shared(attention="eager")
    ids, mask = ragged((5, 19))
    new = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False)
    end = int(new[0, ids.shape[1]])
    runs = check(
        model,
        ids,
        attention_mask=mask,
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=end,
        **OUTPUTS,
        **SCORES,
    )
    assert_same_outputs(runs.fast, runs.plain, FIELDS)
    torch.testing.assert_close(runs.fast.scores, runs.plain.scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt2"])
def test_a_batch_brings_its_cache_turn_after_turn(family):
    model = shared(family)
    first, mask = ragged((5, 19, 11))
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    end = int(model.generate(first, attention_mask=mask, max_new_tokens=9, do_sample=False)[1, -4])
    ids = first
    for turn in range(3):
        left = list(caches)

        def make(left=left):
            return {CACHE: left.pop(0)}

        runs = check(
            model,
            ids,
            attention_mask=mask,
            max_new_tokens=9,
            do_sample=False,
            eos_token_id=end,
            make=make,
        )
        assert_same_cache(caches[1], caches[0], atol=1e-4)
        more = torch.cat([prompt(4, seed=turn + 10 * row) for row in range(3)])
        new = runs.plain.shape[1] - ids.shape[1]
        ids = torch.cat([runs.plain, more], dim=1)
        mask = torch.cat([mask, torch.ones((3, new + 4), dtype=mask.dtype)], dim=1)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_batch_is_streamed_one_step_at_a_time(family):
    model = shared(family)
    ids, mask = ragged((5, 19, 11))
    for end in _ends(model, ids, mask):
        made = []

        def make(made=made):
            made.append(Recorder())
            return {"streamer": made[-1]}

        check(
            model,
            ids,
            attention_mask=mask,
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=end,
            make=make,
        )
        plain, fast = ([v.tolist() for v in one.values] for one in made)
        assert fast == plain
        assert made[1].ends == made[0].ends == 1


def test_a_streamer_of_a_batch_that_raises_is_not_fed_again():
    class Stopping(Recorder):
        def put(self, value):
            super().put(value)
            if len(self.values) == 4:
                raise KeyboardInterrupt

    model, streamer = fresh(), Stopping()
    ids, mask = ragged((5, 19, 11))
    with lookahead.accelerate(model, strict=True), pytest.raises(KeyboardInterrupt):
        model.generate(ids, attention_mask=mask, max_new_tokens=9, streamer=streamer)
    assert len(streamer.values) == 4
    assert streamer.ends == 0


def test_time_that_runs_out_ends_all_rows_of_a_batch_in_the_same_step():
    model, ids = shared(), torch.cat([prompt(9, seed=s) for s in (1, 2, 3)])
    check(model, ids, max_new_tokens=24, do_sample=False, max_time=0.0)
    check(model, ids, max_new_tokens=24, do_sample=False, max_time=600.0)
    with lookahead.accelerate(model, nodes=8, strict=True):
        for option in ({"streamer": Recorder()}, {"return_dict_in_generate": True}):
            with pytest.raises(lookahead.UnsupportedError, match="max_time ends all rows"):
                model.generate(ids, max_new_tokens=4, max_time=9.0, **option)


def test_rows_of_unlike_length_are_cut_where_time_ran_out(monkeypatch):
    from lookahead.hf import results

    rows = [torch.tensor([[1, 2, 3, 9]]), torch.tensor([[1, 2, 3, 4, 5, 6]]), torch.arange(5)[None]]
    cut = results._until_the_same_step(rows, [False, True, True])
    assert [row.shape[1] for row in cut] == [4, 5, 5]
    assert results._until_the_same_step(rows, [False] * 3) is rows


def test_stop_strings_end_rows_of_a_batch_where_there_is_an_end_token():
    from tests.vocabularies import letter_tokenizer

    model, tokenizer = fresh(), letter_tokenizer()
    ids = torch.cat([prompt(9, seed=s) for s in (1, 2, 3)])
    new = model.generate(ids, max_new_tokens=12, do_sample=False)[:, 9:]
    stops = [tokenizer.decode(new[0, 3:5]), tokenizer.decode(new[2, 6:8])]
    options = {"stop_strings": stops, "tokenizer": tokenizer, "max_new_tokens": 20}
    check(model, ids, do_sample=False, eos_token_id=127, pad_token_id=0, **options)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="go on behind their stop strings"),
    ):
        fast = model.generate(ids, do_sample=False, **options)
    assert fast.tolist() == model.generate(ids, do_sample=False, **options).tolist()
