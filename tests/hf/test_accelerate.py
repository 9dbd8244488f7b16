"""The ways in: accelerate, restore, the block, the decorator, custom_generate."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import warnings

import pytest
import torch
import transformers

import lookahead
from tests.drafters import Oracle
from tests.helpers import (
    FAMILIES,
    NEW_IDS_ALONE,
    Recorder,
    fresh,
    new_ids,
    prompt,
    shared,
)
from tests.vocabularies import letter_tokenizer, word_tokenizer

IDS = prompt(18, repeat=4)
ARGUMENTS = {"max_new_tokens": 16, "do_sample": False}


@functools.cache
def _expected(family="llama"):
    return shared(family).generate(IDS, **ARGUMENTS).tolist()


def _accelerated(model):
    return isinstance(vars(model).get("generate"), lookahead.calls.AcceleratedGenerate)


def test_in_place_it_lasts_until_it_is_restored(llama):
    original = llama.generate
    lookahead.accelerate(llama, strict=True)
    for _ in range(2):
        assert llama.generate(IDS, **ARGUMENTS).tolist() == _expected()
        assert lookahead.last_stats(llama).accelerated
    lookahead.restore(llama)
    assert llama.generate.__func__ is original.__func__
    assert "generate" not in vars(llama)
    assert llama.generate(IDS, **ARGUMENTS).tolist() == _expected()


def test_a_block_gives_the_model_and_restores_at_its_end(llama):
    with lookahead.accelerate(llama, strict=True) as model:
        assert model is llama
        assert model.generate(IDS, **ARGUMENTS).tolist() == _expected()
    assert "generate" not in vars(llama)


def test_a_block_that_fails_restores_as_well(llama):
    with pytest.raises(KeyError), lookahead.accelerate(llama):
        raise KeyError
    assert "generate" not in vars(llama)


def test_blocks_within_blocks_put_back_what_was_before(llama):
    with lookahead.accelerate(llama, nodes=3) as model:
        outer = model.generate
        with lookahead.accelerate(llama, nodes=7):
            assert model.generate.config.nodes == 7
        assert model.generate is outer
        assert model.generate.config.nodes == 3
    assert "generate" not in vars(llama)


def test_a_block_inside_an_accelerated_model_leaves_it_accelerated(llama):
    lookahead.accelerate(llama, nodes=3)
    with lookahead.accelerate(llama, nodes=7):
        pass
    assert llama.generate.config.nodes == 3
    lookahead.restore(llama)
    assert "generate" not in vars(llama)


def test_twice_is_harmless_and_the_later_settings_count(llama):
    for nodes in (2, 5):
        lookahead.accelerate(llama, nodes=nodes, strict=True)
    assert llama.generate.config.nodes == 5
    assert llama.generate(IDS, **ARGUMENTS).tolist() == _expected()
    lookahead.restore(llama)
    assert "generate" not in vars(llama)


def test_restoring_a_plain_model_is_harmless(llama):
    before = set(vars(llama))
    lookahead.restore(llama)
    assert set(vars(llama)) == before


def test_other_models_and_the_class_are_untouched(llama):
    other = fresh()
    before = type(llama).generate
    with lookahead.accelerate(llama):
        assert type(llama).generate is before
        assert "generate" not in vars(other)
        other.generate(IDS, **ARGUMENTS)
        assert lookahead.last_stats(other) is None


def test_weights_and_state_dict_are_untouched(llama):
    before = {k: v.clone() for k, v in llama.state_dict().items()}
    with lookahead.accelerate(llama):
        llama.generate(IDS, **ARGUMENTS)
        after = llama.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert not llama._forward_hooks
    assert not llama.base_model._forward_hooks
    assert not llama.lm_head._forward_pre_hooks


def test_an_accelerated_model_is_saved_and_loaded_as_a_plain_one(llama, tmp_path):
    lookahead.accelerate(llama)
    llama.generate(IDS, **ARGUMENTS)
    llama.save_pretrained(tmp_path)
    loaded = type(llama).from_pretrained(tmp_path)
    assert "generate" not in vars(loaded)
    assert loaded.generate(IDS, **ARGUMENTS).tolist() == _expected()


def test_the_wrapper_looks_like_what_it_stands_for(llama):
    plain = llama.generate
    with lookahead.accelerate(llama):
        assert llama.generate.__name__ == "generate"
        assert llama.generate.__doc__ == plain.__doc__
        import inspect

        shown = list(inspect.signature(llama.generate).parameters)
        assert [n for n in shown if n != "self"] == list(inspect.signature(plain).parameters)


class TestDecorator:
    def test_without_arguments(self, llama):
        @lookahead.accelerated
        def answer(model, ids):
            """Doc."""
            assert _accelerated(model)
            return model.generate(ids, **ARGUMENTS)

        for _ in range(2):
            assert answer(llama, IDS).tolist() == _expected()
            assert "generate" not in vars(llama)
        assert (answer.__name__, answer.__doc__) == ("answer", "Doc.")
        assert lookahead.last_stats(llama).accelerated

    def test_with_arguments_and_keywords(self, llama):
        @lookahead.accelerated(nodes=3, strict=True)
        def answer(ids, *, model):
            assert model.generate.config.nodes == 3
            return model.generate(ids, **ARGUMENTS)

        assert answer(IDS, model=llama).tolist() == _expected()

    def test_with_empty_parentheses(self, llama):
        @lookahead.accelerated()
        def answer(model):
            return model.generate(IDS, **ARGUMENTS)

        assert answer(llama).tolist() == _expected()

    def test_on_a_method_of_an_object_that_has_a_model(self, llama):
        class Bot:
            def __init__(self, model):
                self.model = model

            @lookahead.accelerated
            def answer(self, ids):
                assert _accelerated(self.model)
                return self.model.generate(ids, **ARGUMENTS)

        assert Bot(llama).answer(IDS).tolist() == _expected()
        assert "generate" not in vars(llama)

    def test_on_a_method_that_is_given_the_model(self, llama):
        class Bot:
            @lookahead.accelerated(nodes=4)
            def answer(self, model, ids):
                assert model.generate.config.nodes == 4
                return model.generate(ids, **ARGUMENTS)

        assert Bot().answer(llama, IDS).tolist() == _expected()

    def test_with_two_models(self, llama):
        @lookahead.accelerated
        def both(one, two):
            return one.generate(IDS, **ARGUMENTS), two.generate(IDS, **ARGUMENTS)

        one, two = both(llama, fresh("gpt2"))
        assert one.tolist() == _expected()
        assert two.tolist() == _expected("gpt2")

    def test_with_one_model_twice(self, llama):
        @lookahead.accelerated
        def both(one, two):
            return one.generate(IDS, **ARGUMENTS), two.generate(IDS, **ARGUMENTS)

        one, two = both(llama, llama)
        assert one.tolist() == two.tolist() == _expected()
        assert "generate" not in vars(llama)

    def test_a_function_that_fails_leaves_the_model_plain(self, llama):
        @lookahead.accelerated
        def answer(model):
            raise KeyError

        with pytest.raises(KeyError):
            answer(llama)
        assert "generate" not in vars(llama)

    def test_a_function_without_a_model_is_told_so(self):
        @lookahead.accelerated
        def answer(ids):
            return ids

        with pytest.raises(lookahead.ConfigError, match="'answer' was given no model"):
            answer(IDS)

    def test_a_wrong_setting_is_reported_where_it_is_written(self):
        with pytest.raises(lookahead.ConfigError, match="nodes"):
            lookahead.accelerated(nodes=-3)
        with pytest.raises(lookahead.ConfigError, match="colour"):
            lookahead.accelerated(colour=1)

    def test_an_accelerated_model_stays_accelerated_behind_the_call(self, llama):
        lookahead.accelerate(llama, nodes=2)

        @lookahead.accelerated(nodes=9)
        def answer(model):
            return model.generate.config.nodes

        assert answer(llama) == 9
        assert llama.generate.config.nodes == 2


class TestCustomGenerate:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_bare_function_gives_what_plain_gives(self, family):
        model = fresh(family)
        for options in (ARGUMENTS, {"max_new_tokens": 16, "do_sample": True, "top_p": 0.9}):
            torch.manual_seed(2)
            plain = model.generate(IDS, **options)
            torch.manual_seed(2)
            fast = model.generate(IDS, custom_generate=lookahead.generate, **options)
            assert fast.tolist() == plain.tolist()
        assert lookahead.last_stats(model).accelerated
        assert "generate" not in vars(model)

    def test_processors_criteria_and_outputs_work(self, llama):
        options = ARGUMENTS | {
            "repetition_penalty": 1.2,
            "return_dict_in_generate": True,
            "output_scores": True,
            "stopping_criteria": [lambda ids, scores, **k: torch.tensor([ids.shape[1] > 26])],
        }
        plain = llama.generate(IDS, **options)
        fast = llama.generate(IDS, custom_generate=lookahead.generate, **options)
        assert fast.sequences.tolist() == plain.sequences.tolist()
        assert len(fast.scores) == len(plain.scores)

    @pytest.mark.parametrize(
        "options",
        [
            {"num_beams": 2},
            {"use_cache": False},
            pytest.param(
                {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
                marks=pytest.mark.skipif(
                    not hasattr(transformers.cache_utils, "Fp8QuantizedLayer"),
                    reason="no quantised cache without more packages",
                ),
            ),
        ],
    )
    def test_what_is_not_supported_runs_plain_with_a_warning(self, llama, options):
        plain = llama.generate(IDS, **(ARGUMENTS | options))
        with pytest.warns(lookahead.LookaheadWarning, match="runs plain"):
            fast = llama.generate(IDS, custom_generate=lookahead.generate, **(ARGUMENTS | options))
        assert fast.tolist() == plain.tolist()
        assert not lookahead.last_stats(llama).accelerated

    def test_on_an_accelerated_model_the_argument_is_respected(self, llama):
        def mine(model, input_ids, **kwargs):
            return "mine"

        with (
            lookahead.accelerate(llama),
            pytest.warns(lookahead.LookaheadWarning, match="custom_generate"),
        ):
            assert llama.generate(IDS, custom_generate=mine, **ARGUMENTS) == "mine"

    def test_our_own_function_on_an_accelerated_model_is_no_reason_to_warn(self, llama):
        with lookahead.accelerate(llama):
            fast = llama.generate(IDS, custom_generate=lookahead.generate, **ARGUMENTS)
            assert fast.tolist() == _expected()
            assert lookahead.last_stats(llama).accelerated


class TestPatchedBefore:
    def test_a_generate_of_the_users_own_is_called_and_put_back(self, llama):
        calls = []
        inner = llama.generate

        def mine(*args, **kwargs):
            calls.append(1)
            return inner(*args, **kwargs)

        llama.generate = mine
        with lookahead.accelerate(llama, strict=True):
            lookahead.accelerate(llama, nodes=5, strict=True)
            assert llama.generate(IDS, **ARGUMENTS).tolist() == _expected()
            assert lookahead.last_stats(llama).accelerated
        assert calls == [1]
        lookahead.restore(llama)
        assert llama.generate is mine

    def test_a_patch_on_top_is_left_alone(self, llama):
        lookahead.accelerate(llama)
        inner = llama.generate

        def mine(*args, **kwargs):
            return inner(*args, **kwargs)

        llama.generate = mine
        assert llama.generate(IDS, **ARGUMENTS).tolist() == _expected()
        lookahead.restore(llama)
        assert llama.generate is mine
        assert llama.generate(IDS, **ARGUMENTS).tolist() == _expected()

    def test_accelerating_over_a_patch_over_an_accelerated_model_works(self, llama):
        lookahead.accelerate(llama)
        inner = llama.generate
        llama.generate = inner
        lookahead.accelerate(llama, nodes=4, strict=True)
        assert llama.generate(IDS, **ARGUMENTS).tolist() == _expected()
        assert lookahead.last_stats(llama).accelerated


class TestCopies:
    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    @pytest.mark.parametrize("how", ["deepcopy", "pickle"])
    def test_a_copy_drives_itself(self, how, family):
        model = fresh(family)
        lookahead.accelerate(model, nodes=8, strict=True)
        model.generate(IDS, **ARGUMENTS)
        twin = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
        assert twin.generate is not model.generate
        for parameter in twin.parameters():
            parameter.data.mul_(0.0)
        assert model.generate(IDS, **ARGUMENTS).tolist() == _expected(family)
        assert twin.generate(IDS, **ARGUMENTS).tolist() != _expected(family)
        assert twin.generate.config == model.generate.config
        lookahead.restore(model)
        assert "generate" in vars(twin)
        lookahead.restore(twin)
        assert "generate" not in vars(twin)

    def test_a_block_on_a_copy_leaves_the_copy_accelerated(self):
        model = fresh()
        lookahead.accelerate(model, nodes=3)
        twin = copy.deepcopy(model)
        with lookahead.accelerate(twin, nodes=5):
            assert twin.generate.config.nodes == 5
        assert twin.generate.config.nodes == 3
        assert twin.generate(IDS, **ARGUMENTS).tolist() == _expected()

    def test_a_copy_inside_a_block_can_be_restored(self):
        model = fresh()
        with lookahead.accelerate(model):
            twin = copy.deepcopy(model)
        assert twin.generate(IDS, **ARGUMENTS).tolist() == _expected()
        lookahead.restore(twin)
        assert "generate" not in vars(twin)
        assert twin.generate.__self__ is twin


class TestStats:
    def test_there_are_none_before_the_first_call(self, llama):
        assert lookahead.last_stats(llama) is None
        lookahead.accelerate(llama)
        assert lookahead.last_stats(llama) is None

    def test_they_count_what_happened(self, llama):
        text = IDS[0].tolist() + new_ids(llama, IDS, 24)
        lookahead.accelerate(llama, sources=(), drafters=(Oracle(text, 3),), nodes=3)
        llama.generate(IDS, max_new_tokens=13, do_sample=False)
        stats = lookahead.last_stats(llama)
        assert (stats.rows, stats.prompt_tokens, stats.new_tokens) == (1, 18, 13)
        assert (stats.passes, stats.drafted, stats.accepted) == (3, 9, 9)
        assert stats.mean_acceptance_length == 4.0
        assert stats.accepted_by_depth == [3, 3, 3]
        assert stats.seconds >= stats.prefill_s > 0
        assert sum(stats.time_ms.values()) <= 1000 * stats.seconds

    def test_a_plain_run_counts_too(self, llama):
        with lookahead.accelerate(llama), pytest.warns(lookahead.LookaheadWarning):
            llama.generate(IDS, use_cache=False, **ARGUMENTS)
        stats = lookahead.last_stats(llama)
        assert not stats.accelerated
        assert (stats.rows, stats.prompt_tokens, stats.new_tokens) == (1, 18, 16)
        assert stats.mean_acceptance_length == 1.0

    def test_a_result_carries_its_own(self, llama):
        with lookahead.accelerate(llama):
            out = llama.generate(IDS, return_dict_in_generate=True, **ARGUMENTS)
            assert out.lookahead_stats is lookahead.last_stats(llama)

    def test_rows_of_a_batch_are_counted_together(self, llama):
        ids = torch.cat([prompt(9, seed=3), prompt(9, seed=4)])
        with lookahead.accelerate(llama, nodes=8, strict=True):
            llama.generate(ids, max_new_tokens=10, do_sample=False)
        stats = lookahead.last_stats(llama)
        assert (stats.rows, stats.prompt_tokens, stats.new_tokens) == (2, 18, 20)
        assert sum(s.emitted for s in stats.steps) == 18


class TestPipeline:
    def test_a_pipeline_gives_the_same_text(self, llama):
        from transformers import pipeline

        tokenizer = word_tokenizer()
        pipe = pipeline("text-generation", model=llama, tokenizer=tokenizer, device="cpu")
        options = {"max_new_tokens": 12, "do_sample": False}
        plain = pipe("w5 w6 w7 w5 w6", **options)
        lookahead.accelerate(llama, strict=True)
        assert pipe("w5 w6 w7 w5 w6", **options) == plain
        assert lookahead.last_stats(llama).accelerated
        assert pipe(["w5 w6 w7", "w9"], **options) == [
            pipe(t, **options) for t in ("w5 w6 w7", "w9")
        ]

    def test_a_pipeline_with_a_streamer_and_a_stop_string(self, llama):
        from transformers import pipeline

        tokenizer = letter_tokenizer()
        ids = tokenizer("abcabcab", return_tensors="pt").input_ids
        stop = tokenizer.decode(new_ids(llama, ids)[4:6])
        pipe = pipeline("text-generation", model=llama, tokenizer=tokenizer, device="cpu")
        options = {
            "max_new_tokens": 12,
            "do_sample": False,
            "stop_strings": [stop],
            "tokenizer": tokenizer,
        }
        plain = pipe("abcabcab", **options)
        streamer = Recorder()
        with lookahead.accelerate(llama, strict=True):
            assert pipe("abcabcab", streamer=streamer, **options) == plain
        assert tokenizer.decode(streamer.ids) == plain[0]["generated_text"]


@pytest.mark.parametrize("function", ["accelerate", "restore", "last_stats", "forget"])
@pytest.mark.parametrize("thing", [None, "a model", torch.nn.Linear(1, 1)])
def test_what_is_no_model_is_refused_in_one_sentence(function, thing):
    with pytest.raises(lookahead.ConfigError, match="needs a model of transformers"):
        getattr(lookahead, function)(thing)


class Holder(torch.nn.Module):
    """Holds a model, and has a generate of its own."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def generate(self, ids):
        return self.model.generate(ids, max_new_tokens=8)


