"""Kind C: stop strings and criteria of the user's own."""

from __future__ import annotations

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

import lookahead
from tests.drafters import ALL, Oracle
from tests.helpers import Recorder, check, fresh, make_model, new_ids, prompt, run, shared
from tests.vocabularies import byte_tokenizer, letter_tokenizer

IDS = prompt(18, repeat=4)


def _text():
    new = new_ids(shared(), IDS)
    return IDS[0].tolist() + new, new


@pytest.mark.parametrize("drafter", ["none", "all", "oracle", "oracle-20", "half", "random"])
@pytest.mark.parametrize("place", [1, 4, 7, 11])
def test_c1_stop_token_stop_string_and_streamer_work_at_once(place, drafter):
    """C1: no streaming and no stop tokens with speculation on."""
    text, new = _text()
    tokenizer = letter_tokenizer()
    streamers = []

    def make():
        streamers.append(Recorder())
        return {"streamer": streamers[-1], "tokenizer": tokenizer}

    # A string that spans two tokens; the end token comes later, if at all.
    string = tokenizer.decode(new[place : place + 2])
    runs = check(
        shared(),
        IDS,
        settings=ALL[drafter](text),
        make=make,
        max_new_tokens=24,
        do_sample=False,
        stop_strings=[string],
        eos_token_id=new[15],
    )
    assert runs.fast.shape[1] < IDS.shape[1] + 24
    assert streamers[0].ids == streamers[1].ids == runs.fast[0].tolist()
    assert [s.ends for s in streamers] == [1, 1]


def test_c2_the_stop_string_cuts_inside_a_block():
    """C1: a stop inside a fully accepted block loses the rest of the block."""
    text, new = _text()
    tokenizer = letter_tokenizer()
    for place in range(1, 10):
        settings = {"sources": (), "drafters": (Oracle(text, 8),)}
        runs = check(
            shared(),
            IDS,
            settings=settings,
            max_new_tokens=24,
            do_sample=False,
            stop_strings=tokenizer.decode([new[place]]),
            tokenizer=tokenizer,
        )
        assert runs.fast.shape[1] - IDS.shape[1] <= place + 1


def test_c2_stop_strings_of_the_generation_config_count():
    """C1, with the string only in the model's generation_config."""
    _, new = _text()
    model = fresh()
    model.generation_config.stop_strings = [letter_tokenizer().decode([new[5]])]
    runs = check(model, IDS, max_new_tokens=24, do_sample=False, tokenizer=letter_tokenizer())
    assert runs.fast.shape[1] < IDS.shape[1] + 24
    assert model.generation_config.stop_strings == [letter_tokenizer().decode([new[5]])]


def test_c2_stop_strings_of_a_generation_config_on_the_call_count():
    """C1, with the string in a generation_config that is passed in, which stays as it was."""
    _, new = _text()
    model = fresh()
    settings = type(model.generation_config)(
        stop_strings=[letter_tokenizer().decode([new[5]])],
        max_new_tokens=24,
        do_sample=False,
        pad_token_id=0,
    )
    before = settings.to_dict()
    runs = check(model, IDS, generation_config=settings, tokenizer=letter_tokenizer())
    assert runs.fast.shape[1] < IDS.shape[1] + 24
    assert settings.to_dict() == before


def test_c2_stop_strings_without_a_tokenizer_fail_as_in_plain():
    """C1: the library's own message comes out."""
    model = fresh()
    with pytest.raises(ValueError, match="tokenizer") as plain:
        model.generate(IDS, max_new_tokens=5, stop_strings=["w5"])
    with (
        lookahead.accelerate(model),
        pytest.raises(ValueError, match="tokenizer") as fast,
        pytest.warns(lookahead.LookaheadWarning, match="tokenizer"),
    ):
        model.generate(IDS, max_new_tokens=5, stop_strings=["w5"])
    assert str(fast.value) == str(plain.value)


class TensorAtLength(StoppingCriteria):
    """Bool tensor of shape [batch]."""

    def __init__(self, length):
        self.length = length

    def __call__(self, ids, scores, **_):
        return torch.full((ids.shape[0],), ids.shape[1] >= self.length)


class BoolAtLength(TensorAtLength):
    """A plain bool."""

    def __call__(self, ids, scores, **_):
        return ids.shape[1] >= self.length


