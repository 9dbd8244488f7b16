"""What the next draws are made with, known before they are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookahead.choose import NodeChooser
from lookahead.noise import MOST_DRAWS, NoiseAhead

VOCAB = 50
CPU = torch.device("cpu")


def some_logits(count, seed=0, vocab=VOCAB):
    return 2 * torch.randn((count, vocab), generator=torch.Generator().manual_seed(seed))


def draw(logits, temperature=1.0):
    """One token, as plain decoding draws it."""
    scores = logits[None] / temperature
    return int(torch.multinomial(scores.softmax(-1), num_samples=1))


def foretold(logits, noise):
    """The token of the largest quotient of probability, before any processor, and noise."""
    return int((logits.softmax(-1) / torch.from_numpy(noise)).argmax())


def assert_foretold(ahead, logits, temperature=1.0):
    """Look at as many draws as there are logits, then draw; return the noise."""
    noise = ahead.look(len(logits), logits.shape[1])
    assert noise.shape == logits.shape
    assert noise.dtype == np.float32
    wanted = [foretold(*pair) for pair in zip(logits, noise, strict=True)]
    assert [draw(row, temperature) for row in logits] == wanted


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7, 3.0])
def test_a_draw_is_the_largest_quotient_of_probability_and_noise(temperature):
    for seed in range(100):
        torch.manual_seed(seed)
        ahead = NoiseAhead(CPU, temperature)
        assert_foretold(ahead, some_logits(4, seed), temperature)


def test_without_the_temperature_other_tokens_would_be_foretold():
    torch.manual_seed(0)
    logits = some_logits(MOST_DRAWS)
    noise = NoiseAhead(CPU).look(MOST_DRAWS, VOCAB)
    wrong = [foretold(*pair) for pair in zip(logits, noise, strict=True)]
    assert wrong != [draw(row, 3.0) for row in logits]


@pytest.mark.parametrize("seed", range(5))
def test_looks_and_draws_in_turn_stay_right_for_as_long_as_one_likes(seed):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    ahead, made = NoiseAhead(CPU, 1.3), 0
    while made < 20 * MOST_DRAWS:
        looks = int(rng.integers(1, MOST_DRAWS + 1))
        logits = some_logits(looks, int(rng.integers(1 << 30)))
        noise = ahead.look(looks, VOCAB)
        num = int(rng.integers(0, looks + 1))
        wanted = [foretold(logits[i], noise[i]) for i in range(num)]
        assert [draw(logits[i], 1.3) for i in range(num)] == wanted
        made += num


def test_looking_again_says_the_same():
    ahead = NoiseAhead(CPU)
    first = ahead.look(5, VOCAB).copy()
    np.testing.assert_array_equal(ahead.look(3, VOCAB), first[:3])
    np.testing.assert_array_equal(ahead.look(8, VOCAB)[:5], first)
    draw(some_logits(1)[0])
    np.testing.assert_array_equal(ahead.look(4, VOCAB), first[1:])


def test_the_generator_is_left_as_it_is():
    torch.manual_seed(3)
    ahead = NoiseAhead(CPU, 0.8)
    for _ in range(6 * MOST_DRAWS):
        before = torch.get_rng_state()
        ahead.look(MOST_DRAWS, VOCAB)
        assert torch.equal(torch.get_rng_state(), before)
        draw(some_logits(1)[0])


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.rand(1),
        lambda: torch.randn(3),
        lambda: torch.manual_seed(77),
        lambda: draw(some_logits(1, vocab=7)[0]),
        lambda: [draw(row) for row in some_logits(2 * MOST_DRAWS)],
    ],
    ids=["uniform", "normal", "seed", "another-width", "many-draws"],
)
def test_another_use_of_the_generator_makes_it_begin_again(use):
    torch.manual_seed(4)
    ahead = NoiseAhead(CPU)
    for step in range(12):
        assert_foretold(ahead, some_logits(3, step))
        ahead.look(MOST_DRAWS, VOCAB)
        use()


def test_a_use_between_two_draws_spoils_one_look_only():
    torch.manual_seed(5)
    ahead = NoiseAhead(CPU)
    logits = some_logits(2)
    noise = ahead.look(2, VOCAB)
    wanted = foretold(logits[0], noise[0])
    assert draw(logits[0]) == wanted
    torch.rand(1)
    assert_foretold(ahead, logits)


def test_the_number_of_tokens_may_change():
    torch.manual_seed(6)
    ahead = NoiseAhead(CPU)
    for width in (VOCAB, 7, 300, 300, VOCAB):
        ahead.look(MOST_DRAWS, VOCAB)
        assert_foretold(ahead, some_logits(3, width, width))


def test_no_more_draws_are_looked_at_than_are_worth_it():
    assert NoiseAhead(CPU).look(1000, VOCAB).shape == (MOST_DRAWS, VOCAB)


@pytest.mark.parametrize("draws", [0, -1])
def test_no_draws_are_no_noise(draws):
    assert NoiseAhead(CPU).look(draws, VOCAB) is None


def test_a_device_without_a_generator_has_no_noise():
    assert NoiseAhead(torch.device("meta")).look(3, VOCAB) is None


def test_a_chooser_knows_its_next_draw_once_it_has_drawn():
    temperature, ids = 1.6, torch.zeros((1, 1), dtype=torch.int64)
    chooser = NodeChooser(lambda _, raw: raw / temperature, sample=True, temperature=temperature)
    assert chooser.noise(3) is None
    logits = some_logits(40)
    chooser.begin(logits)
    chooser.choose(0, ids)
    for node in range(1, len(logits)):
        wanted = foretold(logits[node], chooser.noise(2)[0])
        assert chooser.choose(node, ids) == wanted


def test_a_chooser_that_draws_nothing_has_no_noise():
    chooser = NodeChooser(None, sample=False)
    chooser.begin(some_logits(2))
    chooser.choose(0, torch.zeros((1, 1), dtype=torch.int64))
    assert chooser.noise(3) is None
