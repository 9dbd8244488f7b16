"""The lookahead window: what stands where, who sees whom, and what a pass makes of it."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead import DraftTree
from lookahead.rows import rows_of
from lookahead.window import LookaheadWindow, WindowRows, most_rows, window_visibility
from tests.toys import decode, scripted

#: Three columns, three levels (n-grams of 4): case F5, written out by hand. The letter is the
#: level, the digit is the place behind the root; g is a guess of three tokens.
BY_HAND = """
      0   g1  g2  g3  a1  a2  b1  b2  b3  c2  c3  c4
0     x
g1    x   x
g2    x   x   x
g3    x   x   x   x
a1    x               x
a2    x               x   x
b1    x                       x
b2    x               x           x
b3    x               x   x           x
c2    x                       x           x
c3    x               x           x           x
c4    x               x   x           x           x
"""

TEXT = [4, 9, 2, 7, 7, 3, 8]


def table(text: str) -> tuple[list[str], list[list[bool]]]:
    """Read a table as it is drawn: names, and who sees whom."""
    head, *rows = [line for line in text.splitlines() if line.strip()]
    names = head.split()
    columns = [head.index(f" {name}") + 1 for name in names]
    assert [row.split()[0] for row in rows] == names
    return names, [[row[column : column + 1] == "x" for column in columns] for row in rows]


def filled(num_columns: int = 3, ngram_size: int = 4) -> LookaheadWindow:
    """Make a window whose token at level l and place p is 100 * l + p, and all levels there."""
    window = LookaheadWindow(num_columns, ngram_size, TEXT)
    for _ in range(ngram_size - 2):
        window.advance(0, range(window.rows().num_read))
    window._levels = [
        [100 * level + level + column for column in range(level == 0, num_columns)]
        for level in range(ngram_size - 1)
    ]
    return window


def test_who_sees_whom_is_the_table_of_the_paper():
    names, expected = table(BY_HAND)
    rows = rows_of(DraftTree.from_paths(1, [[2, 3, 4]]), filled().rows())
    assert rows.may_see.tolist() == expected
    assert rows.offsets.tolist() == [int(name[-1]) for name in names]
    assert [names[row] for row in rows.window_read] == ["c2", "c3", "c4"]


@pytest.mark.parametrize("num_columns", range(1, 9))
@pytest.mark.parametrize("ngram_size", range(2, 8))
def test_a_row_sees_one_token_for_each_place_up_to_its_own(num_columns, ngram_size):
    window = LookaheadWindow(num_columns, ngram_size, TEXT)
    most = 0
    for _ in range(2 * ngram_size):
        rows = window.rows()
        if rows is None:
            assert (num_columns, ngram_size) == (1, 2)
            return
        most = max(most, len(rows))
        for row in range(len(rows)):
            seen = sorted(rows.offsets[rows.may_see[row]])
            assert seen == list(range(1, int(rows.offsets[row]) + 1))
        window.advance(0, range(rows.num_read))
    assert most == most_rows(num_columns, ngram_size)
    assert window.num_columns == num_columns
    assert window.is_full


def test_levels_are_filled_one_a_pass_and_columns_shrink_to_their_number():
    window = LookaheadWindow(3, 4, TEXT)
    assert [len(level) for level in window.levels] == [4]
    first = window.levels[0]
    assert window.advance(1, [21, 22, 23, 24]) == []
    # What was said behind places 1 to 4 stands at 2 to 5, and the root has moved on by one.
    assert window.levels == [first[1:], [21, 22, 23, 24]]
    assert window.advance(1, [31, 32, 33, 34]) == []
    assert window.levels == [first[2:], [22, 23, 24], [32, 33, 34]]
    assert window.is_full


def test_a_full_window_gives_an_ngram_a_column_and_moves_up():
    window = filled()
    assert window.levels == [[1, 2], [101, 102, 103], [202, 203, 204]]
    assert window.advance(7, [303, 304, 305]) == [
        (7, 101, 202, 303),
        (1, 102, 203, 304),
        (2, 103, 204, 305),
    ]
    assert window.levels == [[102, 103], [202, 203, 204], [303, 304, 305]]


def test_bigrams_are_plain_jacobi_iteration():
    window = LookaheadWindow(4, 2, TEXT)
    window._levels = [[1, 2, 3]]
    assert window.is_full
    assert window.rows().num_read == 3
    assert window.advance(7, [11, 12, 13]) == [(1, 11), (2, 12), (3, 13)]
    assert window.levels == [[11, 12, 13]]


def test_a_window_of_one_column_and_bigrams_has_no_rows():
    assert LookaheadWindow(1, 2, TEXT).rows() is None


def test_the_first_tokens_are_of_the_text_and_depend_on_nothing_else():
    random.seed(1)
    one = LookaheadWindow(9, 5, TEXT).levels
    random.seed(2)
    assert one == LookaheadWindow(9, 5, list(TEXT)).levels
    assert set(one[0]) <= set(TEXT)
    assert one != LookaheadWindow(9, 5, [*TEXT, 1]).levels
    assert LookaheadWindow(2, 3, [5]).levels == [[5, 5]]


@given(st.integers(1, 9), st.integers(2, 7), st.lists(st.integers(0, 20), max_size=20))
def test_no_row_stands_farther_than_is_allowed(num_columns, ngram_size, limits):
    window = LookaheadWindow(num_columns, ngram_size, TEXT)
    for limit in sorted(limits, reverse=True):
        rows = window.rows(limit)
        if rows is None:
            continue
        assert rows.offsets.max() <= limit
        assert len(rows.may_see) == len(rows) > 0
        for ngram in window.advance(3, range(rows.num_read)):
            assert len(ngram) == ngram_size


def test_narrowing_keeps_the_near_columns():
    window = filled()
    rows = window.rows(3)
    assert window.levels == [[1], [101, 102], [202, 203]]
    assert rows.num_read == 2
    assert window.rows(1) is None


def test_a_table_is_made_once_and_cannot_be_changed():
    assert window_visibility((2, 3, 3)) is window_visibility((2, 3, 3))
    with pytest.raises(ValueError, match="read-only"):
        window_visibility((2, 3, 3))[0, 0] = False


def test_without_a_window_the_rows_are_those_of_the_tree():
    tree = DraftTree.from_paths(1, [[2, 3], [4]])
    rows = rows_of(tree)
    assert rows.tokens.tolist() == tree.tokens.tolist()
    assert rows.may_see.tolist() == tree.ancestors().tolist()
    assert len(rows.window_read) == 0


@pytest.mark.parametrize("shape", [(3, 3, 2), (7, 5, 7), (1, 2, 1), (1, 6, 1), (5, 2, 3)])
def test_the_window_alone_gives_the_plain_text(shape):
    text = np.random.default_rng(0).integers(1, 40, 80).tolist()
    out, stats = decode(
        scripted(text, 40), text[:10], 60, sample=False, nodes=32, sources=(), window=shape
    )
    assert out == text[10:70]
    assert set(stats.by_source) == {"window"}
    # Two columns of bigrams and more find something: the toy's text depends on places only.
    assert stats.mean_acceptance_length > 1.0 or shape[0] == 1
    assert (stats.window_rows > 0) == (shape != (1, 2, 1))


def test_a_guess_that_fits_in_full_gives_the_bonus_token_too():
    """Case F5: k accepted tokens give k + 1."""
    cycle = list(itertools.islice(itertools.cycle([1, 2, 3, 4, 5, 6, 7]), 80))

    def law(context):
        row = [1e-6] * 8
        row[context[-1] % 7 + 1] = 1.0
        return row

    out, stats = decode(law, cycle[:7], 60, sample=False, nodes=8, sources=(), window=(3, 4, 1))
    assert out == cycle[7:67]
    whole = [step for step in stats.steps if step.accepted >= 3]
    assert whole
    assert all(step.emitted == step.accepted + 1 for step in stats.steps[:-1])


def test_rows_know_their_number():
    rows = WindowRows(np.zeros(3, np.int64), np.ones(3, np.int64), np.eye(3, dtype=bool), 2)
    assert len(rows) == 3