class LastThree(StoppingCriteria):
    """Looks at the last three ids; sees a match only at that very prefix."""

    def __init__(self, three):
        self.three = three

    def __call__(self, ids, scores, **_):
        return torch.tensor([ids[0, -3:].tolist() == self.three])


class Counting(StoppingCriteria):
    """Counts its calls and writes down each prefix."""

    def __init__(self, calls):
        self.calls, self.left = [], calls

    def __call__(self, ids, scores, **_):
        self.calls.append((ids.shape[1], int(ids[0, -1])))
        self.left -= 1
        return torch.tensor([self.left <= 0])


@pytest.mark.parametrize("kind", ["tensor", "bool", "last-three", "counting"])
@pytest.mark.parametrize(
    "drafter", ["none", "ngrams", "recycled", "all", "oracle", "oracle-20", "half", "random"]
)
def test_c3_a_criterion_of_the_users_own_ends_the_text_where_plain_does(drafter, kind):
    """C3: with a hand-written criterion the run gave one token only."""
    text, new = _text()
    made = []

    def make():
        criterion = {
            "tensor": lambda: TensorAtLength(27),
            "bool": lambda: BoolAtLength(27),
            "last-three": lambda: LastThree(new[4:7]),
            "counting": lambda: Counting(9),
        }[kind]()
        made.append(criterion)
        return {"stopping_criteria": StoppingCriteriaList([criterion])}

    runs = check(
        shared(), IDS, settings=ALL[drafter](text), make=make, max_new_tokens=24, do_sample=False
    )
    assert 18 + 1 < runs.fast.shape[1] < 18 + 24
    if kind == "counting":
        assert made[0].calls == made[1].calls
        assert [length for length, _ in made[1].calls] == list(range(19, 28))


def test_c3_a_list_of_plain_functions_is_taken():
    """C3: a plain list with a function in it."""
    check(
        shared(),
        IDS,
        make=lambda: {
            "stopping_criteria": [lambda ids, scores, **k: torch.tensor([ids.shape[1] > 25])]
        },
        max_new_tokens=24,
        do_sample=False,
    )


def test_c4_a_criterion_sees_the_scores_of_every_token_so_far():
    """C3: criteria that look at scores."""
    seen = []

    def make():
        seen.append([])

        def criterion(ids, scores, **_):
            seen[-1].append((len(scores), float(scores[-1].max())))
            return torch.tensor([len(scores) >= 9])

        return {"stopping_criteria": [criterion]}

    check(
        shared(),
        IDS,
        make=make,
        max_new_tokens=24,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert [n for n, _ in seen[0]] == [n for n, _ in seen[1]] == list(range(1, 10))
    assert [v for _, v in seen[0]] == pytest.approx([v for _, v in seen[1]], abs=1e-4)


def test_c4_ids_that_a_criterion_kept_do_not_change_afterwards():
    """C3: what a criterion was shown stays what it was."""
    kept = []

    def criterion(ids, scores, **_):
        kept.append((ids, ids.clone()))
        return torch.tensor([False])

    run(shared(), IDS, stopping_criteria=[criterion], max_new_tokens=90, do_sample=False)
    assert all(torch.equal(view, copy) for view, copy in kept)


CODE = [
    "def add(a, b):\n    return",
    "def is_even(n):\n    if n % 2",
    "class Stack:\n    def push(self",
    "for i in range(10):\n    print(",
    "import os\nimport sys\n\ndef main",
]


@pytest.mark.parametrize("snippet", CODE)
def test_c5_code_with_stop_strings_is_cut_as_plain_cuts_it(snippet):
    """C5: a lower score on code came from other stop rules and an untrimmed last block."""
    tokenizer = byte_tokenizer()
    model = make_model("llama", vocab_size=256, seed=len(snippet))
    ids = tokenizer(snippet, return_tensors="pt").input_ids
    new = new_ids(model, ids, 60)
    stops = [tokenizer.decode(new[20:22]), tokenizer.decode(new[30:33]), "\ndef", "\nclass"]
    runs = check(
        model, ids, max_new_tokens=60, do_sample=False, stop_strings=stops, tokenizer=tokenizer
    )
    assert tokenizer.decode(runs.fast[0]) == tokenizer.decode(runs.plain[0])
