"""The state of one row of a call: its committed tokens, and what chooses the next one.

Nothing of it lives on the model, in a module or in a global, so two threads may decode with one
model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.budget import Plan
from lookahead.outcome import Outcome, PromptRows
from lookahead.tree import DraftTree
from lookahead.window import WindowRows

__all__ = ["Chooser", "Sequence", "TokenBuffer", "TreeDrafter"]


class TreeDrafter(Protocol):
    """Drafts the one tree of a sequence; see :class:`~lookahead.drafters.MergedDrafter`."""

    def begin(self, context: list[int], hidden: Tensor | None) -> None:
        """Take in the committed tokens of a new sequence.

        ``hidden``, float, [positions, width], is what the output layer would be given for the
        last positions before the last committed token; None where it is not known.
        """

    def recycle(self, rows_of: Callable[[int], Iterator[PromptRows]]) -> None:
        """Take in the target's candidates after the last so many positions, newest first.

        Parts that are not taken now may be taken later, as far as they are worth their time.
        """

    def draft(
        self,
        context: list[int],
        plan: Plan,
        max_depth: int,
        noise: NDArray[np.float32] | None = None,
    ) -> DraftTree:
        """Guess what comes after ``context``, spending what the plan allows.

        ``noise`` is what :meth:`Chooser.noise` says of the next draws.
        """

    def cut(self, max_nodes: int) -> DraftTree:
        """Return the tree that was drafted last with so many nodes at most."""

    def window(
        self, context: list[int], max_offset: int | None, costs: NDArray[np.float64] | None
    ) -> WindowRows | None:
        """Return the rows of the lookahead window for the next pass, if there is one.

        ``max_offset`` is the farthest place behind the last token; ``costs`` is the relative time
        of the pass with so many rows more, where the width depends on it.
        """

    def learn(self, outcome: Outcome) -> None:
        """See what became of the tree that was drafted last."""


class Chooser(Protocol):
    """Chooses the target's own token at a node, as plain decoding would."""

    def begin(self, logits: Tensor) -> None:
        """Take the logits of all nodes of one pass, float, [nodes + 1, vocab]."""

    def choose(self, node: int, ids: Tensor) -> int:
        """Return the token after ``node``; ``ids``, int64, [1, tokens], is what came before it."""

    def scores_at(self, node: int, ids: Tensor) -> Tensor:
        """Return the scores after ``node`` without choosing, float32, [1, vocab]."""

    def noise(self, draws: int) -> NDArray[np.float32] | None:
        """Return what the next draws will be made with, float32, [draws, vocab].

        The token with the largest quotient of probability, before any processor, and this is drawn.
        Fewer draws may be returned; None where nothing is drawn, or can be known.
        """

    def finish(self) -> None:
        """Learn that nothing more will be chosen."""


class TokenBuffer:
    """Token ids that only ever grow, kept in one tensor.

    Processors and stopping criteria are handed views of it. A view stays true for ever, because
    nothing behind its end is part of it and nothing before its end changes.

    Parameters
    ----------
    ids : Tensor, int64, [1, tokens]
        What is there at the start; copied.
    """

    def __init__(self, ids: Tensor) -> None:
        self._length = ids.shape[1]
        # Plain decoding joins the prompt with new ids of 64 bits, whatever the prompt came as.
        dtype = torch.promote_types(ids.dtype, torch.int64)
        self._buffer = torch.empty((1, max(64, 2 * self._length)), dtype=dtype, device=ids.device)
        self._buffer[:, : self._length] = ids

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> Tensor:
        """All ids as a view, int64, [1, tokens]."""
        return self._buffer[:, : self._length]

    def append(self, token: int) -> None:
        """Add one id; amortised O(1)."""
        if self._length == self._buffer.shape[1]:
            grown = torch.empty(
                (1, 2 * self._length), dtype=self._buffer.dtype, device=self._buffer.device
            )
            grown[:, : self._length] = self._buffer
            self._buffer = grown
        self._buffer[0, self._length] = token
        self._length += 1


@dataclass(eq=False)
class Sequence:
    """One row of a call.

    Holds between steps: the cache has K/V for all of the context but its last token, which is the
    root of the next tree.

    Parameters
    ----------
    slot : int
        Row of the batch and of the cache.
    context : list of int
        Committed tokens, prompt included, padding left out: what drafters look at.
    seen : TokenBuffer
        The same as the library would show it to processors and stopping criteria: padding
        included, and without the prompt where the prompt came as embeddings.
    drafter : TreeDrafter
    chooser : Chooser
    should_stop : callable
        ``should_stop(ids, scores) -> bool``, asked after every token.
    max_length : int or None
        Length of ``seen`` at which the run surely ends; nothing is guessed beyond it.
    max_positions : int or None
        Length of ``seen`` at which the positions of the model end; no row stands beyond it.
    emit : callable or None
        Is handed every token, after the stopping rules have seen it.
    scores, logits : list of Tensor, float32, [1, vocab], or None
        Filled by the chooser where the caller wants them.
    """

    slot: int
    context: list[int]
    seen: TokenBuffer
    drafter: TreeDrafter
    chooser: Chooser
    should_stop: Callable[[Tensor, tuple[Tensor, ...] | None], bool]
    max_length: int | None = None
    max_positions: int | None = None
    emit: Callable[[int], None] | None = None
    scores: list[Tensor] | None = None
    logits: list[Tensor] | None = None
    prompt_length: int = field(init=False)
    finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.context)

    @property
    def max_depth(self) -> int | None:
        """Longest guess that can still be emitted whole, a bonus token behind it; or None."""
        if self.max_length is None:
            return None
        return max(0, self.max_length - len(self.seen) - 1)

    @property
    def max_offset(self) -> int | None:
        """Farthest place behind the root that a row may stand at; or None."""
        if self.max_positions is None:
            return None
        return max(0, self.max_positions - len(self.seen))

    @property
    def num_new(self) -> int:
        """Tokens emitted so far."""
        return len(self.context) - self.prompt_length

    def commit(self, token: int) -> None:
        """Append one token of the target, ask the stopping rules, and emit it: in this order."""
        self.context.append(token)
        self.seen.append(token)
        scores = tuple(self.scores) if self.scores is not None else None
        self.finished = self.should_stop(self.seen.ids, scores)
        if self.emit is not None:
            self.emit(token)

    def only_root(self) -> DraftTree:
        """Return the empty tree under the last committed token."""
        return DraftTree.only_root(self.context[-1] if self.context else 0)
