"""The noise of the next draws, known before they are made.

A draw of one token is an argmax over probabilities divided by exponential noise, and the noise
comes from a generator whose state can be copied. So what chance will do next is no secret: only the
probabilities have to be guessed. A guess that takes the noise into account is right nearly as often
as a guess at what greedy decoding would choose.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["MOST_DRAWS", "NoiseAhead"]

#: Sampled text is hardly ever guessed right any deeper.
MOST_DRAWS = 8


class NoiseAhead:
    """Looks at what a device's default generator will give, and leaves it as it is.

    Parameters
    ----------
    device : torch.device
        Where tokens are drawn.
    temperature : float
        Of the probabilities that are drawn from.

    Notes
    -----
    Source: the exponential race, or Gumbel-max trick (Gumbel 1954; Maddison et al. 2014), with the
    same noise for draft and target (Daliri et al. 2024, drafter-invariant speculative decoding).
    Departure: there draft and target both draw; here nothing but the noise is shared, and it
    weighs guesses of any kind. A caller who uses the generator in between makes the noise another
    one, and some guesses wrong; nothing else.
    """

    def __init__(self, device: torch.device, temperature: float = 1.0) -> None:
        self._source = _default_generator(device)
        self._own = None if self._source is None else torch.Generator(device)
        self._device = device
        self._temperature = temperature
        self._states: deque[Tensor] = deque()  # of the generator before each draw looked at
        self._noise = np.empty((0, 0), np.float32)
        self._first = 0  # row of the noise of the next draw

    def look(self, draws: int, width: int) -> NDArray[np.float32] | None:
        """Return the noise of the next draws from ``width`` tokens, float32, [draws, width].

        To the power of the temperature: then it belongs to probabilities at temperature 1, for
        ``p ** (1 / t) / noise`` is largest where ``p / noise ** t`` is. At most :data:`MOST_DRAWS`;
        None where the generator of the device cannot be copied. Holds until the next call.
        """
        draws = min(draws, MOST_DRAWS)
        if self._source is None or self._own is None or draws < 1:
            return None
        if self._noise.shape[1] != width:
            self._noise = np.empty((4 * MOST_DRAWS, width), np.float32)
            self._states.clear()
        self._drop_made(self._source.get_state())
        while len(self._states) < draws:
            self._look_at_one(width)
        return self._noise[self._first : self._first + draws]

    def _drop_made(self, state: Tensor) -> None:
        """Forget draws that were made since; all of them if others were made, too."""
        assert self._own is not None
        while self._states and not torch.equal(self._states[0], state):
            self._states.popleft()
            self._first += 1
        if not self._states:
            self._first = 0
            self._own.set_state(state)

    def _look_at_one(self, width: int) -> None:
        assert self._own is not None
        place = self._first + len(self._states)
        if place == len(self._noise):
            self._noise[: len(self._states)] = self._noise[self._first :]
            self._first, place = 0, len(self._states)
        self._states.append(self._own.get_state())
        noise = torch.empty((1, width), dtype=torch.float32, device=self._device)
        noise.exponential_(generator=self._own)
        self._noise[place] = noise.pow_(self._temperature)[0].cpu().numpy()


def _default_generator(device: torch.device) -> torch.Generator | None:
    """Return the generator that draws on a device use, if it is of a kind that can be copied."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator: torch.Generator = torch.cuda.default_generators[index]
        return generator
    return None
