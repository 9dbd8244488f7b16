"""Settings: frozen, checked, and with defaults that need no tuning."""

from __future__ import annotations

import dataclasses

import pytest

from lookahead import Config, ConfigError
from lookahead.config import DEFAULT_SOURCES, MAX_NODES, SOURCES
from tests.drafters import Fixed


def test_the_defaults_are_usable():
    config = Config()
    assert config.nodes == "auto"
    assert config.sources == DEFAULT_SOURCES
    assert set(SOURCES) - set(DEFAULT_SOURCES) == {"exit"}
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
        ("recycle_prompt", -5, '"auto" or a whole number from 0 to'),
        ("window", (0, 5, 7), "number of columns must be a whole number from 1 to 128"),
        ("window", (7, 1, 7), "length of the n-grams must be a whole number from 2 to 16"),
        ("window", (7, 5, -1), "number of guesses must be a whole number from 1 to 128"),
        ("window", ("7", 5, 7), "number of columns must be a whole number from 1 to 128"),
        ("window", (7.0, 5, 7), "number of columns must be a whole number from 1 to 128"),
        ("window", (7, 5), "three whole numbers"),
        ("window", 7, "three whole numbers"),
        ("window", "7/5/7", "three whole numbers"),
        ("window", True, "three whole numbers"),
        ("window", (128, 4, 7), "at most 256 rows"),
        ("strict", 0, "True or False"),
        ("sources", ("fortune",), "'ngrams', 'recycled'"),
        ("drafters", (3,), "a draft"),
    ],
)
def test_a_message_gives_the_range_and_the_value(name, value, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        Config(**{name: value})
    shown = value if isinstance(value, tuple) else (value,)
    assert any(repr(one) in str(caught.value) for one in shown)


@pytest.mark.parametrize("off", [None, 0, False])
def test_a_window_can_be_off_in_more_than_one_way(off):
    assert Config(window=off).window is None


def test_a_window_is_a_shape_or_chosen():
    assert Config(window=[7, 5, 7]).window == (7, 5, 7)
    assert Config(window="auto").window == "auto"
    assert Config(window=(64, 5, 1)).window == (64, 5, 1)


def test_a_window_takes_the_place_of_one_drafter():
    Config(drafters=(Fixed([1]),) * 3, window="auto")
    with pytest.raises(ConfigError, match="at most 3"):
        Config(drafters=(Fixed([1]),) * 4, window="auto")


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
