"""Guesses out of the Jacobi lookahead window: n-grams of the target's own, found ahead of the text.

The window is run along with each pass and makes an n-gram a column; a guess is an n-gram that
starts with the last committed token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from lookahead.drafters.window_choice import WindowChooser
from lookahead.outcome import Outcome
from lookahead.tree import ROOT, DraftTree
from lookahead.window import LookaheadWindow, WindowRows

__all__ = ["GuessStore", "WindowDrafter"]

#: First tokens that a store keeps guesses for; the one least recently renewed goes.
MAX_KEYS = 16_384

#: How often a guess is right where the ones before it on its path were, by its place: the first
#: token of the newest guess, of an older one, the second token of any, a later one, and one behind
#: a whole n-gram. Calibration counts each of the five on its own.
NEWEST, OLDER, SECOND, LATER, CHAINED = 0.27, 0.15, 0.45, 0.67, 0.07

#: So many guesses, the most recent ones, go on where their last token is the first of an n-gram.
CHAINED_GUESSES = 2


class GuessStore:
    """The most recent n-grams by their first token.

    Parameters
    ----------
    num_guesses : int
        Most n-grams of one first token (G of the paper); the oldest goes.
    """

    def __init__(self, num_guesses: int) -> None:
        self._num_guesses = num_guesses
        self._guesses: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._guesses.values()))

    def add(self, ngram: Sequence[int]) -> None:
        """Take in an n-gram; one that is there already becomes the most recent."""
        key, guess = ngram[0], tuple(ngram[1:])
        guesses = self._guesses.setdefault(key, OrderedDict())
        guesses[guess] = None
        guesses.move_to_end(guess)
        if len(guesses) > self._num_guesses:
            guesses.popitem(last=False)
        self._guesses.move_to_end(key)
        if len(self._guesses) > MAX_KEYS:
            self._guesses.popitem(last=False)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Return what may follow a token, most recent first."""
        return list(reversed(self._guesses.get(token, ())))


class WindowDrafter:
    """Runs a window ahead of one sequence, and offers its n-grams behind the last token.

    Parameters
    ----------
    num_columns : int or WindowChooser
        Columns of the window, or what chooses them anew while running.
    ngram_size, num_guesses : int
        Length of the n-grams, first token included, and most guesses behind one token.

    Notes
    -----
    Source: Fu et al. 2024 (Lookahead Decoding), sections 3.2 and 3.3.
    """

    name = "window"

    def __init__(self, num_columns: int | WindowChooser, ngram_size: int, num_guesses: int) -> None:
        self._num_columns = num_columns
        self._ngram_size = ngram_size
        self._store = GuessStore(num_guesses)
        self._window: LookaheadWindow | None = None
        self._columns_now = 0

    def draft(self, context: list[int], max_nodes: int) -> DraftTree | None:
        """Return the guesses behind the last token, and behind the most recent of them more."""
        guesses = self._store.after(context[-1])
        if not guesses or max_nodes < 1:
            return None
        tokens, parents, shares = [context[-1]], [ROOT], [1.0]
        nodes: dict[tuple[int, ...], int] = {(): ROOT}
        for guess, chained in self._paths(guesses):
            for depth, token in enumerate(guess):
                path = guess[: depth + 1]
                if path in nodes:
                    continue
                share = OLDER if len(nodes) > 1 else NEWEST
                if depth:
                    share = SECOND if depth == 1 else LATER
                if depth >= chained:
                    share = CHAINED if depth == chained else share
                nodes[path] = len(tokens)
                tokens.append(token)
                parents.append(nodes[path[:-1]])
                shares.append(share * shares[parents[-1]])
        return DraftTree.from_parents(tokens, parents, shares)

    def rows(
        self, context: list[int], max_offset: int | None, costs: NDArray[np.float64] | None
    ) -> WindowRows | None:
        """Return the window's rows for the next pass.

        Parameters
        ----------
        context : list of int
            Committed tokens.
        max_offset : int or None
            No row stands farther behind the last token than this.
        costs : ndarray, float64, [rows + 1], or None
            Relative time of the pass with so many rows more, for a width that is chosen.

        Returns
        -------
        WindowRows or None
            None where no window is to be run.
        """
        columns = self._num_columns
        if isinstance(columns, WindowChooser):
            columns = 0 if costs is None else columns.choose(costs)
        if columns != self._columns_now:
            self._columns_now = columns
            self._window = None
        if not columns or not context:
            return None
        if self._window is None:
            self._window = LookaheadWindow(columns, self._ngram_size, context)
        return self._window.rows(max_offset)

    def learn(self, outcome: Outcome) -> None:
        """Take in what the window found, and move it on."""
        if self._window is None or outcome.window_tokens is None:
            return
        root = int(outcome.tree.tokens[ROOT])
        for ngram in self._window.advance(root, outcome.window_tokens):
            self._store.add(ngram)

    def earned(self, gained: int, emitted: int) -> None:
        """Take in what the guesses were worth in a step.

        Parameters
        ----------
        gained : int
            Accepted tokens that would not have been there without this source.
        emitted : int
            All tokens of the step.
        """
        if isinstance(self._num_columns, WindowChooser):
            is_full = self._window is not None and self._window.is_full
            self._num_columns.learn(self._columns_now if is_full else 0, gained, emitted)

    def _paths(self, guesses: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], int]]:
        """Return the guesses, each with where its own n-gram ends; those with more behind last."""
        plain = [(guess, len(guess)) for guess in guesses]
        longer = [
            (guess + more, len(guess))
            for guess in guesses[:CHAINED_GUESSES]
            for more in islice(self._store.after(guess[-1]), 1)
        ]
        return plain + longer
