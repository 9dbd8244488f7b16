"""How wide the lookahead window should be now, 0 included.

Weighs what a row costs on this machine against what the window's n-grams earned lately. Where they
do not pay it looks again rarely, and ever more rarely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lookahead.window import most_rows

__all__ = ["NGRAM_SIZE", "WIDTHS", "WindowChooser", "most_window_rows"]

#: Length of the n-grams where the width is chosen. Beside other sources 3 finds as much as the
#: paper's 5, with half the rows (docs/log.md).
NGRAM_SIZE: Final = 3

#: Widths to choose from, and the tokens a step that each is hoped to earn besides other sources:
#: a little more than was measured (docs/log.md), so that it is tried where rows are nearly free.
WIDTHS: Final[Mapping[int, float]] = {4: 0.10, 7: 0.12, 15: 0.15}

#: Steps for which a choice stands, and for which a window that did not pay rests at first and at
#: most.
SPELL, FIRST_REST, LONGEST_REST = 32, 128, 8192

#: Hoped-for tokens that the hope counts as, against those that were earned; how fast both fade.
TRUST, FADE = 4.0, 0.99

#: Least gain for which a window is run: its bookkeeping, too, takes time.
LEAST_GAIN = 1.01


def most_window_rows(window: tuple[int, int, int] | str | int | None) -> int:
    """Return the most rows of a pass that a window of this setting can have."""
    if isinstance(window, tuple):
        return most_rows(window[0], window[1])
    return most_rows(max(WIDTHS), NGRAM_SIZE) if window else 0


class WindowChooser:
    """Chooses the width of the window, step by step; shared by the sequences of a model.

    Parameters
    ----------
    widths : mapping of int to float
        Widths to choose from, and the tokens a step that each is hoped to earn.

    Notes
    -----
    What is learnt is one number, earned over hoped for, which holds for all widths: a narrow window
    tells about a wide one. Several threads may share a chooser: an update may then be lost, which
    costs nothing but a count.
    """

    def __init__(self, widths: Mapping[int, float] = WIDTHS) -> None:
        self._widths = dict(widths)
        self._columns = 0
        self._left = 0
        self._rest = FIRST_REST
        self._hoped = 0.0
        self._earned = 0.0
        self._others = 1.0  # tokens a step without the window's

    def choose(self, costs: NDArray[np.float64]) -> int:
        """Return the number of columns for the next step; 0 for no window.

        Parameters
        ----------
        costs : ndarray, float64, [rows + 1]
            Time of the pass with so many rows more, relative to the pass without them.
        """
        if self._left > 0:
            self._left -= 1
            return self._columns
        best = self._best(costs)
        self._left = SPELL - 1
        if self._columns and not best:
            # It was tried and does not pay: the next trial starts with fresh hope, later.
            self._left = self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
            self._hoped = self._earned = 0.0
        elif self._columns and best:
            self._rest = FIRST_REST
        self._columns = best
        return best

    def learn(self, columns: int, gained: int, emitted: int) -> None:
        """Take in one step.

        Parameters
        ----------
        columns : int
            Width of the window that ran and was full; 0 where none was.
        gained : int
            Tokens that only the window's n-grams gave.
        emitted : int
            All tokens of the step.
        """
        self._others += (emitted - gained - self._others) * (1 - FADE)
        if columns:
            self._hoped = FADE * self._hoped + self._widths[columns]
            self._earned = FADE * self._earned + gained

    def _best(self, costs: NDArray[np.float64]) -> int:
        """Return the width with the most tokens for the time."""
        trust = (self._earned + TRUST * self._typical) / (self._hoped + TRUST * self._typical)
        best, most = 0, LEAST_GAIN * self._others
        for columns, hope in self._widths.items():
            rows = most_rows(columns, NGRAM_SIZE)
            if rows >= len(costs):
                continue
            worth = (self._others + trust * hope) / float(costs[rows])
            if worth > most:
                best, most = columns, worth
        return best

    @property
    def _typical(self) -> float:
        return sum(self._widths.values()) / len(self._widths)
