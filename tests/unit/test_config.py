"""Settings: frozen, checked, and with defaults that need no tuning."""

from __future__ import annotations

import dataclasses

import pytest

from lookahead import Config, ConfigError
from lookahead.config import MAX_NODES, SOURCES
from tests.drafters import Fixed


def test_the_defaults_are_usable():
    config = Config()
    assert config.nodes == "auto"
    assert config.sources == SOURCES
    assert config.draft_budget == config.max_nodes
    assert not config.strict


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().nodes = 3


@pytest.mark.parametrize("name", ["nodes", "max_nodes"])
@pytest.mark.parametrize("value", [0, 1, MAX_NODES])
def test_the_ends_of_a_range_belong_to_it(name, value):
    assert getattr(Config(**{name: value}), name) == value


def test_a_fixed_number_of_nodes_is_the_budget():
    assert Config(nodes=7, max_nodes=3).draft_budget == 7


def test_lists_are_taken_for_tuples():
    config = Config(sources=["ngrams"], drafters=[Fixed([1]), Fixed])
    assert config.sources == ("ngrams",)
    assert isinstance(config.drafters, tuple)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("nodes", -1, '"auto" or a whole number from 0 to 256'),
        ("max_nodes", 257, "a whole number from 0 to 256"),
        ("max_depth", 0, "a whole number from 1 to 256"),
        ("recycle_prompt", -5, "a whole number from 0 to"),
        ("strict", 0, "True or False"),
        ("sources", ("fortune",), "'ngrams', 'recycled'"),
        ("drafters", (3,), "a draft"),
    ],
)
def test_a_message_gives_the_range_and_the_value(name, value, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        Config(**{name: value})
    shown = value[0] if isinstance(value, tuple) else value
    assert repr(shown) in str(caught.value)


def test_at_most_four_drafters_can_be_merged():
    Config(drafters=(Fixed([1]),) * 4)
    with pytest.raises(ConfigError, match="at most 4"):
        Config(drafters=(Fixed([1]),) * 5)


def test_an_object_with_something_that_is_no_method_is_refused():
    class Odd:
        draft = 5

    with pytest.raises(ConfigError, match="draft"):
        Config(drafters=(Odd(),))


@pytest.mark.parametrize("value", [True, False, "calibrated"])
def test_remembering_is_on_off_or_what_was_calibrated(value):
    assert Config(remember=value).remember == value


@pytest.mark.parametrize("value", ["all", 1, None, ""])
def test_other_ways_to_remember_are_refused(value):
    with pytest.raises(ConfigError, match="remember must be"):
        Config(remember=value)
