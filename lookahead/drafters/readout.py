"""Candidates read out of predicted hidden states, with as few rows of the output layer as will do.

The output layer is the dear part of a guess: one row of a vocabulary of 49,152 at width 576 reads
57 MB. Nearly all tokens that a text goes on with are among a few thousand, so the layer is read for
those only: the tokens of the text, the target's own candidates, and frequent tokens to begin with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lookahead.drafters.base import Candidates
from lookahead.drafters.rows import top_rows

__all__ = ["ModelEnds", "Readout"]


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
        self.add(first)
        if self._size < self._limit:
            self._kept, self._next = self._size, 0

    def __len__(self) -> int:
        return self._size

    def add(self, tokens: Iterable[int]) -> None:
        """Take tokens into the shortlist."""
        wanted = np.unique(np.fromiter(tokens, dtype=np.int64))
        wanted = wanted[(wanted >= 0) & (wanted < self._ends.vocab)]
        room = self._limit - self._kept
        new = wanted[self._place[wanted] < 0][:room]
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
            self._weight = weight.new_zeros((self._limit, weight.shape[1]))
            self._bias = None if bias is None else bias.new_zeros(self._limit)
        where = torch.from_numpy(places).to(weight.device)
        self._weight[where] = weight
        if self._bias is not None and bias is not None:
            self._bias[where] = bias

    def top(self, hidden: Tensor, k: int) -> Candidates:
        """Return the ``k`` most probable tokens behind each hidden state, float, [rows, width]."""
        assert self._weight is not None
        weight = self._weight[: self._size]
        logits = hidden.to(weight) @ weight.T
        if self._bias is not None:
            logits += self._bias[: self._size]
        places, probabilities = top_rows(logits, min(k, self._size))
        tokens = np.where(places < 0, -1, self._tokens[places])
        return Candidates(tokens.astype(np.int32), probabilities)
