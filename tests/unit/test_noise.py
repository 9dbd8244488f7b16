"""What draws are made with: in plain's order for a batch, and known before they are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookahead import noise as noise_module
from lookahead.choose import NodeChooser
from lookahead.noise import MOST_DRAWS, Draws

VOCAB = 50
CPU = torch.device("cpu")


def some_logits(count, seed=0, vocab=VOCAB):
    return 2 * torch.randn((count, vocab), generator=torch.Generator().manual_seed(seed))


def plain(logits, temperature=1.0):
    """One token for each row, as plain decoding draws it."""
    return torch.multinomial((logits / temperature).softmax(-1), num_samples=1)[:, 0].tolist()


def draw(draws, logits, temperature=1.0, row=0):
    """One token of one row."""
    chances = (logits[None] / temperature).softmax(-1)
    return int((chances / draws.take(row, len(logits))).argmax())


def foretold(logits, noise):
    """The token of the largest quotient of probability, before any processor, and noise."""
    return int((logits.softmax(-1) / torch.from_numpy(noise)).argmax())


def assert_foretold(draws, logits, temperature=1.0):
    """Look at as many draws as there are logits, then draw; return the noise."""
    noise = draws.ahead(0, len(logits), logits.shape[1])
    assert noise.shape == logits.shape
    assert noise.dtype == np.float32
    wanted = [foretold(*pair) for pair in zip(logits, noise, strict=True)]
    assert [draw(draws, row, temperature) for row in logits] == wanted


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7, 3.0])
def test_a_draw_is_the_largest_quotient_of_probability_and_noise(temperature):
    for seed in range(100):
        torch.manual_seed(seed)
        assert_foretold(Draws(CPU, 1, temperature), some_logits(4, seed), temperature)


def test_without_the_temperature_other_tokens_would_be_foretold():
    torch.manual_seed(0)
    logits, draws = some_logits(MOST_DRAWS), Draws(CPU)
    noise = draws.ahead(0, MOST_DRAWS, VOCAB)
    wrong = [foretold(*pair) for pair in zip(logits, noise, strict=True)]
    assert wrong != [draw(draws, row, 3.0) for row in logits]


@pytest.mark.parametrize("vocab", [2, 50, 1000, 70_000])
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("looks", [0, 3])
def test_the_draws_of_a_batch_in_step_are_those_of_multinomial(rows, vocab, looks):
    steps = [some_logits(rows, step, vocab) for step in range(5)]
    torch.manual_seed(1)
    wanted = [plain(logits) for logits in steps]
    behind = torch.get_rng_state()
    torch.manual_seed(1)
    draws, found = Draws(CPU, rows), []
    for logits in steps:
        for row in range(rows):
            draws.ahead(row, looks, vocab)
        found.append([draw(draws, logits[row], row=row) for row in range(rows)])
    assert found == wanted
    assert torch.equal(torch.get_rng_state(), behind)


@pytest.mark.parametrize("kept", [1, 10_000, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_rows_at_different_speeds_draw_what_they_draw_in_step(seed, kept, monkeypatch):
    monkeypatch.setattr(noise_module, "MOST_KEPT", kept)
    rows, rng = 4, np.random.default_rng(seed)
    lengths = rng.integers(1, 60, rows).tolist()
    steps = [some_logits(rows, step) for step in range(max(lengths))]
    torch.manual_seed(seed)
    wanted = [plain(logits) for logits in steps]
    behind = torch.get_rng_state()
    torch.manual_seed(seed)
    draws, done = Draws(CPU, rows), [0] * rows
    while live := [row for row in range(rows) if done[row] < lengths[row]]:
        row = live[int(rng.integers(len(live)))]
        ahead = draws.ahead(row, 3, VOCAB)
        for i in range(min(int(rng.integers(1, 9)), lengths[row] - done[row])):
            logits = steps[done[row]][row]
            if i < 3:
                assert foretold(logits, ahead[i]) == wanted[done[row]][row]
            assert draw(draws, logits, row=row) == wanted[done[row]][row]
            done[row] += 1
        if done[row] == lengths[row]:
            draws.finish(row)
    assert torch.equal(torch.get_rng_state(), behind), "one draw a step of the longest row"
    assert not draws._made, "nothing is kept that nobody needs"


def test_a_row_far_ahead_leaves_no_more_noise_than_is_allowed(monkeypatch):
    monkeypatch.setattr(noise_module, "MOST_KEPT", 10 * 2 * VOCAB * 4)
    draws = Draws(CPU, 2)
    for _ in range(100):
        draws.take(0, VOCAB)
    assert sum(step.noise is not None for step in draws._made) == 10
    for _ in range(100):
        draws.take(1, VOCAB)
    assert not draws._made


@pytest.mark.parametrize("seed", range(5))
def test_looks_and_draws_in_turn_stay_right_for_as_long_as_one_likes(seed):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    draws, made = Draws(CPU, 1, 1.3), 0
    while made < 20 * MOST_DRAWS:
        looks = int(rng.integers(1, MOST_DRAWS + 1))
        logits = some_logits(looks, int(rng.integers(1 << 30)))
        noise = draws.ahead(0, looks, VOCAB)
        num = int(rng.integers(0, looks + 1))
        wanted = [foretold(logits[i], noise[i]) for i in range(num)]
        assert [draw(draws, logits[i], 1.3) for i in range(num)] == wanted
        made += num


def test_looking_again_says_the_same():
    draws = Draws(CPU)
    first = draws.ahead(0, 5, VOCAB).copy()
    np.testing.assert_array_equal(draws.ahead(0, 3, VOCAB), first[:3])
    np.testing.assert_array_equal(draws.ahead(0, 8, VOCAB)[:5], first)
    draws.take(0, VOCAB)
    np.testing.assert_array_equal(draws.ahead(0, 4, VOCAB), first[1:])


def test_looking_leaves_the_generator_as_it_is_and_drawing_as_plain_leaves_it():
    torch.manual_seed(3)
    draws = Draws(CPU, 1, 0.8)
    for _ in range(6 * MOST_DRAWS):
        before = torch.get_rng_state()
        draws.ahead(0, MOST_DRAWS, VOCAB)
        assert torch.equal(torch.get_rng_state(), before)
        plain(some_logits(1))
        behind = torch.get_rng_state()
        torch.set_rng_state(before)
        draws.take(0, VOCAB)
        assert torch.equal(torch.get_rng_state(), behind)


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.rand(1),
        lambda: torch.randn(3),
        lambda: torch.manual_seed(77),
        lambda: plain(some_logits(1, vocab=7)),
        lambda: [plain(row[None]) for row in some_logits(2 * MOST_DRAWS)],
    ],
    ids=["uniform", "normal", "seed", "another-width", "many-draws"],
)
def test_another_use_of_the_generator_in_between_counts_as_in_plain_decoding(use):
    logits = some_logits(60)
    texts = []
    for is_plain in (True, False):
        torch.manual_seed(4)
        draws, text = Draws(CPU), []
        for step in range(12):
            if not is_plain:
                draws.ahead(0, MOST_DRAWS, VOCAB)
            part = logits[3 * step : 3 * step + 3]
            text += [plain(row[None])[0] if is_plain else draw(draws, row) for row in part]
            use()
        texts.append(text)
    assert texts[0] == texts[1]


def test_a_use_between_two_draws_spoils_one_look_only():
    torch.manual_seed(5)
    draws = Draws(CPU)
    logits = some_logits(2)
    noise = draws.ahead(0, 2, VOCAB)
    wanted = foretold(logits[0], noise[0])
    assert draw(draws, logits[0]) == wanted
    torch.rand(1)
    assert_foretold(draws, logits)


def test_the_number_of_tokens_may_change():
    torch.manual_seed(6)
    draws = Draws(CPU)
    for width in (VOCAB, 7, 300, 300, VOCAB):
        draws.ahead(0, MOST_DRAWS, VOCAB)
        assert_foretold(draws, some_logits(3, width, width))


def test_no_more_draws_are_looked_at_than_are_worth_it():
    assert Draws(CPU).ahead(0, 1000, VOCAB).shape == (MOST_DRAWS, VOCAB)


@pytest.mark.parametrize("draws", [0, -1])
def test_no_draws_are_no_noise(draws):
    assert Draws(CPU).ahead(0, draws, VOCAB) is None


def test_draws_are_known_where_a_generator_can_be_copied():
    assert Draws.are_known(CPU)
    assert not Draws.are_known(torch.device("meta"))


def test_draws_that_are_no_race_are_not_known(monkeypatch):
    noise_module._is_race.cache_clear()
    monkeypatch.setattr(torch, "multinomial", lambda chances, **_: chances.argmin(-1, True))
    try:
        assert not Draws.are_known(CPU)
    finally:
        noise_module._is_race.cache_clear()


def test_a_chooser_knows_its_next_draw():
    temperature, ids = 1.6, torch.zeros((1, 1), dtype=torch.int64)
    chooser = NodeChooser(
        lambda _, raw: raw / temperature, sample=True, draws=Draws(CPU, 1, temperature)
    )
    assert chooser.noise(3) is None, "the size of the vocabulary is not known yet"
    logits = some_logits(40)
    chooser.begin(logits)
    for node in range(len(logits)):
        wanted = foretold(logits[node], chooser.noise(2)[0])
        assert chooser.choose(node, ids) == wanted


def test_a_chooser_without_known_draws_draws_all_the_same():
    ids, logits = torch.zeros((1, 1), dtype=torch.int64), some_logits(9)
    chooser = NodeChooser(None, sample=True)
    chooser.begin(logits)
    torch.manual_seed(8)
    wanted = [plain(row[None])[0] for row in logits]
    torch.manual_seed(8)
    assert [chooser.choose(node, ids) for node in range(len(logits))] == wanted
    assert chooser.noise(3) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_nothing_can_be_drawn_from_are_refused_in_the_librarys_words(bad):
    chooser = NodeChooser(None, sample=True, draws=Draws(CPU))
    chooser.begin(torch.full((1, VOCAB), bad))
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        chooser.choose(0, torch.zeros((1, 1), dtype=torch.int64))


def test_a_chooser_that_draws_nothing_has_no_noise():
    chooser = NodeChooser(None, sample=False, draws=Draws(CPU))
    chooser.begin(some_logits(2))
    chooser.choose(0, torch.zeros((1, 1), dtype=torch.int64))
    assert chooser.noise(3) is None
