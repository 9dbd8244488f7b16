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

from lookahead.noise import Draws

__all__ = ["NodeChooser", "largest"]

Processor = Callable[[Tensor, Tensor], Tensor]


class NodeChooser:
    """Chooses by argmax or by one draw, after the caller's processors.

    Parameters
    ----------
    process : callable or None
        ``process(ids, logits) -> scores``, both [1, ...]; None where there is nothing to do.
    sample : bool
        Draw from the scores, with the noise that plain decoding draws with: the same seed gives
        the same text.
    draws : Draws or None
        The draws of the call. Without it, as on a device whose draws cannot be foretold, every
        token is drawn by itself: right for a batch of one only.
    row : int
        Row of the batch.
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
        draws: Draws | None = None,
        row: int = 0,
        scores: list[Tensor] | None = None,
        logits: list[Tensor] | None = None,
    ) -> None:
        self._process = process
        self._sample = sample
        self._draws = draws if sample else None
        self._row = row
        self._scores = scores
        self._logits = logits
        self._rows: Tensor | None = None
        self._greedy: list[int] | None = None
        self._one_copy = process is None and not sample and scores is None and logits is None

    def begin(self, logits: Tensor) -> None:
        """Take the logits of all nodes of one pass, float, [nodes + 1, vocab]."""
        self._rows = logits
        self._greedy = largest(logits) if self._one_copy else None

    def noise(self, draws: int) -> NDArray[np.float32] | None:
        """Return what the next draws will be made with, float32, [draws, vocab].

        The token with the largest quotient of probability, before any processor, and this is drawn.
        At most so many draws as are worth it; None where nothing is drawn, or can be known.
        """
        if self._draws is None or self._rows is None:
            return None
        return self._draws.ahead(self._row, draws, self._rows.shape[-1])

    def finish(self) -> None:
        """Say that nothing more will be chosen."""
        if self._draws is not None:
            self._draws.finish(self._row)

    def choose(self, node: int, ids: Tensor) -> int:
        """Return the target's token after ``node``; ``ids``, int64, [1, tokens], came before."""
        if self._greedy is not None:
            return self._greedy[node]
        scores = self.scores_at(node, ids)
        if self._sample:
            return self._draw(torch.softmax(scores, dim=-1))
        return largest(scores)[0]

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

    def _draw(self, chances: Tensor) -> int:
        """Draw as ``torch.multinomial`` does; ``chances``, float32, [1, vocab], may add up to 1."""
        if self._draws is None or not torch.isfinite(chances.sum()):
            # What cannot be drawn from is refused in the library's own words.
            return int(torch.multinomial(chances, num_samples=1)[0, 0])
        noise = self._draws.take(self._row, chances.shape[-1])
        return largest(chances / noise)[0]


def largest(rows: Tensor) -> list[int]:
    """Return the place of the largest number of each row, the first of equals, as argmax does.

    Parameters
    ----------
    rows : Tensor, float, [rows, vocab]
        NaN counts as the largest.
    """
    if rows.device.type == "cpu" and rows.dtype == torch.float32:
        # A sixth of the time of torch's, and the same also for NaN and equals.
        places: list[int] = rows.detach().numpy().argmax(axis=-1).tolist()
    else:
        places = rows.argmax(dim=-1).tolist()
    return places
