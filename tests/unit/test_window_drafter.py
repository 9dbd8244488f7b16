"""The window as a source of guesses, and the choice of its width."""

from __future__ import annotations

import numpy as np
import pytest

from lookahead import DraftTree
from lookahead.drafters import window as module
from lookahead.drafters.window import GuessStore, WindowDrafter
from lookahead.drafters.window_choice import (
    FIRST_REST,
    NGRAM_SIZE,
    SPELL,
    WIDTHS,
    WindowChooser,
    most_window_rows,
)
from lookahead.outcome import Outcome
from lookahead.window import most_rows

FLAT = np.linspace(1.0, 1.02, 200)
STEEP = 1.0 + np.arange(200) * 0.05


def _learn(drafter, root, window_tokens, chosen=(1,)):
    tree = DraftTree.only_root(root)
    drafter.learn(
        Outcome(tree, [0], list(chosen), [root, *chosen], None, window_tokens=window_tokens)
    )


def _stored(*ngrams, num_guesses=3):
    drafter = WindowDrafter(3, 4, num_guesses)
    for ngram in ngrams:
        drafter._store.add(ngram)
    return drafter


def test_a_store_keeps_the_most_recent_guesses_of_each_token():
    store = GuessStore(2)
    for ngram in [(1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7), (2, 8, 9)]:
        store.add(ngram)
    assert store.after(1) == [(6, 7), (2, 3)]
    assert store.after(2) == [(8, 9)]
    assert store.after(3) == []
    assert len(store) == 3


def test_a_store_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_KEYS", 10)
    store = GuessStore(2)
    for token in range(100):
        for guess in range(5):
            store.add((token, guess))
    assert len(store) == 20
    assert store.after(0) == []
    assert store.after(99) == [(4,), (3,)]


def test_nothing_is_guessed_before_anything_was_found():
    drafter = WindowDrafter(3, 4, 3)
    assert drafter.draft([1, 2], 8) is None


def test_guesses_are_paths_of_the_tree_the_most_recent_first():
    drafter = _stored((9, 1, 2, 3), (9, 1, 2, 4), (9, 5, 6, 7))
    tree = drafter.draft([3, 9], 32)
    assert tree.tokens[0] == 9
    assert [tree.tokens[n] for n in tree.children(0)] == [5, 1]
    leaves = [n for n in range(1, len(tree) + 1) if not tree.children(n)]
    paths = [[int(tree.tokens[n]) for n in tree.path(leaf)] for leaf in leaves]
    assert paths == [[5, 6, 7], [1, 2, 4], [1, 2, 3]]


def test_a_guess_goes_on_where_its_last_token_is_known():
    drafter = _stored((9, 1, 2, 3), (3, 4, 5, 6))
    tree = drafter.draft([9], 32)
    assert tree.tokens.tolist() == [9, 1, 2, 3, 4, 5, 6]
    share = tree.probabilities[1:] / tree.probabilities[:-1]
    assert share[3] == pytest.approx(module.CHAINED)
    assert share[4] == pytest.approx(module.LATER)


def test_what_the_window_found_can_be_guessed():
    drafter = WindowDrafter(2, 3, 2)
    rows = drafter.rows([5, 6, 7], None, None)
    assert len(rows) == 2
    _learn(drafter, 7, [11, 12])
    rows = drafter.rows([5, 6, 7, 8], None, None)
    level_0 = int(rows.tokens[0])
    assert rows.tokens[1:].tolist() == [11, 12]
    _learn(drafter, 8, [21, 22])
    assert drafter._store.after(8) == [(11, 21)]
    assert drafter._store.after(level_0)[0] == (12, 22)


def test_a_pass_without_a_window_leaves_it_where_it_is():
    drafter = WindowDrafter(2, 3, 2)
    before = drafter.rows([5, 6, 7], None, None).tokens.tolist()
    _learn(drafter, 7, None)
    assert drafter.rows([5, 6, 7, 8], None, None).tokens.tolist() == before


def _run(chooser, costs, steps, gain, others=2.0):
    """Let a window of width w earn ``gain(w)`` tokens a step; return the widths."""
    widths, due = [], 0.0
    for _ in range(steps):
        columns = chooser.choose(costs)
        widths.append(columns)
        due += gain(columns) if columns else 0.0
        gained = int(due)
        due -= gained
        chooser.learn(columns, gained, int(others) + gained)
    return widths


def test_a_window_is_run_where_rows_are_nearly_free_and_it_earns():
    widths = _run(WindowChooser(), FLAT, 1000, lambda w: 1.2 * WIDTHS[w])
    assert all(widths[SPELL:])


def test_no_window_is_even_tried_where_rows_are_dear():
    assert not any(_run(WindowChooser(), STEEP, 5000, lambda w: 1.0))


def test_the_rests_grow_where_a_window_earns_nothing():
    widths = np.array(_run(WindowChooser(), FLAT, 20_000, lambda w: 0.0)) > 0
    assert widths.any()
    starts = np.flatnonzero(np.diff(widths.astype(int)) == 1)
    assert (np.diff(starts) >= FIRST_REST).all()
    assert widths[10_000:].mean() < widths[:2_000].mean() / 2
    assert widths.mean() < 0.1


def test_a_window_that_stops_earning_is_given_up_and_tried_again():
    chooser = WindowChooser()
    assert _run(chooser, FLAT, 500, lambda w: 2 * WIDTHS[w])[-1]
    after = _run(chooser, FLAT, 1000, lambda w: 0.0)
    assert not after[-1]
    again = _run(chooser, FLAT, 4000, lambda w: 2 * WIDTHS[w])
    assert again[-1]


def test_the_width_that_pays_most_is_taken():
    # Free up to the rows of the middle width, then dear.
    rows = most_rows(7, NGRAM_SIZE)
    costs = np.where(np.arange(200) <= rows, 1.001, 3.0)
    assert set(_run(WindowChooser(), costs, 500, lambda w: WIDTHS[w])) == {7}


def test_widths_with_more_rows_than_can_be_run_are_left_out():
    assert set(_run(WindowChooser(), FLAT[:20], 500, lambda w: WIDTHS[w])) <= {4, 7}
    assert not any(_run(WindowChooser(), FLAT[:5], 500, lambda w: WIDTHS[w]))


@pytest.mark.parametrize(("window", "rows"), [(None, 0), ((7, 5, 7), 27), ("auto", 29)])
def test_the_most_rows_of_a_setting_are_known(window, rows):
    assert most_window_rows(window) == rows


def test_the_same_costs_and_earnings_give_the_same_choices():
    runs = [_run(WindowChooser(), FLAT, 2000, lambda w: 0.5 * WIDTHS[w]) for _ in range(2)]
    assert runs[0] == runs[1]
