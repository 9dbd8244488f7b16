"""Kind G: logits processors, penalties, constraints."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LogitsProcessor

from tests.drafters import ALL, WELL_BEHAVED
from tests.helpers import VOCAB, check, make_model, new_ids, prompt, shared
from tests.vocabularies import byte_tokenizer

IDS = prompt(18, repeat=4)


def _text(**kwargs):
    new = new_ids(shared(), IDS, **kwargs)
    return IDS[0].tolist() + new, new


_, NEW = (_text)()

OPTIONS = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[NEW[2]], NEW[4:6], [NEW[0], NEW[1]]]},
    "suppress_tokens": {"suppress_tokens": [NEW[1], NEW[5]]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [NEW[0]]},
    "forced_bos": {"forced_bos_token_id": 9},
    "forced_eos": {"forced_eos_token_id": 5, "eos_token_id": 5},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": NEW[3]},
}
OPTIONS["all"] = {k: v for option in OPTIONS.values() for k, v in option.items()}


@pytest.mark.parametrize("drafter", ["all", "oracle", "half"])
@pytest.mark.parametrize("name", OPTIONS)
def test_g1_penalties_and_bans_work_as_in_plain(name, drafter):
    """G1: repetition_penalty was ignored without a word."""
    text, _ = _text(**OPTIONS[name])
    for sample in (False, True):
        check(
            shared(),
            IDS,
            settings=ALL[drafter](text),
            max_new_tokens=24,
            do_sample=sample,
            **OPTIONS[name],
        )


class Recording(LogitsProcessor):
    """Writes down what it is shown; favours a token by what it saw, so that ids matter."""

    def __init__(self):
        self.calls = []

    def __call__(self, ids, scores):
        self.calls.append((ids.shape[1], ids[0, -1].item(), tuple(scores.shape)))
        scores = scores.clone()
        scores[:, (3 * len(self.calls) + int(ids[0, -1])) % VOCAB] += 5.0
        return scores


@pytest.mark.parametrize("drafter", WELL_BEHAVED)
def test_g3_a_processor_sees_each_prefix_once_and_in_order(drafter):
    """G3: processors were called with ids that lacked the newest token."""
    made = []

    def make():
        made.append(Recording())
        return {"logits_processor": [made[-1]]}

    text = IDS[0].tolist() + new_ids(shared(), IDS, logits_processor=[Recording()])
    check(shared(), IDS, settings=ALL[drafter](text), make=make, max_new_tokens=24, do_sample=False)
    assert made[1].calls == made[0].calls
    assert [n for n, _, _ in made[1].calls] == list(range(18, 18 + 24))


class Spoiling(LogitsProcessor):
    """Writes into the logits that it is given."""

    def __call__(self, ids, scores):
        scores[:, ids[0]] -= 2.0
        return scores.mul_(0.5)


@pytest.mark.parametrize("drafter", ["all", "oracle", "half"])
def test_g4_a_processor_may_write_into_what_it_is_given(drafter):
    """G3: what one processor writes must not be seen anywhere else."""
    text = IDS[0].tolist() + new_ids(shared(), IDS, logits_processor=[Spoiling()])
    runs = check(
        shared(),
        IDS,
        settings=ALL[drafter](text),
        max_new_tokens=24,
        do_sample=False,
        make=lambda: {"logits_processor": [Spoiling()]},
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    for name in ("scores", "logits"):
        for one, other in zip(runs.fast[name], runs.plain[name], strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("drafter", ["all", "fixed", "random", "oracle"])
def test_g5_drafts_that_break_a_grammar_are_dropped_quietly(drafter, sample):
    """G5: grammar back ends crashed when a drafted token broke the grammar."""
    digits, letters = list(range(10, 20)), list(range(40, 60))

    def allowed(batch, ids):
        return digits if int(ids[-1]) in digits else digits[:3] + letters

    ids = torch.tensor([[40 + i % 9 for i in range(20)]])
    text = ids[0].tolist() + new_ids(shared(), ids, prefix_allowed_tokens_fn=allowed)
    runs = check(
        shared(),
        ids,
        settings=ALL[drafter](text),
        max_new_tokens=24,
        do_sample=sample,
        prefix_allowed_tokens_fn=allowed,
    )
    for one, two in zip(runs.fast[0, 19:], runs.fast[0, 20:], strict=False):
        assert int(two) in allowed(0, [int(one)])
    assert not runs.stats.notes


@pytest.mark.parametrize("place", [3, 4, 5])
@pytest.mark.parametrize(
    "drafter", ["none", "ngrams", "recycled", "all", "oracle", "oracle-20", "half", "random"]
)
def test_g7_min_new_tokens_lets_the_end_through_from_the_same_place(drafter, place):
    """G7: min_tokens hid EOS on one draft row too many."""
    text, new = _text()
    check(
        shared(),
        IDS,
        settings=ALL[drafter](text) | {"nodes": 6},
        max_new_tokens=24,
        do_sample=False,
        min_new_tokens=4,
        eos_token_id=new[place],
    )


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_g9_json_with_repeated_keys_is_byte_equal(seed, length):
    """G9: a token was doubled inside JSON where the same string had come before."""
    tokenizer = byte_tokenizer()
    record = [{"name": f"n{i * seed}", "value": i, "name_of_value": "name"} for i in range(4)]
    ids = tokenizer(json.dumps(record), return_tensors="pt").input_ids
    model = make_model("llama", vocab_size=256, seed=seed)
    runs = check(
        model,
        ids,
        max_new_tokens=40,
        do_sample=False,
        settings={"max_depth": length, "sources": ("ngrams",)},
    )
    assert tokenizer.decode(runs.fast[0]) == tokenizer.decode(runs.plain[0])


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.4},
        {"encoder_repetition_penalty": 1.4},
        {"encoder_no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 2, "bad_words_ids": [[5], [6, 7]]},
        {"renormalize_logits": True, "exponential_decay_length_penalty": (3, 1.3)},
        {"repetition_penalty": 1.4, "encoder_no_repeat_ngram_size": 3, "min_new_tokens": 6},
    ],
    ids="+".join,
)
def test_g2_processors_that_know_every_row_of_a_batch_know_each_alone(options):
    """G1: with padding, a penalty knows where each row begins; a row on its own is not a batch."""
    model = shared()
    rows = [prompt(n, seed=n, repeat=n // 3)[0] for n in (5, 19, 11)]
    ids = torch.stack([torch.nn.functional.pad(row, (19 - len(row), 0)) for row in rows])
    mask = torch.stack([(torch.arange(19) >= 19 - len(row)).long() for row in rows])
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=9, do_sample=False)
    check(
        model,
        ids,
        attention_mask=mask,
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=int(plain[1, -1]),
        **options,
    )
