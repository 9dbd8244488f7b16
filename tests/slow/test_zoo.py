"""The sweep over all registered types: none is wrong, and so many are accelerated and exact."""

from __future__ import annotations

import functools

import pytest

from tests.zoo.batches import look_at_batch
from tests.zoo.build import NAMES, TYPES
from tests.zoo.fused import look_at_fused
from tests.zoo.others import OTHERS
from tests.zoo.sweep import EXACT, WRONG, in_child

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

#: Types that are accelerated and exact, and those whose layers are fused; to be raised when there
#: are more.
FEWEST_EXACT, FEWEST_FUSED = 176, 77


@functools.cache
def _verdict(name):
    return in_child(name)


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_no_type_is_wrong(name):
    assert _verdict(name).kind != WRONG, _verdict(name)


@pytest.mark.parametrize("name", NAMES)
def test_no_type_is_wrong_in_a_ragged_batch(name):
    verdict = in_child(name, look_at_batch)
    assert verdict.kind != WRONG, verdict


def test_enough_types_are_accelerated_and_exact():
    exact = [name for name in TYPES if _verdict(name).kind == EXACT]
    assert len(exact) >= FEWEST_EXACT, sorted(set(TYPES) - set(exact))


@functools.cache
def _fused_verdict(name):
    return in_child(name, look_at_fused)


@pytest.mark.parametrize("name", NAMES)
def test_no_type_is_wrong_with_fused_layers(name):
    assert _fused_verdict(name).kind != WRONG, _fused_verdict(name)


def test_the_layers_of_enough_types_are_fused():
    fused = [name for name in TYPES if _fused_verdict(name).mode == "fused"]
    assert len(fused) >= FEWEST_FUSED, sorted(set(TYPES) - set(fused))
