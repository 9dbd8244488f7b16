"""The early-exit drafter on a target of numbers: lens, answers, and what is learnt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookahead.drafters.early_exit import EarlyExitDrafter
from lookahead.drafters.exits import ExitChooser
from lookahead.drafters.readout import Readout
from lookahead.errors import UnsupportedError
from lookahead.outcome import Outcome
from lookahead.tree import DraftTree

VOCAB, WIDTH = 32, 24


class Layers:
    """A token's hidden state is a vector of its own; the last layer turns it to that of the next.

    What leaves any early layer is the vector itself: a linear lens can be perfect.
    """

    vocab, width, dtype_of_guesses = VOCAB, WIDTH, torch.float32

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.early = torch.randn((VOCAB, WIDTH), generator=generator)
        self.late = torch.randn((VOCAB, WIDTH), generator=generator)
        self.watched = ()
        self.last = torch.zeros((0, WIDTH))
        self.prompt: list[int] = []
        self.peeks = []
        self.refuses = False

    def output_rows(self, tokens):
        return self.late[(tokens - 1) % VOCAB] * 3, None

    def watch(self, layers):
        self.watched = tuple(layers)

    def prompt_left(self, slot, layer):
        return self.early[self.prompt] if layer in self.watched else None

    def left(self, slot, layer):
        return self.last if layer in self.watched else None

    def peek(self, slot, tree, nodes, exit_layer):
        if self.refuses:
            raise UnsupportedError("no")
        self.peeks.append((list(nodes), exit_layer))
        return self.early[torch.from_numpy(tree.tokens[nodes])]


def begin(chooser, prompt=None):
    """Return a drafter that has read a prompt in which every token is followed by the next."""
    layers = Layers()
    layers.prompt = list(range(VOCAB)) * 4 if prompt is None else prompt
    drafter = EarlyExitDrafter(layers, 0, Readout(layers, range(VOCAB)), chooser)
    drafter.begin([*layers.prompt, 0], layers.late[layers.prompt])
    return drafter, layers


def step(drafter, layers, tree, path):
    """Let the target verify a tree of which a path is accepted; tokens are followed by the next."""
    tokens = torch.from_numpy(tree.tokens)
    layers.last = layers.early[tokens]
    chosen = [(int(tree.tokens[n]) + 1) % VOCAB for n in path]
    drafter.learn(Outcome(tree, path, chosen, chosen, torch.zeros(1), layers.late[tokens]))


def on(layer=2):
    return ExitChooser(4, (layer,), never_off=True)


def test_the_lens_of_the_prompt_names_the_tokens_that_follow():
    drafter, layers = begin(on())
    tree = DraftTree.from_parents([0, 7, 9], [0, 0, 0])
    found = drafter.ask([0], tree, [0, 2])
    assert found.tokens[:, 0].tolist() == [1, 10]
    assert (np.diff(found.probabilities) <= 0).all()
    assert layers.peeks == [([0, 2], 2)]


def test_nothing_is_said_before_the_lens_has_rows():
    drafter, layers = begin(on(), prompt=[3, 4, 5])
    assert drafter.ask([0], DraftTree.only_root(0), [0]) is None
    assert not layers.peeks


def test_nodes_that_are_hardly_reached_are_not_looked_at():
    drafter, layers = begin(on())
    tree = DraftTree.from_parents([0, 7, 9], [0, 0, 0], [1.0, 0.5, 0.01])
    found = drafter.ask([0], tree, [2, 1])
    assert found.tokens[0].tolist() == [-1] * 8
    assert found.tokens[1, 0] == 8
    assert layers.peeks == [([1], 2)]
    assert drafter.ask([0], tree, [2]) is None


def test_no_more_is_asked_where_a_look_costs_more_than_it_wins():
    chooser = ExitChooser(4, (2,))
    chooser.learn_agreement(2, 60, 100)
    drafter, layers = begin(chooser)
    tree = DraftTree.from_parents([0, 7], [0, 0], [1.0, 0.5])
    assert drafter.exit_layer == 2
    assert drafter.ask([0], tree, [1]) is None  # 0.5 * 0.6 < 2 / 4
    assert drafter.ask([0], tree, [0]) is not None
    assert len(layers.peeks) == 1


def test_it_starts_by_itself_once_the_lens_was_found_right():
    chooser = ExitChooser(12, (2,))
    drafter, layers = begin(chooser)
    assert drafter.exit_layer == 0
    for token in range(0, 36, 2):
        tree = DraftTree.from_parents([token % VOCAB, (token + 1) % VOCAB], [0, 0])
        step(drafter, layers, tree, [0, 1])
    assert chooser.agreement(2) > 0.6
    assert drafter.exit_layer == 2


def test_it_stops_where_others_had_named_the_tokens_anyway():
    chooser = ExitChooser(12, (2,))
    chooser.learn_agreement(2, 90, 100)
    drafter, layers = begin(chooser)
    for token in range(30):
        tree = DraftTree.from_parents([token, (token + 1) % VOCAB], [0, 0])
        if drafter.ask([token], tree, [0]) is None:
            break
        step(drafter, layers, tree, [0])
    assert 16 <= token < 29
    assert drafter.exit_layer == 0


def test_what_only_it_had_named_counts_as_won():
    chooser = on()
    drafter, layers = begin(chooser)
    for token in range(20):
        drafter.ask([token], DraftTree.only_root(token), [0])
        step(drafter, layers, DraftTree.from_parents([token, token + 1], [0, 0]), [0, 1])
    assert chooser.value(2) > 0.7


def test_a_target_that_refuses_is_not_asked_again():
    chooser = on()
    drafter, layers = begin(chooser)
    layers.refuses = True
    assert drafter.ask([0], DraftTree.only_root(0), [0]) is None
    layers.refuses = False
    assert drafter.ask([0], DraftTree.only_root(0), [0]) is None
    assert chooser.layers == ()
    step(drafter, layers, DraftTree.only_root(5), [0])
    assert drafter.exit_layer == 0


def test_hidden_states_that_are_not_finite_or_not_there_do_no_harm():
    drafter, layers = begin(on())
    layers.early[5] = float("nan")
    for _ in range(20):
        step(drafter, layers, DraftTree.only_root(5), [0])
    found = drafter.ask([0], DraftTree.only_root(0), [0])
    assert found.tokens[0, 0] == 1
    tree = DraftTree.only_root(4)
    drafter.learn(Outcome(tree, [0], [5], [5], torch.zeros(1), None))


def test_a_known_model_on_which_it_does_not_pay_costs_nothing():
    chooser = ExitChooser(4, (2,))
    chooser.learn_agreement(2, 10, 100)
    drafter, layers = begin(chooser)
    assert layers.watched == ()
    assert drafter.ask([0], DraftTree.only_root(0), [0]) is None


@pytest.mark.parametrize("rows", [1, 40, 3000])
def test_any_length_of_prompt_will_do(rows):
    drafter, _ = begin(on(), prompt=[i % VOCAB for i in range(rows)])
    found = drafter.ask([0], DraftTree.only_root(0), [0])
    assert (found is None) == (rows < 32)
