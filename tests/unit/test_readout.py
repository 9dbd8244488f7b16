"""Candidates out of a part of the output layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookahead.drafters.readout import LUCKY, MOST_LUCK, Readout
from ngram_pool.features import SHARPNESS
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


def test_a_shortlist_of_16_bits_names_the_same_up_to_rounding():
    exact, rounded = (
        Readout(TableEnds(VOCAB, dtype_of_guesses=dtype), range(VOCAB)).top(hidden(), 8)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rounded.probabilities.dtype == np.float32
    np.testing.assert_allclose(rounded.probabilities, exact.probabilities, rtol=0.15)
    for ours, right in zip(rounded.tokens, exact.tokens, strict=True):
        assert len(set(ours) & set(right)) >= 6


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
    assert len(readout) == 4
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
    check(readout, ends, {0, 10, 11, 12})
    readout.add([13, 14])  # one of them in the last free place, one in the place of the oldest
    check(readout, ends, {0, 11, 12, 13, 14})
    readout.add([10])
    check(readout, ends, {0, 10, 12, 13, 14})
    assert ends.read == [0, 10, 11, 12, 13, 14, 10]


def test_what_was_added_since_it_was_read_is_taken_in_at_once_the_newest_first():
    ends = TableEnds(VOCAB)
    readout = Readout(ends, [0], limit=5)
    for tokens in ([10, 11, 12], [13, 14], [12, 0, 13]):
        readout.add(tokens)
    check(readout, ends, {0, 11, 12, 13, 14})
    assert sorted(ends.read) == [0, 11, 12, 13, 14]


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


def some_noise(draws=1, vocab=VOCAB, seed=0):
    return np.random.default_rng(seed).exponential(size=(draws, vocab)).astype(np.float32)


def by_the_whole_race(ends, states, noise, k):
    """The tokens most likely drawn and how likely, all of the vocabulary running."""
    logits = states.double() @ ends.weight.double().T
    if ends.bias is not None:
        logits += ends.bias.double()
    speeds = logits.log_softmax(-1) - torch.from_numpy(noise).double().log()
    values, tokens = (SHARPNESS * speeds).softmax(-1).topk(min(k, ends.vocab), dim=-1)
    return tokens.numpy(), values.numpy()


def at(*depths):
    return np.array(depths)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("k", [1, 8, VOCAB])
@pytest.mark.parametrize("vocab", [VOCAB, LUCKY - 1, LUCKY])
def test_where_all_tokens_run_the_race_is_that_of_the_whole_vocabulary(vocab, k, bias):
    ends = TableEnds(vocab, bias=bias)
    readout = Readout(ends, [3, 1, 4, 15, 9, 2, 6])
    noise, states = some_noise(3, vocab), hidden()
    found = readout.likely_drawn(states, k, noise, at(0, 1, 2, 2, 1, 0))
    for row, depth in enumerate((0, 1, 2, 2, 1, 0)):
        tokens, chances = by_the_whole_race(ends, states[row : row + 1], noise[depth], k)
        np.testing.assert_array_equal(found.tokens[row], tokens[0])
        np.testing.assert_allclose(found.probabilities[row], chances[0], rtol=1e-3, atol=1e-6)
    assert found.tokens.dtype == np.int32
    assert found.probabilities.dtype == np.float32


def test_a_token_outside_the_shortlist_is_found_where_the_draw_favours_it():
    ends = TableEnds(5 * LUCKY)
    readout = Readout(ends, range(20))
    noise = 1 + 0.1 * some_noise(2, 5 * LUCKY)
    noise[0, 4321], noise[1, 4321] = 100.0, 1e-9
    states = 0.1 * hidden(2)
    found = readout.likely_drawn(states, 8, noise, at(0, 1))
    assert 4321 not in found.tokens[0]
    assert found.tokens[1, 0] == 4321
    assert found.probabilities[1, 0] > 0.9
    assert 4321 not in readout.top(states, 8).tokens


def test_a_token_of_the_shortlist_goes_down_where_the_draw_is_against_it():
    ends = TableEnds(VOCAB)
    readout = Readout(ends, range(VOCAB))
    first = readout.top(hidden(1), 1).tokens[0, 0]
    noise = np.ones((2, VOCAB), np.float32)
    noise[1, first] = 1e9
    found = readout.likely_drawn(hidden(1).repeat(2, 1), 5, noise, at(0, 1))
    assert found.tokens[0, 0] == first
    assert first not in found.tokens[1]


def test_behind_the_last_known_draw_the_most_probable_tokens_are_named():
    readout = Readout(TableEnds(VOCAB), [3, 1, 4, 15, 9])
    states, noise = hidden(), some_noise(2)
    found = readout.likely_drawn(states, 8, noise, at(2, 0, 5, 1, 2, 3))
    wanted = readout.top(states, 8)
    far = [0, 2, 4, 5]
    np.testing.assert_array_equal(found.tokens[far, :5], wanted.tokens[far])
    np.testing.assert_allclose(found.probabilities[far, :5], wanted.probabilities[far], rtol=1e-5)
    assert (found.tokens[far, 5:] == -1).all(), "there are but five"
    assert (found.probabilities[far, 5:] == 0).all()
    assert (found.tokens[[1, 3]] >= 0).all()


@pytest.mark.parametrize("vocab", [1, 2, 3, 7])
def test_of_a_tiny_vocabulary_each_token_is_named_once(vocab):
    readout = Readout(TableEnds(vocab), range(max(1, vocab - 2)))
    found = readout.likely_drawn(hidden(3), 16, some_noise(2, vocab), at(0, 1, 0))
    for tokens, chances in zip(found.tokens, found.probabilities, strict=True):
        assert sorted(tokens[:vocab].tolist()) == list(range(vocab))
        assert tokens[vocab:].tolist() == [-1] * (16 - vocab)
        assert (chances[vocab:] == 0).all()
        assert chances.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_in_a_race_hidden_states_that_are_not_finite_name_nothing(value):
    states = hidden(2)
    states[1] = value
    found = Readout(TableEnds(VOCAB), range(VOCAB)).likely_drawn(states, 5, some_noise(), at(0, 0))
    assert (found.tokens[0] >= 0).all()
    assert found.tokens[1].tolist() == [-1] * 5
    assert found.probabilities[1].tolist() == [0.0] * 5


def test_a_token_that_joins_the_shortlist_between_two_looks_runs_once():
    ends = TableEnds(VOCAB)
    readout = Readout(ends, range(3))
    noise, states = some_noise(), hidden(2)
    before = readout.likely_drawn(states, VOCAB, noise, at(0, 0))
    readout.add(before.tokens[0, :5].tolist())
    after = readout.likely_drawn(states, VOCAB, noise, at(0, 0))
    np.testing.assert_array_equal(after.tokens, before.tokens)
    np.testing.assert_allclose(after.probabilities, before.probabilities, rtol=1e-4, atol=1e-6)


def test_rows_of_a_draw_are_read_once_and_those_of_old_draws_let_go():
    ends = TableEnds(5 * LUCKY)
    readout = Readout(ends, range(20))
    noise = some_noise(3 * MOST_LUCK, 5 * LUCKY)
    for _ in range(2):
        for draw in noise[:MOST_LUCK]:
            readout.likely_drawn(hidden(1), 8, draw[None], at(0))
    assert len(ends.read) == 20 + MOST_LUCK * LUCKY
    for draw in noise:
        readout.likely_drawn(hidden(1), 8, draw[None], at(0))
    assert len(readout._luck) == MOST_LUCK