def test_a_module_around_a_model_is_refused_by_name(llama):
    with pytest.raises(lookahead.ConfigError, match="given Holder, which has no config"):
        lookahead.accelerate(Holder(llama))


@pytest.mark.parametrize("thing", ["model", 5, Holder, "holder"])
def test_the_decorator_stands_above_functions_only(thing, llama):
    put_on = {"model": llama, "holder": Holder(llama)}.get(thing, thing)
    with pytest.raises(lookahead.ConfigError, match=r"call lookahead\.accelerate\(model\)"):
        lookahead.accelerated(put_on)


@lookahead.accelerated(nodes=8)
async def answer_later(model, ids):
    await asyncio.sleep(0)
    return model.generate(ids, max_new_tokens=8, do_sample=False), is_on(model)


@lookahead.accelerated(nodes=8)
def answers(model, ids):
    for _ in range(2):
        yield model.generate(ids, max_new_tokens=8, do_sample=False), is_on(model)
    return "done"


@lookahead.accelerated(nodes=8)
async def answers_later(model, ids):
    for _ in range(2):
        await asyncio.sleep(0)
        yield model.generate(ids, max_new_tokens=8, do_sample=False), is_on(model)


def is_on(model):
    return "generate" in vars(model) and lookahead.last_stats(model).accelerated


