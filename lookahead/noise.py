"""The noise of a call's draws: made in plain's order, and known before it is needed.

A draw of one token is an argmax over probabilities divided by exponential noise. In a batch, plain
decoding draws the noise of a step for all rows at once; rows that run at different speeds then use
the same noise at different times. And the noise comes from a generator whose state can be copied,
so what chance will do next is no secret: only the probabilities have to be guessed. A guess that
takes the noise into account is right nearly as often as a guess at what greedy decoding would
choose.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["MOST_DRAWS", "Draws"]

#: Sampled text is hardly ever guessed right any deeper.
MOST_DRAWS = 8
#: Bytes of noise that rows of a batch which run ahead may leave to the others; what is more is
#: drawn again when it is needed.
MOST_KEPT = 64 << 20


@dataclass
class _Step:
    """One draw for all rows.

    Parameters
    ----------
    before, after : Tensor
        States of the generator.
    width : int
        Size of the vocabulary that is drawn from.
    noise : Tensor, float32, [rows, vocab], or None
        None where it was let go of.
    lifted : dict of int to ndarray
        The noise of a row, to the power of the temperature.
    """

    before: Tensor
    after: Tensor
    width: int
    noise: Tensor | None
    lifted: dict[int, NDArray[np.float32]] = field(default_factory=dict)


class Draws:
    """The draws of one call, from the default generator of a device.

    Parameters
    ----------
    device : torch.device
        Where tokens are drawn; see :meth:`are_known`.
    num_rows : int
        Rows of the batch.
    temperature : float
        Of the probabilities that are drawn from, for :meth:`ahead`.

    Notes
    -----
    Source: the exponential race, or Gumbel-max trick (Gumbel 1954; Maddison et al. 2014), with the
    same noise for draft and target (Daliri et al. 2024, drafter-invariant speculative decoding).
    Departure: there draft and target both draw; here nothing but the noise is shared, and it
    weighs guesses of any kind. A caller who uses the generator in between makes the noise another
    one, as in plain decoding, and some guesses wrong.
    """

    def __init__(self, device: torch.device, num_rows: int = 1, temperature: float = 1.0) -> None:
        source = _default_generator(device)
        assert source is not None
        self._source = source
        self._own = torch.Generator(device)
        self._device = device
        self._num_rows = num_rows
        self._temperature = temperature
        self._taken: dict[int, int] = dict.fromkeys(range(num_rows), 0)  # draws, of live rows
        self._first = 0  # draws that every live row has taken
        self._made: deque[_Step] = deque()  # drawn for good, from the first on
        self._ahead: deque[_Step] = deque()  # looked at, not drawn yet

    @staticmethod
    def are_known(device: torch.device) -> bool:
        """Return whether draws on a device can be foretold, by an example."""
        return _default_generator(device) is not None and _is_race(device.type)

    def take(self, row: int, width: int) -> Tensor:
        """Return the noise of a row's next draw from ``width`` tokens, float32, [1, width].

        Probabilities divided by it are largest at the token that plain decoding draws. The first
        row to get to a step draws for all of them, and leaves the generator as plain leaves it.
        """
        place = self._taken[row] - self._first
        self._taken[row] += 1
        if place == len(self._made):
            self._make(width)
        noise = self._noise_of(self._made[place])[row : row + 1]
        self._let_go()
        return noise

    def ahead(self, row: int, draws: int, width: int) -> NDArray[np.float32] | None:
        """Return the noise of a row's next draws, float32, [draws, width]; None if none are asked.

        To the power of the temperature: then it belongs to probabilities at temperature 1, for
        ``p ** (1 / t) / noise`` is largest where ``p / noise ** t`` is. At most
        :data:`MOST_DRAWS`. The generator is left as it is.
        """
        draws = min(draws, MOST_DRAWS)
        if draws < 1:
            return None
        place = self._taken[row] - self._first
        self._drop_stale(width)
        while len(self._made) + len(self._ahead) < place + draws:
            self._ahead.append(self._look(width))
        steps = islice(chain(self._made, self._ahead), place, place + draws)
        return np.stack(list(self._lifted(steps, row)))

    def finish(self, row: int) -> None:
        """Say that a row draws no more."""
        self._taken.pop(row, None)
        self._let_go()

    def _make(self, width: int) -> None:
        """Draw the next step for good."""
        self._drop_stale(width)
        step = self._ahead.popleft() if self._ahead else self._look(width)
        self._source.set_state(step.after)
        self._made.append(step)

    def _look(self, width: int) -> _Step:
        """Find out what the generator will give behind all that is known."""
        before = self._ahead[-1].after if self._ahead else self._source.get_state()
        noise = self._drawn(before, width)
        return _Step(before, self._own.get_state(), width, noise)

    def _drawn(self, state: Tensor, width: int) -> Tensor:
        self._own.set_state(state)
        noise = torch.empty((self._num_rows, width), dtype=torch.float32, device=self._device)
        return noise.exponential_(generator=self._own)

    def _drop_stale(self, width: int) -> None:
        """Forget what was looked at and is not what comes next: others used the generator, too."""
        if not self._ahead:
            return
        state = self._source.get_state()
        while self._ahead and not (
            self._ahead[0].width == width and torch.equal(self._ahead[0].before, state)
        ):
            self._ahead.popleft()

    def _lifted(self, steps: Iterator[_Step], row: int) -> Iterator[NDArray[np.float32]]:
        for step in steps:
            if row not in step.lifted:
                noise = self._noise_of(step)[row]
                step.lifted[row] = noise.pow(self._temperature).cpu().numpy()
            yield step.lifted[row]

    def _noise_of(self, step: _Step) -> Tensor:
        """Return the noise of a step, drawn again where it was let go of."""
        if step.noise is None:
            step.noise = self._drawn(step.before, step.width)
        return step.noise

    def _let_go(self) -> None:
        """Forget steps that nobody needs any more, and noise that is needed much later."""
        needed = min(self._taken.values(), default=self._first + len(self._made))
        while self._first < needed:
            self._made.popleft()
            self._first += 1
        if not self._made:
            return
        most = max(1, MOST_KEPT // (4 * self._num_rows * self._made[0].width))
        for step in islice(self._made, most, None):
            step.noise = None
            step.lifted.clear()


def _default_generator(device: torch.device) -> torch.Generator | None:
    """Return the generator that draws on a device use, if it is of a kind that can be copied."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator: torch.Generator = torch.cuda.default_generators[index]
        return generator
    return None


@functools.cache
def _is_race(kind: str) -> bool:
    """Return whether a draw on this kind of device is the race that it is taken for here."""
    generator = torch.Generator(kind)
    chances = torch.rand((3, 57), generator=generator.manual_seed(1), device=kind)
    drawn = torch.multinomial(chances, num_samples=1, generator=generator.manual_seed(2))
    noise = torch.empty_like(chances).exponential_(generator=generator.manual_seed(2))
    return torch.equal(drawn[:, 0], (chances / noise).argmax(dim=-1))
