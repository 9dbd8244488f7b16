"""The table of models: one row for each registered type, and what the tests expect."""

from __future__ import annotations

import pytest

from tests.zoo.build import NAMES, TYPES
from tests.zoo.expected import EXPECTED
from tests.zoo.others import OTHERS
from tests.zoo.sweep import Verdict
from tests.zoo.table import NOT_TRIED, PAGE, read_rows, render, row_of


def test_rows_are_the_registered_types() -> None:
    assert list(read_rows()) == [*NAMES, *OTHERS]
    assert set(TYPES) <= set(NAMES)


def test_the_page_is_what_the_command_writes() -> None:
    assert render(read_rows()) == PAGE.read_text("utf-8")


def test_words_are_known_and_reasons_are_given() -> None:
    for name, (runs, why) in read_rows().items():
        assert runs in {"tree", "chain", "plain", NOT_TRIED}, name
        assert bool(why) == (runs in {"plain", NOT_TRIED}), name


@pytest.mark.parametrize("name", EXPECTED)
def test_the_page_says_what_the_tests_expect(name: str) -> None:
    assert read_rows()[name][0] == EXPECTED[name]


def test_a_wrong_result_is_not_written() -> None:
    with pytest.raises(ValueError, match="no table"):
        row_of(Verdict("WRONG", "ids differ"))
