"""The buffer of ids and the state of a row."""

from __future__ import annotations

import pytest
import torch

from lookahead.choose import NodeChooser
from lookahead.sequence import Sequence, TokenBuffer


def test_what_is_appended_comes_out():
    buffer = TokenBuffer(torch.tensor([[1, 2, 3]]))
    for token in range(200):
        buffer.append(token)
    assert len(buffer) == 203
    assert buffer.ids.tolist() == [[1, 2, 3, *range(200)]]
    assert buffer.ids.shape == (1, 203)


def test_a_view_stays_true_for_ever():
    buffer = TokenBuffer(torch.tensor([[7]]))
    views = []
    for token in range(300):
        views.append((buffer.ids, buffer.ids.clone()))
        buffer.append(token)
    assert all(torch.equal(view, copy) for view, copy in views)


def test_the_ids_at_the_start_are_copied():
    ids = torch.tensor([[1, 2]])
    buffer = TokenBuffer(ids)
    ids[0, 0] = 99
    assert buffer.ids.tolist() == [[1, 2]]


def test_it_may_start_empty():
    buffer = TokenBuffer(torch.zeros((1, 0), dtype=torch.long))
    assert buffer.ids.shape == (1, 0)
    for token in range(100):
        buffer.append(token)
    assert buffer.ids[0].tolist() == list(range(100))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ids_become_those_of_plain_decoding_whatever_the_prompt_came_as(dtype):
    buffer = TokenBuffer(torch.tensor([[1]], dtype=dtype))
    buffer.append(5)
    assert buffer.ids.dtype == torch.int64


def _sequence(max_length, context=(1, 2, 3), seen=None):
    return Sequence(
        slot=0,
        context=list(context),
        seen=TokenBuffer(torch.tensor([list(seen or context)])),
        drafter=None,
        chooser=NodeChooser(None, sample=False),
        should_stop=lambda ids, scores: ids.shape[1] >= 6,
        max_length=max_length,
    )


def test_the_longest_guess_leaves_room_for_the_bonus_token():
    assert _sequence(10).max_depth == 6
    assert _sequence(4).max_depth == 0
    assert _sequence(2).max_depth == 0
    assert _sequence(None).max_depth is None


def test_padding_counts_for_the_length_and_not_for_the_context():
    sequence = _sequence(10, context=(2, 3), seen=(0, 0, 2, 3))
    assert sequence.max_depth == 5
    sequence.commit(4)
    assert sequence.context == [2, 3, 4]
    assert sequence.seen.ids.tolist() == [[0, 0, 2, 3, 4]]
    assert (sequence.num_new, sequence.prompt_length) == (1, 2)


def test_a_row_finishes_where_its_rule_says_so():
    sequence = _sequence(None)
    for token, finished in ((4, False), (5, False), (6, True)):
        sequence.commit(token)
        assert sequence.finished is finished


def test_the_empty_tree_stands_under_the_last_token():
    assert _sequence(None).only_root().tokens.tolist() == [3]
    empty = Sequence(
        slot=0,
        context=[],
        seen=TokenBuffer(torch.zeros((1, 0), dtype=torch.long)),
        drafter=None,
        chooser=NodeChooser(None, sample=False),
        should_stop=lambda ids, scores: False,
    )
    assert len(empty.only_root()) == 0
