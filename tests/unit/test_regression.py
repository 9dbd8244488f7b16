"""The running regression against the closed form, solved at once in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from lookahead.drafters.regression import RunningRegression, sketch

WIDTH, OUT = 6, 5


def halves(rows, seed=0):
    """Inputs of the usual kind: two unit vectors each."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn((rows, 2, WIDTH), generator=generator)
    return normalize(parts, dim=-1).reshape(rows, 2 * WIDTH)


def some_outputs(rows, seed=0):
    return torch.randn((rows, OUT), generator=torch.Generator().manual_seed(seed + 1000))


def some_prior(seed=0):
    return torch.randn((2 * WIDTH + 1, OUT), generator=torch.Generator().manual_seed(seed + 2000))


def equally(noise, rows):
    return torch.full((len(rows),), noise)


def teach(regression, inputs, outputs, noise=1.0):
    regression.add(inputs, outputs, equally(noise, inputs))


def kernel(left, right):
    """By the definition, on halves."""
    (a, b), (c, d) = left.split(WIDTH, dim=-1), right.split(WIDTH, dim=-1)
    far = torch.cdist(a, c) ** 2 + torch.cdist(b, d) ** 2
    return 0.01 * (1 + 24**2 * (a @ c.T + b @ d.T)) + 20 * torch.exp(-0.7 * far)


