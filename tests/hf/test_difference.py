"""The first difference between a plain and an accelerated run."""

from __future__ import annotations

import pytest
import torch

import lookahead
from lookahead import UnsupportedError
from lookahead.choose import NodeChooser
from lookahead.hf.difference import Difference, find_difference
from tests.helpers import VOCAB, fresh, new_ids, prompt

IDS = prompt(20, repeat=6)


@pytest.fixture
def wrong_at_5(monkeypatch):
    """Make an accelerated run take the next token id in place of the sixth token."""
    choose, calls = NodeChooser.choose, []

    def wrong(self, node, ids):
        token = choose(self, node, ids)
        calls.append(token)
        return (token + 1) % VOCAB if len(calls) == 6 else token

    monkeypatch.setattr(NodeChooser, "choose", wrong)


def test_equal_runs_have_none():
    model = fresh()
    with lookahead.accelerate(model, nodes=8):
        assert find_difference(model, IDS, max_new_tokens=16) is None


@pytest.mark.usefixtures("wrong_at_5")
def test_a_wrong_token_is_found_with_its_logits():
    model = fresh()
    plain = new_ids(model, IDS, 16)
    with lookahead.accelerate(model, nodes=8):
        found = find_difference(model, IDS, max_new_tokens=16)
    assert (found.index, found.plain, found.fast) == (5, plain[5], (plain[5] + 1) % VOCAB)
    text = torch.cat([IDS, torch.tensor([plain[:5]])], dim=1)
    logits = model(text).logits[0, -1].detach()
    expected = [float(logits[found.plain]), float(logits[found.fast])]
    assert list(found.plain_logits) == pytest.approx(expected, abs=1e-4)
    assert list(found.fast_logits) == pytest.approx(expected, abs=1e-4)
    assert found.gap == pytest.approx(expected[0] - expected[1], abs=1e-4)
    assert found.rounding < 1e-4
    assert not found.is_rounding
    assert "a fault" in str(found)


@pytest.mark.parametrize(("gap", "is_rounding"), [(0.0, True), (0.2, True), (0.21, False)])
def test_rounding_explains_a_gap_that_two_roundings_close(gap, is_rounding):
    found = Difference(3, 1, 2, (gap, 0.0), (0.0, gap), gap, 0.1)
    assert found.is_rounding is is_rounding


def test_it_needs_an_accelerated_model_and_greedy_search():
    model = fresh()
    with pytest.raises(UnsupportedError, match="accelerate"):
        find_difference(model, IDS)
    with lookahead.accelerate(model), pytest.raises(UnsupportedError, match="greedy"):
        find_difference(model, IDS, do_sample=True)
