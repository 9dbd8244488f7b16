"""The least-squares head: the target's next hidden state, predicted in closed form.

While a model decodes, the hidden states that its output layer is given come for free. From the one
at a token and the embedding of the token after it, the hidden state at that next token is
predicted; the output layer turns it into candidates, and the prediction is fed back to go deeper.
It is what a trained draft head does, with no training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.drafters.base import Candidates
from lookahead.drafters.readout import ModelEnds, Readout
from lookahead.drafters.regression import RunningRegression
from lookahead.drafters.sums import HeadSums, head_inputs
from lookahead.outcome import Outcome
from lookahead.tree import DraftTree

__all__ = ["LeastSquaresHead"]

#: Candidates of a node. Of those behind the sixteenth hardly any is ever accepted.
NUM_CANDIDATES = 16
#: Of a draw, whose noise brings up improbable ones, too.
NUM_DRAWN = 24
#: The model's own writing says more about what it will write than the prompt does.
NOISE_OF_PROMPT, NOISE_OF_ANSWER, NOISE_OF_REJECTED = 1.0, 0.5, 1.0
#: Newest pairs of the prompt that are learnt: the answer needs room beside them.
PROMPT_ROWS = 512
#: Rejected nodes of a pass that are learnt from.
MOST_REJECTED = 64
ROWS_TO_SUM = 32
#: Tokens of the readout to begin with: vocabularies are in the order in which they were learnt,
#: the most frequent ones first.
FIRST_TOKENS = 2048


class Pairs(NamedTuple):
    """What was seen of the target: hidden states, the tokens after them, and what came of both."""

    before: Tensor  # [rows, width]
    tokens: list[int]
    after: Tensor  # [rows, width]
    noise: float


class LeastSquaresHead:
    """Drafts by predicting hidden states.

    Parameters
    ----------
    ends : ModelEnds
        Embedding and output layer of the target.
    readout : Readout
    sums : HeadSums
        Of other texts of the model; answers are added.
    """

    name = "head"

    def __init__(self, ends: ModelEnds, readout: Readout, sums: HeadSums) -> None:
        self._ends = ends
        self._readout = readout
        self._sums = sums
        self._regression = RunningRegression(sums.map(), dtype=ends.dtype_of_guesses)
        self._unlearnt: list[Pairs] = []
        self._unsummed: list[Pairs] = []
        self._last: Tensor | None = None  # [1, width], hidden state of the token before the root
        self._predicted: dict[tuple[int, ...], Tensor] = {}  # by path, of this step

    def begin(self, context: list[int], hidden: Tensor | None) -> None:
        """Learn from the prompt."""
        self._predicted.clear()
        self._readout.add(context)
        if hidden is None or not len(hidden):
            return
        hidden = hidden[-1 - PROMPT_ROWS :].float()
        self._last = hidden[-1:].clone()
        if len(hidden) > 1:
            tokens = context[-len(hidden) : -1]
            self._unlearnt = [Pairs(hidden[:-1], tokens, hidden[1:], NOISE_OF_PROMPT)]

    def ask(
        self,
        context: list[int],
        tree: DraftTree,
        nodes: list[int],
        noise: NDArray[np.float32] | None = None,
    ) -> Candidates | None:
        """Predict what follows these nodes; see :class:`~lookahead.drafters.base.NodeDrafter`."""
        self._catch_up()
        if self._last is None or not (self._regression.has_prior or self._regression.num_rows):
            return None
        paths = [tree.token_path(node) for node in nodes]
        self._predict(paths, context[-1])
        states = torch.cat([self._predicted[path] for path in paths])
        most = NUM_CANDIDATES if noise is None else NUM_DRAWN
        return self._readout.likely_drawn(states, most, noise, tree.depths[nodes])

    def see(self, tokens: NDArray[np.int32]) -> None:
        """Take the target's own candidates into the readout, [rows, k]."""
        self._readout.add(tokens.ravel())

    def learn(self, outcome: Outcome) -> None:
        """Learn from all rows of the pass, which hold what was to be predicted.

        Rejected nodes show no less than accepted ones what the target makes of a token behind a
        text; only, the text is not this one.
        """
        self._predicted.clear()
        self._readout.add(outcome.chosen)
        if outcome.hidden is None:
            self._last = None
            return
        hidden = outcome.hidden.float()
        path = torch.tensor(outcome.path, device=hidden.device)
        accepted = hidden[path]
        if self._last is not None:
            before = torch.cat([self._last, accepted[:-1]])
            tokens = outcome.tree.tokens[outcome.path].tolist()
            pairs = Pairs(before, tokens, accepted, NOISE_OF_ANSWER)
            self._note(pairs)
            self._gather(pairs)
            self._note_rejected(outcome, hidden)
        self._last = accepted[-1:]

    def _note_rejected(self, outcome: Outcome, hidden: Tensor) -> None:
        tree = outcome.tree
        is_rejected = np.ones(len(tree.tokens), dtype=np.bool_)
        is_rejected[outcome.path] = False
        nodes = np.flatnonzero(is_rejected)
        if len(nodes) > MOST_REJECTED:
            # Best nodes first where not all of them fit a pass's share of what is remembered.
            nodes = nodes[np.argsort(-tree.probabilities[nodes], kind="stable")[:MOST_REJECTED]]
        if len(nodes):
            rows, above = (
                hidden[torch.from_numpy(of).to(hidden.device)]
                for of in (nodes, tree.parents[nodes].astype(np.int64))
            )
            self._note(Pairs(above, tree.tokens[nodes].tolist(), rows, NOISE_OF_REJECTED))

    def _note(self, pairs: Pairs) -> None:
        self._unlearnt.append(pairs)
        # Where nobody asks for long, no more wait to be learnt than are remembered.
        waiting = sum(len(each.tokens) for each in self._unlearnt)
        while waiting - len(self._unlearnt[0].tokens) >= self._regression.max_rows:
            waiting -= len(self._unlearnt.pop(0).tokens)

    def _catch_up(self) -> None:
        """Learn what was seen since the last question: in steps without one it costs nothing."""
        waiting, self._unlearnt = self._unlearnt, []
        if waiting:
            x, y = self._joined(waiting)
            each = [pairs.noise for pairs in waiting for _ in pairs.tokens]
            noise = torch.tensor(each, dtype=x.dtype, device=x.device)
            finite = torch.isfinite(x).all(dim=-1) & torch.isfinite(y).all(dim=-1)
            if not finite.all():
                x, y, noise = x[finite], y[finite], noise[finite]
            self._regression.add(x, y, noise)

    def _gather(self, pairs: Pairs) -> None:
        """Add to the sums of the model, many rows at a time: one row costs as much as thirty."""
        self._unsummed.append(pairs)
        if sum(len(pairs.tokens) for pairs in self._unsummed) >= ROWS_TO_SUM:
            self._sums.add(*self._joined(self._unsummed))
            self._unsummed.clear()

    def _joined(self, parts: list[Pairs]) -> tuple[Tensor, Tensor]:
        """Return the inputs and outputs of many pairs, [rows, 2 * width] and [rows, width]."""
        before = torch.cat([pairs.before for pairs in parts])
        tokens = [token for pairs in parts for token in pairs.tokens]
        return self._inputs(before, tokens), torch.cat([pairs.after for pairs in parts])

    def _predict(self, paths: list[tuple[int, ...]], root: int) -> None:
        """Predict the hidden states at the ends of paths, level by level."""
        missing = {path[:n] for path in paths for n in range(len(path) + 1)} - set(self._predicted)
        for depth in sorted({len(path) for path in missing}):
            level = [path for path in missing if len(path) == depth]
            if depth == 0:
                before, tokens = self._last, [root]
            else:
                before = torch.cat([self._predicted[path[:-1]] for path in level])
                tokens = [path[-1] for path in level]
            assert before is not None
            states = self._regression.predict(self._inputs(before, tokens))
            self._predicted.update(zip(level, states.split(1), strict=True))

    def _inputs(self, hidden: Tensor, tokens: list[int]) -> Tensor:
        return head_inputs(self._ends, hidden, torch.tensor(tokens, device=hidden.device))
