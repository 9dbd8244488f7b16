"""The choice of an exit layer: what is right, what it costs, and what it wins."""

from __future__ import annotations

import pytest

from lookahead.drafters.exits import ExitChooser, check_exit_layer, default_exit_layers, rate
from lookahead.errors import ConfigError


def _told(agreements, num_layers=12, **settings):
    chooser = ExitChooser(num_layers, tuple(agreements), **settings)
    for layer, share in agreements.items():
        chooser.learn_agreement(layer, round(400 * share), 400)
    return chooser


@pytest.mark.parametrize("layer", [0, 12, 13, -1, True, "4", 2.0, None])
def test_a_layer_out_of_range_is_refused_with_the_range(layer):
    """P3: early exit drafts only, and the message says so."""
    with pytest.raises(ConfigError, match=r"the answer is always that of all 12.*from 1 to 11"):
        check_exit_layer(layer, 12)
    with pytest.raises(ConfigError):
        ExitChooser(12, (layer,))


@pytest.mark.parametrize("num_layers", [2, 3, 4, 12, 30, 80])
def test_the_layers_it_chooses_from_exist(num_layers):
    layers = default_exit_layers(num_layers)
    assert layers == tuple(sorted(set(layers)))
    assert all(0 < layer < num_layers for layer in layers)
    assert ExitChooser(num_layers).layers == layers


def test_nothing_is_chosen_before_anything_is_known():
    assert ExitChooser(12).choose() == 0


def test_it_pays_where_the_lens_is_right_more_often_than_a_look_costs():
    assert _told({3: 0.4}).choose() == 3  # 3 of 12 layers: 0.25
    assert _told({3: 0.2}).choose() == 0


def test_a_deeper_layer_is_chosen_where_it_is_worth_its_cost():
    assert _told({2: 0.3, 6: 0.35}).choose() == 2
    assert _told({2: 0.3, 6: 0.98}).choose() == 6


def test_measured_cost_counts_more_than_the_number_of_layers():
    chooser = _told({3: 0.4})
    for _ in range(100):
        chooser.learn_cost(3, 0.6)
    assert chooser.cost(3) == pytest.approx(0.6, abs=0.01)
    assert chooser.choose() == 0


def test_what_others_find_anyway_is_no_gain_and_is_doubted_in_time():
    chooser = _told({2: 0.5})
    chooser.learn_gain(2, 0, 40)
    assert chooser.choose() == 0
    tries = next(i for i in range(1000) if chooser.choose() == 2)
    assert 20 < tries < 500


def test_a_step_that_emits_much_needs_more_gain():
    assert _told({3: 0.4}).choose(tokens=1.0) == 3
    assert _told({3: 0.4}).choose(tokens=3.0) == 0


def test_a_dropped_layer_is_never_chosen_again():
    chooser = _told({2: 0.5, 3: 0.9})
    chooser.drop(3)
    chooser.learn_agreement(3, 100, 100)
    assert chooser.choose() == 2
    assert chooser.layers == (2,)


def test_it_can_be_kept_from_choosing_none():
    assert ExitChooser(12, (6,), never_off=True).choose() == 6
    assert _told({6: 0.0}, never_off=True).choose() == 6


def test_the_least_known_layer_is_tried_next_and_known_ones_now_and_then():
    chooser = ExitChooser(12, (1, 2, 4))
    chooser.learn_agreement(1, 3, 20)
    assert chooser.to_try() == 2
    for layer in (1, 2, 4):
        chooser.learn_agreement(layer, 10, 100)
    tried = [chooser.to_try() for _ in range(64)]
    assert [layer for layer in tried if layer] == [2] * 4
    for layer in (1, 2, 4):
        chooser.drop(layer)
    assert chooser.to_try() == 0


def test_the_newest_cases_count_most():
    chooser = _told({4: 0.0})
    for _ in range(100):
        chooser.learn_agreement(4, 16, 16)
    assert chooser.agreement(4) > 0.9


def test_the_same_story_gives_the_same_choices():
    def story():
        chooser, choices = ExitChooser(24), []
        for step in range(200):
            layer = chooser.layers[step % len(chooser.layers)]
            chooser.learn_agreement(layer, step % 7, 8)
            chooser.learn_gain(layer, step % 2, 1)
            chooser.learn_cost(layer, 0.1 + step % 3 / 10)
            choices.append(chooser.choose(1 + step % 2))
        return choices

    assert story() == story()


def test_the_rate_of_no_look_is_that_of_plain_and_one_look_adds_what_it_wins():
    assert rate(0.0, 0.5, 2.0) == 2.0
    assert rate(0.5, 0.45, 1.0) == pytest.approx(1.5 / 1.45)
