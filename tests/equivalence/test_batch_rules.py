"""Processors and criteria of a batch, greedy and sampled: each row as in step with the others."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria, WatermarkingConfig

import lookahead
from tests.helpers import VOCAB, check, fresh, prompt, shared
from tests.vocabularies import letter_tokenizer

NEW = 20


def by_row(row, ids):
    """Half of the vocabulary, another one for each row and length."""
    return list(range((row + ids.shape[-1]) % 2 + 3, VOCAB, 2))


RULES = {
    "repetition-penalty": {"repetition_penalty": 1.4},
    "no-repeat-ngram": {"no_repeat_ngram_size": 2},
    "prefix": {"prefix_allowed_tokens_fn": by_row},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=4.0, context_width=1)},
    "decay": {"exponential_decay_length_penalty": (4, 1.3), "eos_token_id": 7, "pad_token_id": 0},
    "renormalized": {"renormalize_logits": True},
    "forced-end": {"forced_eos_token_id": 9},
    "min-length": {"min_new_tokens": 6, "eos_token_id": [5, 7, 11, 23, 40], "pad_token_id": 0},
    "bad-words": {"bad_words_ids": [[3], [9, 12]], "suppress_tokens": [8, 17]},
    "bias": {"sequence_bias": [[[3], 5.0], [[11, 4], -3.0]]},
    "together": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "prefix_allowed_tokens_fn": by_row,
        "min_new_tokens": 4,
        "eos_token_id": [6, 7],
        "pad_token_id": 0,
    },
}
WAYS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 0, "temperature": 1.2},
}


def batch(padding):
    ids = torch.cat([prompt(14, seed=seed, repeat=4) for seed in (1, 2, 3)])
    mask = torch.ones_like(ids)
    ids[0, :padding], mask[0, :padding] = 0, 0
    return {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW}


def generate(model, arguments):
    torch.manual_seed(1)
    return model.generate(**arguments).tolist()


@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
def test_the_answer_is_that_of_plain(rule, way, padding):
    model, arguments = shared(), batch(padding) | WAYS[way] | RULES[rule]
    plain = generate(model, arguments)
    lookahead.forget(model)
    with lookahead.accelerate(model, nodes=12, strict=True):
        assert generate(model, arguments) == plain
        assert lookahead.last_stats(model).drafted


def test_a_rule_is_seen_to_work():
    model = shared()
    free = generate(model, batch(6) | WAYS["greedy"])
    for rule in ("repetition-penalty", "prefix", "watermark", "bias"):
        assert generate(model, batch(6) | WAYS["greedy"] | RULES[rule]) != free


class AcrossRows(LogitsProcessor):
    """Lets what one row may say depend on another row."""

    def __call__(self, ids, scores):
        return scores + 3 * scores.roll(1, dims=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_rule_of_ones_own_may_look_at_all_rows_and_runs_plain(way):
    model = fresh()

    def arguments():
        return batch(0) | WAYS[way] | {"logits_processor": [AcrossRows()]}

    plain = generate(model, arguments())
    with (
        lookahead.accelerate(model, nodes=12),
        pytest.warns(lookahead.LookaheadWarning, match="AcrossRows in a batch may look at several"),
    ):
        assert generate(model, arguments()) == plain


class Habits(LogitsProcessor):
    """Has a state for each row: favours another token in each call, and bans the last ones."""

    def __init__(self):
        self.calls = {}

    def __call__(self, ids, scores):
        rows = [self.of_one(i, ids[i : i + 1], scores[i : i + 1]) for i in range(len(ids))]
        return torch.cat(rows)

    def of_one(self, row, ids, scores):
        calls = self.calls.setdefault(row, [])
        calls.append(int(ids[0, -1]))
        scores = scores.clone()
        scores[:, calls[-2:]] = -float("inf")
        scores[:, (7 * row + len(calls)) % VOCAB] += 3.0
        return scores

    def lookahead_row(self, row, batch):
        assert 0 <= row < batch
        return lambda ids, scores: self.of_one(row, ids, scores)


class Halves(LogitsProcessor):
    """Keeps nothing, and treats rows apart: every other token is out, by the last one."""

    def __call__(self, ids, scores):
        is_out = (torch.arange(VOCAB)[None] + ids[:, -1:]) % 2 == 0
        return scores.masked_fill(is_out, -float("inf"))

    def lookahead_row(self, row, batch):
        return self


class Patience(StoppingCriteria):
    """Has a state for each row: ends it at the third token that it has met before."""

    def __init__(self):
        self.met = {}

    def __call__(self, ids, scores, **_):
        ends = [self.of_one(row, ids[row : row + 1]) for row in range(len(ids))]
        return torch.tensor(ends)

    def of_one(self, row, ids):
        met = self.met.setdefault(row, [])
        met.append(int(ids[0, -1]))
        return len(met) - len(set(met)) > 2

    def lookahead_row(self, row, batch):
        return lambda ids, scores: torch.tensor([self.of_one(row, ids)])


OWN = {
    "state": lambda: {"logits_processor": [Habits()]},
    "none": lambda: {"logits_processor": [Halves()], "repetition_penalty": 1.3},
    "end": lambda: {"stopping_criteria": [Patience()], "eos_token_id": 127},
    "all": lambda: {
        "logits_processor": [Halves(), Habits()],
        "stopping_criteria": [Patience()],
        "eos_token_id": [126, 127],
    },
}
RETURNED = {
    "ids": {},
    "scores": {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
}


@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", OWN)
def test_a_rule_that_says_what_it_is_for_one_row_gives_what_plain_gives(
    rule, way, returned, padding
):
    arguments = batch(padding) | WAYS[way] | RETURNED[returned] | {"pad_token_id": 0}
    ids = arguments.pop("input_ids")
    runs = check(shared(), ids, make=OWN[rule], seed=1, settings={"nodes": 12}, **arguments)
    assert runs.stats.accelerated
    assert runs.stats.drafted
    if returned == "scores":
        for name in ("scores", "logits"):
            mine, right = runs.fast[name], runs.plain[name]
            torch.testing.assert_close(mine, right, atol=1e-4, rtol=1e-4)


def test_a_rule_of_ones_own_is_seen_to_work():
    model = shared()
    arguments = batch(6) | WAYS["greedy"] | {"pad_token_id": 0}
    free = generate(model, arguments)
    for rule in OWN:
        assert generate(model, arguments | OWN[rule]()) != free


def test_the_answers_to_one_prompt_are_rows_of_their_own():
    arguments = {"max_new_tokens": NEW, "num_return_sequences": 3} | WAYS["sampled"]
    check(shared(), prompt(14), make=OWN["state"], settings={"nodes": 12}, **arguments)


def test_rows_that_a_rule_ends_go_on_without_an_end_token_and_run_plain():
    model, arguments = fresh(), batch(0) | WAYS["greedy"]
    plain = generate(model, arguments | {"stopping_criteria": [Patience()]})
    with (
        lookahead.accelerate(model, nodes=12),
        pytest.warns(lookahead.LookaheadWarning, match="behind the end that Patience sets"),
    ):
        assert generate(model, arguments | {"stopping_criteria": [Patience()]}) == plain


def stops(model):
    """Two strings that end two of three rows."""
    tokenizer = letter_tokenizer()
    new = model.generate(**batch(0), do_sample=False)[:, 14:]
    found = [tokenizer.decode(new[0, 3:5]), tokenizer.decode(new[2, 6:8])]
    return {"stop_strings": found, "tokenizer": tokenizer}


@pytest.mark.parametrize("option", [{"forced_eos_token_id": 12}, {"min_new_tokens": 3}])
def test_an_end_token_of_a_processor_is_no_end_of_a_row(option):
    """Plain decoding looks for one among the stopping criteria only."""
    model = fresh()
    arguments = batch(0) | WAYS["greedy"] | stops(model) | option
    plain = model.generate(**arguments)
    with (
        lookahead.accelerate(model, nodes=12),
        pytest.warns(lookahead.LookaheadWarning, match="go on behind their stop strings"),
    ):
        assert model.generate(**arguments).tolist() == plain.tolist()


def test_a_row_that_a_string_ended_is_not_taken_for_one_that_time_ended():
    model = shared()
    arguments = batch(0) | WAYS["greedy"] | stops(model)
    arguments |= {"max_time": 600.0, "eos_token_id": 127, "pad_token_id": 0}
    ids = arguments.pop("input_ids")
    runs = check(model, ids, settings={"nodes": 12}, **arguments)
    ends = (runs.plain != 0).sum(dim=1).tolist()
    assert len(set(ends)) > 1
