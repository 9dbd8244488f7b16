"""Whether drafting pays here and now, and when to look again where it does not."""

from __future__ import annotations

__all__ = ["Pace", "Trust"]

#: Weight of the past in sums over steps: about the last ten count.
MEMORY = 0.9
#: Expected and accepted tokens that trust begins with.
CREDIT = 2.0
#: Drafted steps after which a gain is believed, and the gain below which drafting rests.
FEWEST_STEPS, LEAST_GAIN = 4, 1.0
#: Steps of the first rest and of the longest one.
FIRST_REST, LONGEST_REST = 6, 96


class Trust:
    """How much of what trees promised lately came true.

    Calibration learns how often each kind of guess is right, many kinds and slowly. Text of a new
    sort is noticed here within a few steps, for all kinds at once.
    """

    def __init__(self) -> None:
        self._promised = self._accepted = CREDIT

    @property
    def share(self) -> float:
        """Accepted nodes by those that probabilities promised, at most 1."""
        return min(1.0, self._accepted / self._promised)

    def learn(self, promised: float, accepted: int) -> None:
        """Take in a tree: the sum of its probabilities, and how many nodes were accepted."""
        if promised > 0:
            self._promised = MEMORY * self._promised + promised
            self._accepted = MEMORY * self._accepted + accepted


class Pace:
    """Weighs the tokens of drafted steps against the time of plain ones.

    Where they do not pay, drafting rests for a number of steps that doubles each time, and is then
    tried again for a few.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._tokens = self._seconds = 0.0
        self._rest = 0
        self._next_rest = FIRST_REST

    @property
    def is_resting(self) -> bool:
        """Whether the next step is to be plain."""
        return self._rest > 0

    def learn(self, tokens: float, seconds: float, plain_s: float | None) -> None:
        """Take in a step.

        Parameters
        ----------
        tokens : float
            Emitted by each sequence.
        seconds : float
            Of the whole step, drafting and learning included.
        plain_s : float or None
            Expected time of a plain step; None if it is not known yet.
        """
        if self._rest > 0:
            self._rest -= 1
            return
        self._steps += 1
        self._tokens = MEMORY * self._tokens + tokens
        self._seconds = MEMORY * self._seconds + seconds
        if plain_s is None or self._steps < FEWEST_STEPS:
            return
        if self._tokens * plain_s < LEAST_GAIN * self._seconds:
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, LONGEST_REST)
            self._steps, self._tokens, self._seconds = 0, 0.0, 0.0
        elif self._steps >= 4 * FEWEST_STEPS:
            self._next_rest = FIRST_REST
