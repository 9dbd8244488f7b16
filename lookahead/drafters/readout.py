"""Candidates read out of predicted hidden states, with as few rows of the output layer as will do.

The output layer is the dear part of a guess: one row of a vocabulary of 49,152 at width 576 reads
57 MB. Nearly all tokens that a text goes on with are among a few thousand, so the layer is read for
those only: the tokens of the text, the target's own candidates, and frequent tokens to begin with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.drafters.base import Candidates
from lookahead.drafters.products import products, without_autocast
from lookahead.drafters.rows import top_rows
from ngram_pool.features import LEAST_NOISE, SHARPNESS

__all__ = ["ModelEnds", "Readout"]

#: Additions that wait to be taken in, at most.
MOST_WAITING = 64
#: The matrix is read up to a multiple of so many tokens, and for one row or for so many at least:
#: oneDNN prepares itself for each shape.
STEP, FEW = 512, 8
#: Tokens outside the shortlist that are read for one draw.
LUCKY = 1024
#: Draws whose lucky tokens are kept: as many as are asked about in a step, and the next.
MOST_LUCK = 6


class ModelEnds(Protocol):
    """The two ends of a target: what tokens become, and what hidden states become."""

    @property
    def width(self) -> int:
        """Size of what the output layer takes."""

    @property
    def embedding_width(self) -> int:
        """Size of an embedding."""

    @property
    def vocab(self) -> int:
        """Number of tokens that may be drafted."""

    @property
    def dtype_of_guesses(self) -> torch.dtype:
        """In which guesses are computed fastest: they need no more than 16 bits."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens, int64, [rows] -> float, [rows, embedding_width]."""

    def output_rows(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return rows of the output layer, float32, [tokens, width], and their bias, [tokens]."""


class Readout:
    """A part of the output layer: a shortlist that grows with the text.

    Parameters
    ----------
    ends : ModelEnds
    first : iterable of int
        Tokens to begin with.
    limit : int
        Most tokens of the shortlist; the oldest of those that were added later go.
    """

    def __init__(self, ends: ModelEnds, first: Iterable[int], limit: int = 4096) -> None:
        self._ends = ends
        self._limit = min(limit, ends.vocab)
        self._place = np.full(ends.vocab, -1, dtype=np.int32)
        self._tokens = np.zeros(self._limit, dtype=np.int64)
        self._size = 0
        self._kept = self._next = 0
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._waiting: list[NDArray[np.int64]] = []  # tokens that are taken in when it is read
        self._frequency = 1.0 / (np.arange(ends.vocab, dtype=np.float32) + 1000.0)
        self._luck: dict[bytes, tuple[NDArray[np.int64], Tensor, Tensor | None]] = {}
        self.add(first)
        self._take_in()
        if self._size < self._limit:
            self._kept, self._next = self._size, 0

    def __len__(self) -> int:
        self._take_in()
        return self._size

    def add(self, tokens: Iterable[int]) -> None:
        """Take tokens into the shortlist."""
        given = np.asarray(tokens if isinstance(tokens, np.ndarray) else list(tokens), np.int64)
        self._waiting.append(given)
        if len(self._waiting) >= MOST_WAITING:
            self._take_in()

    def _take_in(self) -> None:
        """Put what waits into the shortlist: once for all that came since it was read last."""
        if not self._waiting:
            return
        room = self._limit - self._kept
        parts = [self._unknown(given)[:room] for given in self._waiting]
        self._waiting.clear()
        together = np.concatenate(parts)
        _, first = np.unique(together, return_index=True)
        new = together[np.sort(first)][-room:]  # the newest
        if not len(new):
            return
        places = self._kept + (self._next + np.arange(len(new))) % room
        self._place[self._tokens[places[places < self._size]]] = -1
        self._size = max(self._size, int(places.max()) + 1)
        self._next = (self._next + len(new)) % room
        self._tokens[places] = new
        self._place[new] = places
        weight, bias = self._ends.output_rows(torch.from_numpy(new))
        if self._weight is None:
            size = (self._limit, weight.shape[1])
            self._weight = weight.new_zeros(size, dtype=self._ends.dtype_of_guesses)
            self._bias = None if bias is None else bias.new_zeros(self._limit)
        where = torch.from_numpy(places).to(weight.device)
        self._weight[where] = weight.to(self._weight)
        if self._bias is not None and bias is not None:
            self._bias[where] = bias

    def _unknown(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens that are not in the shortlist, once each."""
        wanted = tokens[(tokens >= 0) & (tokens < self._ends.vocab)]
        return np.unique(wanted[self._place[wanted] < 0])

    @without_autocast
    def top(self, hidden: Tensor, k: int) -> Candidates:
        """Return the ``k`` most probable tokens behind each hidden state, float, [rows, width]."""
        self._take_in()
        places, probabilities = top_rows(self._logits(hidden), min(k, self._size))
        tokens = np.where(places < 0, -1, self._tokens[places])
        return Candidates(tokens.astype(np.int32), probabilities)

    @without_autocast
    def likely_drawn(
        self,
        hidden: Tensor,
        k: int,
        noise: NDArray[np.float32] | None,
        depths: NDArray[np.integer[Any]],
    ) -> Candidates:
        """Return the ``k`` tokens that are most likely drawn behind each hidden state.

        Parameters
        ----------
        hidden : Tensor, float, [rows, width]
            Predicted hidden states.
        k : int
            Most tokens of a row.
        noise : ndarray, float32, [draws, vocab], or None
            What the next tokens are drawn with; None where nothing is drawn, or it is not known.
        depths : ndarray, int, [rows]
            Which draw comes behind each hidden state. Where it is not among those, the most
            probable tokens are returned.

        Notes
        -----
        The shortlist is joined by the tokens that this very draw favours: of the many improbable
        tokens one is drawn now and then, and it is one of little noise.
        """
        if noise is None:
            return self.top(hidden, k)
        tokens = np.full((len(depths), k), -1, np.int32)
        chances = np.zeros((len(depths), k), np.float32)
        for depth in set(depths.tolist()):
            rows = np.flatnonzero(depths == depth)
            states = hidden[torch.from_numpy(rows).to(hidden.device)]
            if depth >= len(noise):
                found = self.top(states, k)
            else:
                found = self._race(states, k, noise[depth])
            width = found.tokens.shape[1]
            tokens[rows, :width], chances[rows, :width] = found
        return Candidates(tokens, chances)

    def _race(self, hidden: Tensor, k: int, noise: NDArray[np.float32]) -> Candidates:
        self._take_in()
        lucky, weight, bias = self._lucky(noise)
        more = products(hidden, weight)
        if bias is not None:
            more += bias
        # What has come into the shortlist since runs there.
        more[:, torch.from_numpy(self._place[lucky] >= 0)] = -torch.inf
        logits = torch.cat([self._logits(hidden), more], dim=-1)
        tokens = np.concatenate([self._tokens[: self._size], lucky])
        # The logarithm of a token's speed is that of its probability less that of its noise.
        handicap = torch.from_numpy(np.log(np.maximum(noise[tokens], LEAST_NOISE)))
        speeds = torch.log_softmax(logits, dim=-1) - handicap.to(logits)
        shares, places = torch.softmax(SHARPNESS * speeds, dim=-1).topk(min(k, len(tokens)), -1)
        chances = shares.cpu().numpy()
        # Neither what runs in the shortlist nor, where a state is not finite, anything is named.
        runs = chances > 0.0
        found = np.where(runs, tokens[places.cpu().numpy()], -1)
        return Candidates(found.astype(np.int32), np.where(runs, chances, np.float32(0.0)))

    def _lucky(self, noise: NDArray[np.float32]) -> tuple[NDArray[np.int64], Tensor, Tensor | None]:
        """Return tokens outside the shortlist that a draw favours, and their output rows."""
        draw = noise[:4].tobytes()
        if draw not in self._luck:
            # Frequent ones have low ids: by Zipf's law, about one by their place.
            rates = self._frequency / np.maximum(noise[: self._ends.vocab], LEAST_NOISE)
            rates[self._place >= 0] = 0.0
            most = min(LUCKY, self._ends.vocab)
            tokens = np.argpartition(-rates, most - 1)[:most]
            while len(self._luck) >= MOST_LUCK:
                del self._luck[next(iter(self._luck))]
            self._luck[draw] = (tokens, *self._ends.output_rows(torch.from_numpy(tokens)))
        return self._luck[draw]

    def _logits(self, hidden: Tensor) -> Tensor:
        assert self._weight is not None
        size = min(-(-self._size // STEP) * STEP, self._limit)
        rows = len(hidden)
        if 1 < rows < FEW:
            hidden = torch.nn.functional.pad(hidden, (0, 0, 0, FEW - rows))
        logits = products(hidden, self._weight[:size])[:rows, : self._size]
        if self._bias is not None:
            logits = logits + self._bias[: self._size]
        return logits