class Direct:
    """Keeps all rows, forgets them by the same rule, and solves the whole system each time."""

    def __init__(self, prior=None, max_rows=1024):
        self.prior = None if prior is None else prior.double()
        self.max_rows = max_rows
        self.rows = []

    def add(self, inputs, outputs, noise):
        rows = zip(inputs, outputs, noise, strict=True)
        new = [(x.double(), y.double(), float(n)) for x, y, n in rows]
        new = new[-self.max_rows :]
        if len(self.rows) + len(new) > self.max_rows:
            kept = min(self.max_rows // 2, self.max_rows - len(new))
            self.rows = self.rows[-kept:] if kept else []
        self.rows += new

    def predict(self, inputs):
        inputs = inputs.double()
        expected = self._by_prior(inputs)
        if not self.rows:
            return expected
        seen = torch.stack([x for x, _, _ in self.rows])
        left = torch.stack([y for _, y, _ in self.rows]) - self._by_prior(seen)
        noise = torch.tensor([n for _, _, n in self.rows], dtype=torch.float64)
        weights = torch.linalg.solve(kernel(seen, seen) + torch.diag(noise), left)
        return expected + kernel(inputs, seen) @ weights

    def _by_prior(self, inputs):
        if self.prior is None:
            return torch.zeros((len(inputs), OUT), dtype=torch.float64)
        return inputs @ self.prior[:-1] + self.prior[-1]


def same(running, direct, seed=77, tolerance=1e-3):
    questions = halves(9, seed)
    torch.testing.assert_close(
        running.predict(questions).double(),
        direct.predict(questions),
        rtol=tolerance,
        atol=tolerance,
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    parts=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    noises=st.lists(st.sampled_from([0.1, 0.5, 1.0, 3.0]), min_size=8, max_size=8),
    max_rows=st.sampled_from([1, 2, 7, 16, 1000]),
    has_prior=st.booleans(),
)
def test_any_split_into_calls_gives_the_closed_form(parts, noises, max_rows, has_prior):
    prior = some_prior() if has_prior else None
    running, direct = RunningRegression(prior, max_rows), Direct(prior, max_rows)
    for seed, (rows, noise) in enumerate(zip(parts, noises, strict=False)):
        each = torch.full((rows,), noise)
        each[::2] *= 3
        for regression in (running, direct):
            regression.add(halves(rows, seed), some_outputs(rows, seed), each)
        assert running.num_rows == len(direct.rows) <= max_rows
    if has_prior or running.num_rows:
        same(running, direct)


def test_without_rows_the_prior_answers_alone():
    prior = some_prior()
    running = RunningRegression(prior)
    teach(running, halves(0), some_outputs(0))
    questions = halves(4, 5)
    torch.testing.assert_close(running.predict(questions), questions @ prior[:-1] + prior[-1])


@pytest.mark.parametrize("has_prior", [False, True])
def test_a_long_run_that_forgets_many_times_stays_the_closed_form(has_prior):
    prior = some_prior() if has_prior else None
    running, direct = RunningRegression(prior, 64), Direct(prior, 64)
    for step in range(150):
        rows, noise = 1 + step % 5, (1.0, 0.5)[step % 2]
        for regression in (running, direct):
            teach(regression, halves(rows, step), some_outputs(rows, step), noise)
    assert 32 <= running.num_rows <= 64
    same(running, direct)


def test_more_rows_than_it_remembers_leave_the_newest():
    running, direct = RunningRegression(max_rows=8), Direct()
    teach(running, halves(30), some_outputs(30))
    teach(direct, halves(30)[-8:], some_outputs(30)[-8:])
    assert running.num_rows == 8
    same(running, direct)


def test_less_noise_counts_more():
    running = RunningRegression()
    same_place = halves(1)
    high, low = torch.full((1, OUT), 1.0), torch.full((1, OUT), -1.0)
    teach(running, same_place, high, noise=0.1)
    teach(running, same_place, low, noise=1.0)
    assert (running.predict(same_place) > 0.5).all()
    again = RunningRegression()
    teach(again, same_place, high, noise=1.0)
    teach(again, same_place, low, noise=0.1)
    torch.testing.assert_close(again.predict(same_place), -running.predict(same_place))


def test_a_linear_map_is_found_far_from_all_rows():
    truth = some_prior(3)
    running = RunningRegression()
    for seed in range(6):
        inputs = halves(40, seed)
        teach(running, inputs, inputs @ truth[:-1], noise=0.05)
    questions = halves(20, 99)
    wanted = questions @ truth[:-1]
    assert (running.predict(questions) - wanted).norm() < 0.15 * wanted.norm()


@pytest.mark.parametrize("noise", [0.03, 1.0])
def test_one_row_over_and_over_is_its_own_mean(noise):
    running = RunningRegression(max_rows=600)
    inputs = halves(1).expand(50, -1)
    for _ in range(20):
        teach(running, inputs, torch.ones((50, OUT)), noise)
    predicted = running.predict(inputs[:1])
    torch.testing.assert_close(predicted, torch.ones((1, OUT)), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("noise", [0.03, 0.5])
def test_few_places_seen_many_times_in_many_calls_stay_the_closed_form(noise):
    """The hardest for rounding: nearly the same row again and again, as in a loop of text."""
    running, direct = RunningRegression(max_rows=400), Direct(max_rows=400)
    places, values = halves(8), some_outputs(8)
    for step in range(900):
        place = slice(step % 8, step % 8 + 1)
        for regression in (running, direct):
            teach(regression, places[place], values[place] + 0.01 * step % 3, noise)
    same(running, direct, tolerance=1e-2)
    torch.testing.assert_close(
        running.predict(places).double(), direct.predict(places), rtol=1e-2, atol=1e-2
    )


def test_zero_vectors_do_no_harm():
    half = halves(3).clone()
    half[:, :WIDTH] = 0
    inputs = torch.cat([torch.zeros((3, 2 * WIDTH)), half, halves(4, 2)])
    outputs = some_outputs(len(inputs))
    whole, single = RunningRegression(some_prior()), RunningRegression(some_prior())
    teach(whole, inputs, outputs)
    for row in range(len(inputs)):
        teach(single, inputs[row : row + 1], outputs[row : row + 1])
    questions = torch.cat([inputs[:4], halves(4, 9)])
    assert torch.isfinite(whole.predict(questions)).all()
    torch.testing.assert_close(
        single.predict(questions), whole.predict(questions), rtol=1e-3, atol=1e-3
    )


def test_what_was_handed_over_may_be_written_to_afterwards():
    running, direct = RunningRegression(), Direct()
    inputs, outputs = halves(5), some_outputs(5)
    teach(direct, inputs.clone(), outputs.clone())
    teach(running, inputs, outputs)
    inputs.zero_()
    outputs.zero_()
    same(running, direct)


def test_a_sketch_of_few_coordinates_is_what_it_is_made_of():
    inputs = halves(5)
    assert sketch(inputs, 2 * WIDTH) is inputs
    assert sketch(inputs, 100) is inputs


@pytest.mark.parametrize(("width", "size"), [(100, 40), (81, 40), (41, 40), (400, 399)])
def test_a_sketch_is_linear_the_same_every_time_and_leaves_global_random_numbers_alone(width, size):
    rows = torch.randn((4, width), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    wanted = torch.rand(2)
    torch.manual_seed(5)
    small = sketch(rows, size)
    assert torch.equal(torch.rand(2), wanted)
    assert small.shape == (4, size)
    assert torch.equal(sketch(rows, size), small)
    torch.testing.assert_close(sketch(rows[:1] + 2 * rows[1:2], size), small[:1] + 2 * small[1:2])
    assert sketch(rows.double(), size).dtype == torch.float64


def test_a_sketch_keeps_products_on_average():
    generator = torch.Generator().manual_seed(2)
    left = torch.randn((60, 1600), generator=generator)
    right = left + torch.randn((60, 1600), generator=generator)
    true = (left * right).sum(-1)
    found = (sketch(left, 400) * sketch(right, 400)).sum(-1)
    assert found.mean() == pytest.approx(float(true.mean()), rel=0.03)
    assert (found - true).abs().mean() < 0.1 * true.mean()


def test_a_prior_of_a_sketch_is_read_through_the_sketch():
    small = 7
    prior = torch.randn((small + 1, OUT), generator=torch.Generator().manual_seed(9))
    running = RunningRegression(prior)
    questions = halves(4, 5)
    by_prior = sketch(questions, small) @ prior[:-1] + prior[-1]
    torch.testing.assert_close(running.predict(questions), by_prior)
    inputs, outputs = halves(12), some_outputs(12)
    direct = Direct()
    teach(running, inputs, outputs)
    teach(direct, inputs, outputs - (sketch(inputs, small) @ prior[:-1] + prior[-1]))
    wanted = by_prior.double() + direct.predict(questions)
    torch.testing.assert_close(running.predict(questions).double(), wanted, rtol=1e-3, atol=1e-3)
