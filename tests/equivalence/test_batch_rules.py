"""Processors and criteria of a batch, greedy and sampled: each row as in step with the others."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessor, WatermarkingConfig

import lookahead
from tests.helpers import VOCAB, fresh, prompt, shared

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