async def collected(values):
    return [value async for value in values]


def test_coroutines_and_generators_compute_inside_the_block(llama):
    plain = llama.generate(prompt(), max_new_tokens=8, do_sample=False)
    found = [asyncio.run(answer_later(llama, prompt()))]
    found += list(answers(llama, prompt()))
    found += asyncio.run(collected(answers_later(llama, prompt())))
    assert len(found) == 5
    assert all(on and ids.equal(plain) for ids, on in found)
    assert not is_on(llama)
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    named = (answer_later, answers, answers_later)
    assert [kind(function) for kind, function in zip(kinds, named, strict=True)] == [True] * 3


def test_a_generator_that_is_left_early_puts_back_what_was(llama):
    steps = answers(llama, prompt())
    next(steps)
    assert "generate" in vars(llama)
    steps.close()
    assert "generate" not in vars(llama)


def test_a_generate_that_takes_no_loop_runs_plain_with_the_reason(llama):
    class Short(type(llama)):
        def generate(self, ids, n=5):
            return super().generate(ids, max_new_tokens=n, do_sample=False)

    llama.__class__ = Short
    plain = llama.generate(prompt(), 7)
    lookahead.accelerate(llama)
    with pytest.warns(lookahead.LookaheadWarning, match="Short has a generate of its own"):
        assert llama.generate(prompt(), n=7).equal(plain)


