"""The target's own token at a node: exactly what plain decoding would have chosen there.

Logits processors are called on demand, once for each committed token and in order, so that those
with a state (grammars, penalties) see what they would see in plain decoding. Without processors
greedy choices of all nodes come over in one copy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.noise import NoiseAhead

__all__ = ["NodeChooser"]

Processor = Callable[[Tensor, Tensor], Tensor]


class NodeChooser:
    """Chooses by argmax or by one draw, after the caller's processors.

    Parameters
    ----------
    process : callable or None
        ``process(ids, logits) -> scores``, both [1, ...]; None where there is nothing to do.
    sample : bool
        Draw from the scores, with one draw of the shape that plain decoding makes, from the same
        generator and in the same order: the same seed gives the same text.
    temperature : float
        That of the processors, for :meth:`noise`; nothing is chosen by it.
    scores, logits : list of Tensor or None
        Where to keep processed scores and raw logits, float32, [1, vocab] each.

    Notes
    -----
    Source: Leviathan et al. 2023, section 2.3, for drafts that are point masses: the target's
    token is drawn without sight of the guesses, and descending on it accepts a guess exactly as
    often as rejection sampling would; guesses that were made with sight of the noise, more often.
    """

    def __init__(
        self,
        process: Processor | None,
        *,
        sample: bool,
        temperature: float = 1.0,
        scores: list[Tensor] | None = None,
        logits: list[Tensor] | None = None,
    ) -> None:
        self._process = process
        self._sample = sample
        self._temperature = temperature
        self._scores = scores
        self._logits = logits
        self._rows: Tensor | None = None
        self._greedy: list[int] | None = None
        self._noise: NoiseAhead | None = None
        self._one_copy = process is None and not sample and scores is None and logits is None

    def begin(self, logits: Tensor) -> None:
        """Take the logits of all nodes of one pass, float, [nodes + 1, vocab]."""
        self._rows = logits
        self._greedy = logits.argmax(dim=-1).tolist() if self._one_copy else None

    def noise(self, draws: int) -> NDArray[np.float32] | None:
        """Return what the next draws will be made with, float32, [draws, vocab].

        The token with the largest quotient of probability, before any processor, and this is drawn.
        At most so many draws as are worth it; None where nothing is drawn, or can be known.
        """
        if self._noise is None or self._rows is None:
            return None
        return self._noise.look(draws, self._rows.shape[-1])

    def choose(self, node: int, ids: Tensor) -> int:
        """Return the target's token after ``node``; ``ids``, int64, [1, tokens], came before."""
        if self._greedy is not None:
            return self._greedy[node]
        scores = self.scores_at(node, ids)
        if self._sample:
            if self._noise is None:
                self._noise = NoiseAhead(scores.device, self._temperature)
            chosen = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)
            return int(chosen[0, 0])
        return int(scores.argmax(dim=-1)[0])

    def scores_at(self, node: int, ids: Tensor) -> Tensor:
        """Return the scores after ``node``, float32, [1, vocab], and keep what is to be kept."""
        assert self._rows is not None
        # Processors may write into what they are given: they get a copy, float32 as in `generate`.
        raw = self._rows[node : node + 1].to(dtype=torch.float32, device=ids.device, copy=True)
        if self._logits is not None:
            self._logits.append(raw)
        scores = self._process(ids, raw) if self._process is not None else raw
        if self._scores is not None:
            self._scores.append(scores)
        return scores
