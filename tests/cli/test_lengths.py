"""Prompts that are made as long as a context is to be."""

from __future__ import annotations

import pytest

from lookahead.cli.benchmark.lengths import of_length
from lookahead.cli.benchmark.prompts import Row
from lookahead.cli.conversation import Transcript
from tests.cli.conftest import make_tokenizer

ROWS = [Row(n, "talk", (letter * 40, "later")) for n, letter in enumerate("abcde")]
#: What the template of these tests puts around a prompt, in ids: each byte is one.
AROUND = len(Transcript(make_tokenizer()).prompt_ids(""))


def fitted(row: Row, length: int) -> str:
    (found,) = of_length([row], ROWS, make_tokenizer(), length)
    (text,) = found.turns
    assert len(Transcript(make_tokenizer()).prompt_ids(text)) <= length
    return text


def test_text_of_the_rows_that_follow_goes_in_front_and_the_question_stays_last() -> None:
    text = fitted(ROWS[3], AROUND + 92)
    assert text == "r\n\n" + "a" * 40 + "\n\nlater\n\n" + "d" * 40


def test_no_text_is_there_twice_and_a_file_that_ends_is_no_fault() -> None:
    text = fitted(ROWS[0], 10_000)
    assert text.endswith("a" * 40)
    assert [text.count(letter * 40) for letter in "abcde"] == [1] * 5


@pytest.mark.parametrize("length", [AROUND + 39, AROUND + 7, AROUND + 1])
def test_a_prompt_that_is_too_long_loses_its_end(length: int) -> None:
    assert fitted(ROWS[0], length) == "a" * (length - AROUND)


def test_where_nothing_fits_something_is_left_to_ask() -> None:
    (found,) = of_length([ROWS[0]], ROWS, make_tokenizer(), 1)
    assert found.turns == ("a",)


def test_a_text_that_fits_stays_as_it_is() -> None:
    assert fitted(ROWS[2], AROUND + 40) == "c" * 40