def test_calling_generate_directly_says_how_it_is_used():
    model = fresh("llama")
    with pytest.raises(lookahead.ConfigError, match=r"custom_generate=lookahead\.generate"):
        lookahead.generate(model, prompt(4), max_new_tokens=3)


@NEW_IDS_ALONE  # without ids and without a cache the library of then fails otherwise
def test_an_empty_prompt_fails_as_in_plain_generation():
    model = fresh("llama")
    empty = torch.zeros((1, 0), dtype=torch.long)
    with pytest.raises(RuntimeError) as plain:
        model.generate(empty, max_new_tokens=3)
    lookahead.accelerate(model)
    with (
        pytest.warns(lookahead.LookaheadWarning, match="the prompt is empty"),
        pytest.raises(type(plain.value), match="0 elements"),
    ):
        model.generate(empty, max_new_tokens=3)


@pytest.mark.parametrize("failing", [False, True])
def test_calls_that_a_plain_call_makes_itself_run_plain_and_leave_no_statistics(failing):
    model, depth = fresh(), []
    original = type(model).generate

    def watched(self, *args, **kwargs):
        depth.append("custom_generate" in kwargs)
        if failing and len(depth) == 4:
            raise RuntimeError("inside")
        return original(self, *args, **kwargs)

    options = {"max_new_tokens": 6, "do_sample": False, "assistant_early_exit": 1}
    plain = model.generate(IDS, **options)
    with pytest.MonkeyPatch.context() as patch, lookahead.accelerate(model, nodes=8):
        patch.setattr(type(model), "generate", watched)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lookahead.LookaheadWarning)
            if failing:
                with pytest.raises(RuntimeError, match="inside"):
                    model.generate(IDS, **options)
            else:
                assert model.generate(IDS, **options).tolist() == plain.tolist()
                assert "assisted" in lookahead.last_stats(model).plain_reason
        assert sum(depth) == 1  # the first one, which found that it has to run plain
        assert len(depth) > 2
        model.generate(IDS, max_new_tokens=6, do_sample=False)
        assert lookahead.last_stats(model).accelerated
