"""Every family that the documentation names: the ids are plain ones, and it runs as it says."""

from __future__ import annotations

import warnings

import pytest

import lookahead
from tests.zoo.expected import EXPECTED
from tests.zoo.sweep import FEWEST_IDS, look, make

#: Greedy text, in which every pass has a right and a wrong guess at each depth, and one sample.
WAYS = ("greedy-half", "sample-half")


@pytest.mark.parametrize("name", EXPECTED)
def test_a_family_gives_plain_ids_and_runs_as_expected(name):
    model, inputs = make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lookahead.LookaheadWarning)
        verdict = look(model, inputs, WAYS, new=16)
    assert verdict.word == EXPECTED[name], verdict
    if verdict.word != "plain":
        assert verdict.num_ids >= FEWEST_IDS
