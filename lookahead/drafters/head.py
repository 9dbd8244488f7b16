"""The least-squares head: the target's next hidden state, predicted in closed form.

While a model decodes, the hidden states that its output layer is given come for free. From the one
at a token and the embedding of the token after it, the hidden state at that next token is
predicted; the output layer turns it into candidates, and the prediction is fed back to go deeper.
It is what a trained draft head does, with no training.
"""

from __future__ import annotations

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
#: Rejected nodes of a pass that are learnt from, and passes that may wait to be learnt from.
MOST_REJECTED, MOST_UNLEARNT = 24, 128
ROWS_TO_SUM = 32
#: Tokens of the readout to begin with: vocabularies are in the order in which they were learnt,
#: the most frequent ones first.
FIRST_TOKENS = 2048


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
        self._regression = RunningRegression(sums.map())
        self._unlearnt: list[tuple[Tensor, Tensor, float]] = []
        self._unsummed: list[tuple[Tensor, Tensor]] = []
        self._last: Tensor | None = None  # [1, width], hidden state of the token before the root
        self._predicted: dict[tuple[int, ...], Tensor] = {}  # by path, of this step

    def begin(self, context: list[int], hidden: Tensor | None) -> None:
        """Learn from the prompt."""
        self._predicted.clear()
        self._readout.add(context)
        if hidden is None or not len(hidden):
            return
        hidden = hidden[-self._regression.max_rows :].float()
        self._last = hidden[-1:].clone()
        if len(hidden) > 1:
            tokens = context[-len(hidden) : -1]
            self._unlearnt = [(self._inputs(hidden[:-1], tokens), hidden[1:], NOISE_OF_PROMPT)]

    def ask(
        self,
        context: list[int],
        tree: DraftTree,
        nodes: list[int],
        noise: NDArray[np.float32] | None = None,
    ) -> Candidates | None:
        """Predict what follows these nodes; see :class:`~lookahead.drafters.base.NodeDrafter`."""
        self._catch_up()
        if self._last is None or (self._regression.prior is None and not self._regression.num_rows):
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
        hidden = outcome.hidden[torch.tensor(outcome.path, device=outcome.hidden.device)].float()
        if self._last is not None:
            before = torch.cat([self._last, hidden[:-1]])
            tokens = outcome.tree.tokens[outcome.path].tolist()
            inputs = self._inputs(before, tokens)
            self._note(inputs, hidden, NOISE_OF_ANSWER)
            self._gather(inputs, hidden)
            self._note_rejected(outcome)
        self._last = hidden[-1:]

    def _note_rejected(self, outcome: Outcome) -> None:
        tree, hidden = outcome.tree, outcome.hidden
        assert hidden is not None
        accepted = set(outcome.path)
        nodes = [node for node in range(1, len(tree.tokens)) if node not in accepted]
        if nodes:
            # Best nodes first where not all of them fit a pass's share of what is remembered.
            nodes = sorted(nodes, key=lambda n: -tree.probabilities[n])[:MOST_REJECTED]
            rows = hidden[torch.tensor(nodes, device=hidden.device)].float()
            above = hidden[torch.tensor(tree.parents[nodes], device=hidden.device)].float()
            self._note(self._inputs(above, tree.tokens[nodes].tolist()), rows, NOISE_OF_REJECTED)

    def _note(self, inputs: Tensor, outputs: Tensor, noise: float) -> None:
        self._unlearnt.append((inputs, outputs, noise))
        if len(self._unlearnt) > MOST_UNLEARNT:  # nobody has asked for long
            del self._unlearnt[: MOST_UNLEARNT // 2]

    def _catch_up(self) -> None:
        """Learn what was seen since the last question: in steps without one it costs nothing."""
        waiting, self._unlearnt = self._unlearnt, []
        if waiting:
            inputs, outputs, noises = zip(*waiting, strict=True)
            each = [
                torch.full_like(x[:, 0], noise) for x, noise in zip(inputs, noises, strict=True)
            ]
            x, y, noise = torch.cat(inputs), torch.cat(outputs), torch.cat(each)
            finite = torch.isfinite(x).all(dim=-1) & torch.isfinite(y).all(dim=-1)
            self._regression.add(x[finite], y[finite], noise[finite])

    def _gather(self, inputs: Tensor, hidden: Tensor) -> None:
        """Add to the sums of the model, many rows at a time: one row costs as much as thirty."""
        self._unsummed.append((inputs, hidden))
        if sum(len(rows) for rows, _ in self._unsummed) >= ROWS_TO_SUM:
            parts, outputs = zip(*self._unsummed, strict=True)
            self._sums.add(torch.cat(parts), torch.cat(outputs))
            self._unsummed.clear()

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
