"""Every option of ``generate`` that the library has: the same answer, or plain with a reason."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import transformers
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)

import lookahead
from tests.drafters import ALL
from tests.helpers import (
    FAMILIES,
    VOCAB,
    Recorder,
    cache_of,
    check,
    first_seen,
    fresh,
    make_model,
    new_ids,
    prompt,
    run,
    shared,
)
from tests.oracles import assert_cache_from_scratch, assert_same_cache
from tests.vocabularies import letter_tokenizer

IDS = prompt(18, repeat=4)
NEW = new_ids(shared(), IDS)
END = NEW[first_seen(NEW)[4]]
DRAFTERS = ("all", "half")


class Alternating(LogitsProcessor):
    """Has a state: bans the token that it saw two calls ago, and counts."""

    def __init__(self):
        self.seen = []

    def __call__(self, ids, scores):
        self.seen.append(int(ids[0, -1]))
        scores = scores.clone()
        scores[:, self.seen[-2:]] = -float("inf")
        scores[:, len(self.seen) % VOCAB] += 3.0
        return scores


class Patience(StoppingCriteria):
    """Has a state: stops after so many tokens that it has met before."""

    def __init__(self, patience):
        self.patience, self.met = patience, set()

    def __call__(self, ids, scores, **_):
        token = int(ids[0, -1])
        self.patience -= token in self.met
        self.met.add(token)
        return torch.full((ids.shape[0],), self.patience < 0)


OPTIONS = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "repetition_reward": {"repetition_penalty": 0.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
    "no_repeat_ngram_size-1": {"no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[NEW[1]], NEW[3:5], NEW[6:9]]},
    "suppress_tokens": {"suppress_tokens": [NEW[2], NEW[7]]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [NEW[0]]},
    "forced_bos_token_id": {"forced_bos_token_id": 11},
    "forced_eos_token_id": {"forced_eos_token_id": 12},
    "forced_eos_token_ids": {"forced_eos_token_id": [12, 13]},
    "min_new_tokens": {"min_new_tokens": 8, "eos_token_id": END},
    "min_length": {"min_length": 28, "eos_token_id": END},
    "sequence_bias": {"sequence_bias": [[[NEW[0], NEW[1]], -8.0], [[50], 4.0]]},
    "exponential_decay_length_penalty": {
        "exponential_decay_length_penalty": (6, 1.5),
        "eos_token_id": END,
    },
    "prefix_allowed_tokens_fn": {
        "prefix_allowed_tokens_fn": lambda b, ids: list(range(3 + int(ids[-1]) % 5, VOCAB, 5)),
    },
    "renormalize_logits": {"renormalize_logits": True, "repetition_penalty": 1.2},
    "remove_invalid_values": {"remove_invalid_values": True},
    "guidance_scale": {"guidance_scale": 1.7},
    "guidance_scale-negative": {
        "guidance_scale": 1.3,
        "negative_prompt_ids": prompt(7, seed=77),
    },
    "watermarking": {
        "watermarking_config": WatermarkingConfig(bias=3.0, seeding_scheme="lefthash")
    },
    "watermarking-selfhash": {
        "watermarking_config": WatermarkingConfig(bias=3.0, seeding_scheme="selfhash"),
    },
    "eos_token_id": {"eos_token_id": END},
    "eos_token_ids": {"eos_token_id": [END, NEW[9]]},
    "no-new-token-limit": {"max_length": 31, "max_new_tokens": None},
    "output_scores": {"output_scores": True},
    "num_return_sequences": {"num_return_sequences": 1},
}

SAMPLED = {
    "temperature-0.7": {"temperature": 0.7},
    "temperature-3": {"temperature": 3.0, "top_k": 0},
    "top_k": {"top_k": 5},
    "top_k-1": {"top_k": 1},
    "top_p": {"top_p": 0.7, "top_k": 0},
    "min_p": {"min_p": 0.1, "top_k": 0},
    "typical_p": {"typical_p": 0.6, "top_k": 0},
    "epsilon_cutoff": {"epsilon_cutoff": 0.01, "top_k": 0},
    "eta_cutoff": {"eta_cutoff": 0.01, "top_k": 0},
    "top_h": {"top_h": 0.5, "top_k": 0},
    "all-warpers": {
        "temperature": 1.3,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.9,
        "epsilon_cutoff": 1e-4,
        "eta_cutoff": 1e-4,
    },
    "synthid": {
        "watermarking_config": SynthIDTextWatermarkingConfig(
            ngram_len=3, keys=[654, 400, 836, 123], context_history_size=16
        ),
    },
}


def _text(options, ids=IDS, model=None):
    options = {"do_sample": False, "max_new_tokens": 24} | options
    return (model or shared()).generate(ids, **options)[0].tolist()


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_greedy_option_gives_what_plain_gives(name, drafter):
    options = OPTIONS[name]
    text = _text(options)
    arguments = {"max_new_tokens": 24, "do_sample": False} | options
    check(shared(), IDS, settings=ALL[drafter](text), **arguments)


@pytest.mark.parametrize("name", [*OPTIONS, *SAMPLED])
def test_a_sampling_option_gives_what_plain_gives_from_the_same_seed(name):
    drafter = "all" if name in SAMPLED else "half"
    options = {"do_sample": True, "max_new_tokens": 24} | (OPTIONS | SAMPLED)[name]
    if name == "top_h" and not hasattr(transformers.GenerationConfig(), "top_h"):
        pytest.skip("top_h came later")
    torch.manual_seed(4)
    text = shared().generate(IDS, **options)[0].tolist()
    check(shared(), IDS, seed=4, settings=ALL[drafter](text), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_many_options_at_once_give_what_plain_gives(family):
    model = shared(family)
    for sample in (False, True):
        check(
            model,
            IDS,
            max_new_tokens=30,
            do_sample=sample,
            repetition_penalty=1.2,
            no_repeat_ngram_size=4,
            suppress_tokens=[5, 6],
            min_new_tokens=12,
            eos_token_id=[7, 8, 9, 20, 30],
            renormalize_logits=True,
        )


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_processors_and_criteria_with_a_state_see_what_they_see_in_plain(drafter, sample):
    made = []

    def make():
        made.append((Alternating(), Patience(6)))
        return {"logits_processor": [made[-1][0]], "stopping_criteria": [made[-1][1]]}

    text = _text(make())
    made.clear()
    check(
        shared(), IDS, settings=ALL[drafter](text), make=make, max_new_tokens=40, do_sample=sample
    )
    (plain, rule), (fast, other) = made
    assert fast.seen == plain.seen
    assert other.met == rule.met


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_stop_strings_give_what_plain_gives(drafter):
    tokenizer = letter_tokenizer()
    stops = [tokenizer.decode(NEW[5:7]), tokenizer.decode(NEW[9:12])]
    for sample in (False, True):
        check(
            shared(),
            IDS,
            settings=ALL[drafter](IDS[0].tolist() + NEW),
            max_new_tokens=24,
            do_sample=sample,
            stop_strings=stops,
            tokenizer=tokenizer,
        )


def test_max_time_is_asked_after_every_token():
    runs = check(shared(), IDS, max_new_tokens=24, do_sample=False, max_time=0.0)
    assert runs.fast.shape[1] == IDS.shape[1] + 1
    check(shared(), IDS, max_new_tokens=24, do_sample=False, max_time=600.0)


@pytest.mark.parametrize("size", [1, 3, 7, 18, 50])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gemma3"])
def test_a_prompt_read_in_chunks_gives_what_plain_gives(family, size):
    runs = check(
        shared(family),
        prompt(30, repeat=6),
        max_new_tokens=20,
        do_sample=False,
        prefill_chunk_size=size,
        return_dict_in_generate=True,
    )
    ids = runs.fast.sequences[0].tolist()
    assert_cache_from_scratch(shared(family), cache_of(runs.fast), ids)


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_of_embeddings_gives_what_plain_gives(family, with_ids):
    model = shared(family)
    embeddings = model.get_input_embeddings()(IDS).detach()
    ids = IDS if with_ids else None
    for sample in (False, True):
        for options in ({}, {"suppress_tokens": NEW[:2], "eos_token_id": NEW[6]}):
            check(
                model, ids, inputs_embeds=embeddings, max_new_tokens=20, do_sample=sample, **options
            )


def test_a_prompt_of_embeddings_is_streamed_as_in_plain():
    model, made = shared(), []
    embeddings = model.get_input_embeddings()(IDS).detach()

    def make():
        made.append(Recorder())
        return {"streamer": made[-1]}

    run(model, None, inputs_embeds=embeddings, max_new_tokens=8, do_sample=False, make=make)
    assert [v.tolist() for v in made[1].values] == [v.tolist() for v in made[0].values]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
@pytest.mark.parametrize("padding", [1, 20])
def test_a_single_row_with_padding_on_the_left_gives_what_plain_gives(padding, family, attention):
    model = shared(family, attention=attention)
    ids = torch.cat([torch.zeros((1, padding), dtype=torch.long), IDS], dim=1)
    mask = torch.ones_like(ids)
    mask[:, :padding] = 0
    for kind in (torch.long, torch.bool):
        runs = check(model, ids, attention_mask=mask.to(kind), max_new_tokens=20, do_sample=False)
    assert (
        runs.fast[0, padding:].tolist()
        == model.generate(IDS, max_new_tokens=20, do_sample=False)[0].tolist()
    )


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_hole_in_the_mask_gives_what_plain_gives(family):
    model = shared(family)
    mask = torch.ones_like(IDS)
    mask[:, 5:9] = 0
    check(model, IDS, attention_mask=mask, max_new_tokens=20, do_sample=False)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("first", [0, 5])
def test_given_positions_are_gone_on_from(first, family):
    positions = torch.arange(first, first + IDS.shape[1])[None]
    check(shared(family), IDS, position_ids=positions, max_new_tokens=20, do_sample=False)


def test_ids_may_be_given_under_either_name():
    model = shared()
    expected = model.generate(IDS, max_new_tokens=9, do_sample=False).tolist()
    with lookahead.accelerate(model, strict=True):
        settings = GenerationConfig(max_new_tokens=9, do_sample=False, pad_token_id=0)
        for args, kwargs in (
            ((), {"input_ids": IDS}),
            ((), {"inputs": IDS}),
            ((IDS, settings), {}),
            ((), {"inputs": IDS, "generation_config": settings}),
        ):
            options = {} if len(args) > 1 else {"max_new_tokens": 9, "do_sample": False}
            assert model.generate(*args, **options, **kwargs).tolist() == expected
        assert (
            model.generate(
                input_ids=IDS,
                attention_mask=torch.ones_like(IDS),
                max_new_tokens=9,
                do_sample=False,
            ).tolist()
            == expected
        )


def test_an_argument_that_does_not_exist_fails_as_in_plain():
    model = shared()
    for wrong in ({"max_tokens": 3}, {"temprature": 1.0}):
        with pytest.raises((ValueError, TypeError)) as plain:
            model.generate(IDS, **wrong)
        with lookahead.accelerate(model), pytest.raises(type(plain.value)) as fast:
            model.generate(IDS, **wrong)
        assert str(fast.value) == str(plain.value)


def test_a_wrong_value_fails_as_in_plain():
    model = shared()
    for wrong in (
        {"max_new_tokens": -3},
        {"temperature": -1.0, "do_sample": True},
        {"repetition_penalty": -1.0},
        {"num_return_sequences": 3},
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(Exception) as plain:  # noqa: PT011
                model.generate(IDS, **({"do_sample": False} | wrong))
            with lookahead.accelerate(model), pytest.raises(type(plain.value)) as fast:
                model.generate(IDS, **({"do_sample": False} | wrong))
        assert str(fast.value) == str(plain.value)


PLAIN = {
    "num_beams": ({"num_beams": 3}, "beam"),
    "beam-sampling": ({"num_beams": 2, "do_sample": True}, "beam"),
    "prompt-lookup": ({"prompt_lookup_num_tokens": 3}, "assisted"),
    "assistant_model": ({"assistant_model": "itself"}, "assistant_model"),
    "offloaded": ({"cache_implementation": "offloaded"}, "offloaded"),
    "quantized": (
        {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
        "quantised cache",
    ),
    "use_cache": ({"use_cache": False}, "use_cache=False"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_cannot_be_accelerated_runs_plain_with_one_warning_that_names_it(name):
    model = fresh()
    options, reason = PLAIN[name]
    options = {"max_new_tokens": 8, "do_sample": False} | copy.deepcopy(options)
    if "assistant_model" in options:
        options["assistant_model"] = fresh()
    try:
        torch.manual_seed(0)
        plain = model.generate(IDS, **copy.copy(options))
    except (AssertionError, ImportError, ValueError, TypeError, RuntimeError) as error:
        pytest.skip(f"the library cannot do it here: {error}")
    with lookahead.accelerate(model):
        with pytest.warns(lookahead.LookaheadWarning, match=reason) as warned:  # noqa: PT031
            for _ in range(2):
                torch.manual_seed(0)
                fast = model.generate(IDS, **copy.copy(options))
        assert not lookahead.last_stats(model).accelerated
    assert sum(issubclass(w.category, lookahead.LookaheadWarning) for w in warned) == 1
    if not isinstance(plain, torch.Tensor):
        plain, fast = plain.sequences, fast.sequences
    assert fast.tolist() == plain.tolist()
    with (
        lookahead.accelerate(model, strict=True),
        pytest.raises(lookahead.UnsupportedError, match=reason),
    ):
        model.generate(IDS, **copy.copy(options))


def test_contrastive_search_fails_or_works_as_in_plain():
    model = fresh()
    options = {"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": 6, "do_sample": False}
    with pytest.raises(Exception) as plain:  # noqa: PT011 - it moved to code on a hub
        model.generate(IDS, **options)
    with lookahead.accelerate(model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lookahead.LookaheadWarning)
            with pytest.raises(type(plain.value)):
                model.generate(IDS, **options)
        assert model.generate(IDS, max_new_tokens=6, do_sample=False).shape[1] == 24


def test_a_model_in_training_mode_runs_plain_with_advice():
    model = fresh().train()
    with lookahead.accelerate(model):
        with pytest.warns(lookahead.LookaheadWarning, match=r"model\.eval\(\)"):
            model.generate(IDS, max_new_tokens=3)
        model.eval()
        model.generate(IDS, max_new_tokens=3)
        assert lookahead.last_stats(model).accelerated


def test_a_plain_run_is_streamed_once():
    model, streamer = fresh(), Recorder()
    with lookahead.accelerate(model), pytest.warns(lookahead.LookaheadWarning):
        out = model.generate(
            IDS, max_new_tokens=5, do_sample=False, use_cache=False, streamer=streamer
        )
    assert streamer.ids == out[0].tolist()
    assert streamer.ends == 1


def test_a_plain_run_starts_from_the_same_seed():
    model = fresh()
    torch.manual_seed(1)
    plain = model.generate(IDS, max_new_tokens=9, do_sample=True, use_cache=False)
    torch.manual_seed(1)
    with lookahead.accelerate(model), pytest.warns(lookahead.LookaheadWarning):
        fast = model.generate(IDS, max_new_tokens=9, do_sample=True, use_cache=False)
    assert fast.tolist() == plain.tolist()


def test_equal_weights_of_input_and_output_layer_change_nothing():
    model = make_model("llama", tie_word_embeddings=True)
    check(model, IDS, max_new_tokens=20, do_sample=False)


def test_ids_of_32_bits_come_back_as_in_plain():
    check(shared(), IDS.int(), max_new_tokens=12, do_sample=False)
    check(shared(), prompt(40)[:, ::2], max_new_tokens=12, do_sample=False)


def test_inference_mode_changes_nothing():
    with torch.inference_mode():
        runs = check(
            shared(), IDS, max_new_tokens=12, do_sample=False, return_dict_in_generate=True
        )
    assert_same_cache(cache_of(runs.fast), cache_of(runs.plain))


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
@pytest.mark.parametrize("option", ["chunks", "embeddings", "positions", "no-padding-token"])
def test_a_batch_of_ragged_rows_takes_the_option(option, family):
    model = fresh(family)
    rows = [prompt(n, seed=n, repeat=n // 4)[0] for n in (5, 19, 11)]
    ids = torch.stack([torch.cat([torch.zeros(19 - len(r), dtype=torch.long), r]) for r in rows])
    mask = torch.stack([(torch.arange(19) >= 19 - len(r)).long() for r in rows])
    arguments = {"attention_mask": mask, "max_new_tokens": 14, "do_sample": False}
    if option == "chunks":
        arguments["prefill_chunk_size"] = 4
    elif option == "positions":
        arguments["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    elif option == "embeddings":
        arguments["inputs_embeds"] = model.get_input_embeddings()(ids).detach()
    else:
        arguments["eos_token_id"] = int(model.generate(ids, **arguments)[0, -5])
        arguments["pad_token_id"] = arguments["eos_token_id"]
    check(model, None if option == "embeddings" else ids, **arguments)


ROW_WISE = (
    "repetition_penalty",
    "repetition_reward",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_new_tokens",
    "sequence_bias",
    "remove_invalid_values",
)


@pytest.mark.parametrize("lengths", [(19, 19), (5, 19, 11)])
@pytest.mark.parametrize("option", ROW_WISE)
def test_a_batch_takes_processors_that_look_at_one_row(option, lengths):
    rows = [prompt(n, seed=n, repeat=n // 4)[0] for n in lengths]
    ids = torch.stack([torch.cat([torch.zeros(19 - len(r), dtype=torch.long), r]) for r in rows])
    mask = torch.stack([(torch.arange(19) >= 19 - len(r)).long() for r in rows])
    arguments = {"max_new_tokens": 14, "do_sample": False, **OPTIONS[option]}
    check(shared(), ids, attention_mask=mask, **arguments)


def test_positions_that_run_out_fail_as_in_plain():
    model = make_model("gpt2", n_positions=40)
    streamers = [Recorder(), Recorder()]
    arguments = {"max_new_tokens": 40, "do_sample": False}
    with pytest.raises(IndexError):
        model.generate(IDS, streamer=streamers[0], **arguments)
    with lookahead.accelerate(model, nodes=8, strict=True), pytest.raises(IndexError):
        model.generate(IDS, streamer=streamers[1], **arguments)
    assert streamers[1].ids == streamers[0].ids
