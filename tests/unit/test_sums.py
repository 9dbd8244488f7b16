"""Sums over texts, and the linear map that is fitted to them."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn.functional import normalize

from lookahead.drafters import sums as sums_module
from lookahead.drafters.regression import sketch
from lookahead.drafters.sums import GROWTH, RIDGE, HeadSums, head_inputs
from lookahead.learnt import add_up
from tests.ends import TableEnds

ENDS = TableEnds()


def pairs(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn((rows, ENDS.width), generator=generator) * 3
    tokens = torch.randint(0, ENDS.vocab, (rows,), generator=generator)
    outputs = torch.randn((rows, ENDS.width), generator=generator)
    return head_inputs(ENDS, hidden, tokens), outputs


def filled(rows=50, seed=0):
    sums = HeadSums(ENDS)
    sums.add(*pairs(rows, seed))
    return sums


def test_inputs_are_two_unit_vectors():
    inputs, _ = pairs(7)
    assert inputs.shape == (7, ENDS.width + ENDS.embedding_width)
    for half in inputs.split((ENDS.width, ENDS.embedding_width), dim=-1):
        torch.testing.assert_close(half.norm(dim=-1), torch.ones(7))


@pytest.mark.parametrize("rows", [1, 10, 200])
def test_the_map_is_that_of_ridge_regression(rows):
    inputs, outputs = pairs(rows)
    x = torch.cat([inputs, torch.ones((rows, 1))], dim=-1).double()
    # Ridge is least squares with rows of its own.
    ridge = RIDGE**0.5 * torch.eye(x.shape[1], dtype=torch.float64)
    nothing = torch.zeros((x.shape[1], ENDS.width), dtype=torch.float64)
    wanted = torch.linalg.lstsq(torch.cat([x, ridge]), torch.cat([outputs.double(), nothing]))
    found = filled(rows).map()
    torch.testing.assert_close(found.double(), wanted.solution, rtol=1e-4, atol=1e-4)


def test_how_rows_are_grouped_does_not_matter():
    inputs, outputs = pairs(60)
    sums = HeadSums(ENDS)
    for part in torch.arange(60).split(7):
        sums.add(inputs[part], outputs[part])
    assert sums.rows == 60
    torch.testing.assert_close(sums.map(), filled(60).map(), rtol=1e-4, atol=1e-4)


def test_a_text_is_the_pairs_of_its_neighbours():
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, ENDS.vocab, (30,), generator=generator)
    hidden = torch.randn((30, ENDS.width), generator=generator)
    by_text, by_pairs = HeadSums(ENDS), HeadSums(ENDS)
    by_text.add_text(tokens, hidden.half())
    hidden = hidden.half().float()
    embedded = normalize(ENDS.embedding[tokens[1:]], dim=-1)
    by_pairs.add(torch.cat([normalize(hidden[:-1], dim=-1), embedded], dim=-1), hidden[1:])
    assert by_text.rows == 29
    torch.testing.assert_close(by_text.map(), by_pairs.map())


def test_without_rows_there_is_no_map_and_nothing_to_keep():
    sums = HeadSums(ENDS)
    assert sums.map() is None
    assert sums.state() == {}
    sums.add(*pairs(0))
    sums.add_text(torch.tensor([3]), torch.zeros((1, ENDS.width)))
    assert sums.map() is None
    assert sums.rows == 0


def test_the_map_is_fitted_anew_only_when_there_is_much_more():
    sums = filled(100)
    first = sums.map()
    sums.add(*pairs(int(100 * (GROWTH - 1)), 1))
    assert sums.map() is first
    sums.add(*pairs(1, 2))
    second = sums.map()
    assert second is not first
    assert not torch.equal(second, first)
    kept = first.clone()
    sums.add(*pairs(500, 3))
    sums.map()
    assert torch.equal(first, kept), "who holds an older map is not disturbed"


def test_a_state_brings_everything_back():
    sums, other = filled(), HeadSums(ENDS)
    other.load_state(sums.state())
    assert other.rows == sums.rows
    torch.testing.assert_close(other.map(), sums.map())
    other.add(*pairs(10, 4))
    assert other.rows == sums.rows + 10
    assert not torch.equal(other.state()["squares"], sums.state()["squares"])


def test_a_state_is_a_copy():
    sums = filled()
    state = sums.state()
    kept = {name: array.clone() for name, array in state.items()}
    sums.add(*pairs(10, 4))
    assert all(torch.equal(state[name], kept[name]) for name in kept)
    other = HeadSums(ENDS)
    other.load_state(state)
    other.add(*pairs(10, 4))
    assert all(torch.equal(state[name], kept[name]) for name in kept)


def test_states_of_one_model_add_up():
    added = add_up(filled(40, 1).state(), filled(30, 2).state())
    both, joined = HeadSums(ENDS), HeadSums(ENDS)
    for rows, seed in ((40, 1), (30, 2)):
        both.add(*pairs(rows, seed))
    joined.load_state(added)
    assert joined.rows == 70
    torch.testing.assert_close(joined.map(), both.map(), rtol=1e-4, atol=1e-4)
    less = add_up(added, filled(30, 2).state(), less=filled(30, 2).state())
    torch.testing.assert_close(less["squares"], added["squares"])


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {},
        lambda state: {k: v for k, v in state.items() if k != "rows"},
        lambda state: {k: v for k, v in state.items() if k != "products"},
        lambda state: state | {"squares": state["squares"][:-1]},
        lambda state: state | {"products": state["products"][:, :-1]},
        lambda state: state | {"squares": state["squares"] * float("nan")},
        lambda state: state | {"products": state["products"] * float("inf")},
        lambda state: _sums_of_another_model().state(),
    ],
)
def test_what_is_of_another_model_is_refused_and_changes_nothing(change):
    sums = filled()
    before = sums.state()
    with pytest.raises(ValueError, match="expected"):
        sums.load_state(change(filled(9, 3).state()))
    after = sums.state()
    assert all(torch.equal(after[name], before[name]) for name in before)


def _sums_of_another_model():
    ends = TableEnds(width=20)
    sums = HeadSums(ends)
    sums.add_text(torch.arange(9), torch.randn((9, 20)))
    return sums


def test_sums_that_belong_to_no_map_give_none():
    sums = filled()
    state = dict(sums.state())
    state["squares"] = -state["squares"]
    sums.load_state(state)
    assert sums.map() is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_left_out(value):
    inputs, outputs = pairs(60)
    broken_inputs, broken_outputs = inputs.clone(), outputs.clone()
    broken_inputs[5, 3], broken_outputs[9, 0] = value, value
    whole = torch.ones(60, dtype=torch.bool)
    whole[[5, 9]] = False
    sums, wanted = HeadSums(ENDS), HeadSums(ENDS)
    sums.add(broken_inputs, broken_outputs)
    wanted.add(inputs[whole], outputs[whole])
    assert sums.rows == 58
    torch.testing.assert_close(sums.map(), wanted.map())


def test_wide_inputs_are_sketched_and_fitted_as_such(monkeypatch):
    monkeypatch.setattr(sums_module, "MOST_INPUTS", 16)
    inputs, outputs = pairs(80)
    wide, narrow = HeadSums(ENDS), HeadSums(TableEnds(width=ENDS.width, embedding_width=1))
    wide.add(inputs, outputs)
    found = wide.map()
    assert found.shape == (17, ENDS.width)
    x = torch.cat([sketch(inputs, 16), torch.ones((80, 1))], dim=-1).double()
    squares = x.T @ x + RIDGE * torch.eye(17, dtype=torch.float64)
    wanted = torch.linalg.solve(squares, x.T @ outputs.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)
    other = HeadSums(ENDS)
    other.load_state(wide.state())
    torch.testing.assert_close(other.map(), found)
    with pytest.raises(ValueError, match="expected"):
        narrow.load_state(filled_without_a_sketch())


def filled_without_a_sketch():
    size = ENDS.width + ENDS.embedding_width + 1
    return {
        "squares": torch.eye(size),
        "products": torch.zeros((size, ENDS.width)),
        "rows": torch.tensor(3),
    }


def test_threads_may_add_and_read_at_once():
    sums, failed = HeadSums(ENDS), []
    parts = [pairs(8, seed) for seed in range(40)]

    def work(mine):
        try:
            for part in mine:
                sums.add(*part)
                sums.map()
                state = sums.state()
                # The sum of squares of unit vectors and the constant: three for each row.
                trace = float(state["squares"].trace())
                assert trace == pytest.approx(3 * int(state["rows"]), rel=1e-4)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(parts[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    wanted = HeadSums(ENDS)
    for part in parts:
        wanted.add(*part)
    assert sums.rows == wanted.rows == 320
    for name, array in wanted.state().items():
        torch.testing.assert_close(sums.state()[name], array, rtol=1e-4, atol=1e-3)
