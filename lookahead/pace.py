"""Whether drafting pays here and now, and when to look again where it does not."""

from __future__ import annotations

__all__ = ["MEMORY", "Pace", "Trust"]

#: Weight of the past in sums over steps: about the last ten count.
MEMORY = 0.9
#: Expected and accepted tokens that trust begins with.
CREDIT = 5.0
#: Share of all time that drafting may lose; in plain steps: what it may lose at first, the most
#: that gains of the past are worth to it, and what has to come together before it is tried again.
SHARE, FIRST_ALLOWANCE, MOST_SAVED, COST_OF_TRYING = 0.02, 2.0, 4.0, 0.25
#: Length of an answer, in tokens, where it is not known or said to be longer.
EXPECTED_TOKENS = 100


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
    """Keeps account of what drafting won and lost, and lets it rest where it has lost too much.

    A step that emits *n* tokens in the time of *m* plain steps wins *n - m* of them. Losing is
    allowed in advance, by a small share of all time spent, for what pays is only known once it is
    tried. Where that is used up, steps are plain until as much has come together again as a try
    may cost: text that cannot be guessed costs this share and no more.

    Parameters
    ----------
    spare : float
        Share of all time that is saved however little is guessed, and may be lost, too.
    """

    def __init__(self, spare: float = 0.0) -> None:
        self._share = SHARE + spare
        self._first = FIRST_ALLOWANCE * self._share / SHARE
        self._most = max(MOST_SAVED, self._first)
        self._account = self._first  # in plain steps
        self._is_resting = False
        self._has_drafted = False

    @property
    def is_resting(self) -> bool:
        """Whether the next step is to be plain."""
        return self._is_resting

    def begin(self, prefill_s: float, tokens_left: int | None, plain_s: float | None) -> None:
        """Allow a call to lose a share of its expected time."""
        steps = float(EXPECTED_TOKENS if tokens_left is None else min(tokens_left, EXPECTED_TOKENS))
        if plain_s is not None:
            steps += prefill_s / plain_s
        self._account = min(self._first, self._share * steps)

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
        if plain_s is None:
            return
        steps = seconds / plain_s
        if not self._is_resting and self._has_drafted:
            self._account += tokens - steps
        # The first one reads the prompt, too, which says nothing of those to come.
        self._has_drafted = self._has_drafted or not self._is_resting
        self._account = min(self._account + self._share * steps, self._most)
        if self._account < 0:
            self._is_resting = True
        elif self._account >= COST_OF_TRYING:
            self._is_resting = False
