"""Candidates out of a part of the output layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookahead.drafters.readout import Readout
from tests.ends import TableEnds

VOCAB = 40


def hidden(rows=6, seed=1):
    return torch.randn((rows, 24), generator=torch.Generator().manual_seed(seed))


def by_the_whole_layer(ends, shortlist, states, k):
    """The same from all rows of the output layer, in double precision."""
    logits = states.double() @ ends.weight.double().T
    if ends.bias is not None:
        logits += ends.bias.double()
    listed = torch.tensor(sorted(shortlist))
    shares = logits[:, listed].softmax(-1)
    values, places = shares.topk(min(k, len(listed)), dim=-1)
    return listed[places].numpy(), values.numpy()


def check(readout, ends, shortlist, k=8, states=None):
    states = hidden() if states is None else states
    assert len(readout) == len(shortlist)
    found = readout.top(states, k)
    tokens, probabilities = by_the_whole_layer(ends, shortlist, states, k)
    np.testing.assert_array_equal(found.tokens, tokens)
    np.testing.assert_allclose(found.probabilities, probabilities, rtol=1e-4, atol=1e-6)
    assert found.tokens.dtype == np.int32
    assert found.probabilities.dtype == np.float32


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("k", [1, 8, 60])
def test_it_gives_what_the_whole_layer_gives_for_the_shortlist(bias, k):
    ends = TableEnds(VOCAB, bias=bias)
    readout = Readout(ends, [3, 1, 4, 15, 9, 2, 6])
    check(readout, ends, {3, 1, 4, 15, 9, 2, 6}, k)
    readout.add([5, 35, 8, 9, 7])
    check(readout, ends, {3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 7}, k)
    readout.add(range(VOCAB))
    check(readout, ends, set(range(VOCAB)), k)


def test_hidden_states_of_a_half_precision_model_are_taken():
    ends = TableEnds(VOCAB)
    states = hidden().to(torch.bfloat16)
    check(Readout(ends, range(VOCAB)), ends, set(range(VOCAB)), states=states)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_hidden_states_that_are_not_finite_name_nothing(value):
    states = hidden(2)
    states[1] = value
    found = Readout(TableEnds(VOCAB), range(VOCAB)).top(states, 5)
    assert (found.tokens[0] >= 0).all()
    assert found.tokens[1].tolist() == [-1] * 5
    assert found.probabilities[1].tolist() == [0.0] * 5


def test_each_row_of_the_output_layer_is_read_once():
    ends = TableEnds(VOCAB)
    readout = Readout(ends, [1, 2, 2, 3])
    readout.add([2, 3, 4, 4])
    readout.add([4])
    readout.add([])
    assert ends.read == [1, 2, 3, 4]


def test_tokens_out_of_range_are_left_out():
    ends = TableEnds(VOCAB)
    readout = Readout(ends, [-1, VOCAB, 7, 2**40, -(2**40)])
    readout.add([VOCAB + 5, 8, -3])
    check(readout, ends, {7, 8})
    assert ends.read == [7, 8]


def test_beyond_the_limit_the_oldest_of_those_added_later_go():
    ends = TableEnds(VOCAB)
    readout = Readout(ends, [0, 1, 2], limit=6)
    for token in (10, 11, 12):
        readout.add([token])
    check(readout, ends, {0, 1, 2, 10, 11, 12})
    readout.add([13])
    check(readout, ends, {0, 1, 2, 11, 12, 13})
    readout.add([14, 15])
    check(readout, ends, {0, 1, 2, 13, 14, 15})
    readout.add([13])
    check(readout, ends, {0, 1, 2, 13, 14, 15})


def test_a_token_that_had_to_go_can_come_back():
    ends = TableEnds(VOCAB)
    readout = Readout(ends, [0], limit=5)
    readout.add([10, 11, 12])
    readout.add([13, 14])  # one of them in the last free place, one in the place of the oldest
    check(readout, ends, {0, 11, 12, 13, 14})
    readout.add([10])
    check(readout, ends, {0, 10, 12, 13, 14})
    assert ends.read == [0, 10, 11, 12, 13, 14, 10]


def test_more_than_there_is_room_for_fills_the_room():
    ends = TableEnds(VOCAB)
    readout = Readout(ends, [0, 1], limit=6)
    readout.add(range(VOCAB))
    assert len(readout) == 6
    assert {0, 1} <= set(readout.top(hidden(), 6).tokens[0].tolist())
    full = Readout(ends, range(VOCAB), limit=6)
    full.add([30])
    assert len(full) == 6
    assert 30 in full.top(hidden(), 6).tokens[0]


@pytest.mark.parametrize("seed", range(5))
def test_any_run_of_additions_leaves_a_shortlist_without_doubles(seed):
    rng = np.random.default_rng(seed)
    ends = TableEnds(VOCAB)
    limit = int(rng.integers(4, 20))
    readout = Readout(ends, range(3), limit=limit)
    for _ in range(60):
        added = rng.integers(-2, VOCAB + 2, rng.integers(0, 6)).tolist()
        known = set(readout.top(hidden(1), VOCAB).tokens[0].tolist())
        readout.add(added)
        listed = readout.top(hidden(1), VOCAB).tokens[0].tolist()
        assert len(listed) == len(set(listed)) == len(readout) <= limit
        assert {0, 1, 2} <= set(listed)
        new = {token for token in added if 0 <= token < VOCAB} - known
        assert len(new & set(listed)) == min(len(new), limit - 3)
        check(readout, ends, set(listed))
