"""Early exit: the target's own first layers as drafter, read through a least-squares lens.

The first layers are run on a node of the tree, and what leaves them is turned into what would leave
the last one: by a map fitted, in closed form, to the rows that went through all layers anyway. The
output layer then names candidates. The target verifies the tree with the other layers only, so a
look costs its share of the layers and nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from lookahead.drafters.base import Candidates
from lookahead.drafters.exits import ExitChooser
from lookahead.drafters.readout import Readout
from lookahead.drafters.regression import RunningRegression
from lookahead.errors import UnsupportedError
from lookahead.outcome import Outcome
from lookahead.tree import DraftTree

__all__ = ["EarlyExitDrafter", "EarlyLayers"]

#: Candidates of a node.
NUM_CANDIDATES = 8
#: Rows that a lens remembers, and how far each is off: the answer says more than the prompt.
LENS_ROWS, NOISE_OF_PROMPT, NOISE_OF_ANSWER = 1024, 0.3, 0.15
#: Rows with which a lens can be read, and rows that are learnt at a time.
FEWEST_ROWS, ROWS_AT_A_TIME = 32, 16
#: Of the rows learnt, one in so many asks whether the lens was right, once this is well known.
EVERY = 4
#: Nodes that are less probable are not looked at.
LEAST_REACHED = 0.05


class EarlyLayers(Protocol):
    """The target, as far as early exit needs it. Layers are counted from 1."""

    def watch(self, layers: Iterable[int]) -> None:
        """Keep what leaves these layers, from the next pass or prefill on."""

    def prompt_left(self, slot: int, layer: int) -> Tensor | None:
        """Return what left a layer for the last prompt positions, [positions, width]."""

    def left(self, slot: int, layer: int) -> Tensor | None:
        """Return what left a layer in the last pass, [nodes + 1, width]."""

    def peek(self, slot: int, tree: DraftTree, nodes: Sequence[int], exit_layer: int) -> Tensor:
        """Run the first layers on nodes, and return what leaves them, [nodes, width]."""


class EarlyExitDrafter:
    """Says what may follow a node by looking at it with the first layers; a ``NodeDrafter``.

    Only drafts: the answer is that of all layers, whatever the exit layer.

    Parameters
    ----------
    target : EarlyLayers
        Is told here, before it reads the prompt, which layers to watch.
    slot : int
        The sequence.
    readout : Readout
        May be shared with other drafters of the sequence.
    chooser : ExitChooser
        May be shared with other sequences of the model.
    pass_s : callable
        Returns the seconds of a pass over one row, or None while they are not known.

    Notes
    -----
    An answer of None means that no look pays: do not ask again in this step. A row of it without
    tokens means that this node was not worth the look. Nothing else has to be decided by the
    caller, who asks about the most probable nodes that nobody else is sure about.
    """

    name = "exit"

    def __init__(
        self,
        target: EarlyLayers,
        slot: int,
        readout: Readout,
        chooser: ExitChooser,
        pass_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._pass_s = pass_s
        self._target = target
        self._slot = slot
        self._readout = readout
        self._chooser = chooser
        #: Layers of the looks; 0 for none.
        self.exit_layer = 0
        # Two lenses at most: the one in use, and one that is tried out.
        layers = {chooser.choose(), chooser.to_try()} - {0}
        self._lenses = {layer: _Lens() for layer in sorted(layers)}
        self._asked: dict[tuple[int, ...], set[int]] = {}  # new tokens by path, in this step
        target.watch(self._lenses)

    def begin(self, context: list[int], hidden: Tensor | None) -> None:
        """Fit the lenses to the prompt."""
        self._asked.clear()
        self._readout.add(context)
        for layer, lens in self._lenses.items():
            left = self._target.prompt_left(self._slot, layer)
            if hidden is not None and left is not None:
                rows = min(len(hidden), len(left), LENS_ROWS)
                lens.fit(left[len(left) - rows :], hidden[len(hidden) - rows :], NOISE_OF_PROMPT)
        self._choose()

    def ask(
        self,
        context: list[int],  # noqa: ARG002 - the tree begins where it ends
        tree: DraftTree,
        nodes: list[int],
        noise: NDArray[np.float32] | None = None,
    ) -> Candidates | None:
        """Look at nodes that are worth it; see :class:`~lookahead.drafters.base.NodeDrafter`."""
        layer = self.exit_layer
        if not layer:
            return None
        reached = tree.probabilities[nodes]
        worth = np.flatnonzero(reached >= LEAST_REACHED)
        # One look takes in all of them: a row more costs little next to reading the weights.
        if not len(worth) or not self._chooser.is_worth(layer, float(reached[worth].sum())):
            return None
        start = time.perf_counter()
        chosen = [nodes[i] for i in worth]
        try:
            left = self._target.peek(self._slot, tree, chosen, layer)
        except UnsupportedError:
            self._give_up(layer)
            return None
        seconds = time.perf_counter() - start
        if (pass_s := self._pass_s()) is not None:
            self._chooser.learn_cost(layer, min(seconds / pass_s, 1.0))
        predicted, depths = self._lenses[layer].read(left), tree.depths[chosen]
        found = self._readout.likely_drawn(predicted, NUM_CANDIDATES, noise, depths)
        for node, tokens in zip(chosen, found.tokens.tolist(), strict=True):
            known = {int(tree.tokens[child]) for child in tree.children(node)}
            self._asked[tree.token_path(node)] = set(tokens) - known
        return _spread(found, worth, len(nodes))

    def learn(self, outcome: Outcome) -> None:
        """Fit the lenses to the accepted rows, and see what the looks won."""
        self._learn_gain(outcome)
        self._readout.add(outcome.chosen)
        for layer, lens in self._lenses.items():
            left = self._target.left(self._slot, layer)
            if left is None or outcome.hidden is None:
                continue
            path = torch.tensor(outcome.path, device=left.device)
            lens.note(left[path], outcome.hidden[path], outcome.chosen)
            if lens.num_noted >= ROWS_AT_A_TIME:
                if lens.is_readable and lens.is_question_due():
                    right = lens.count_right(self._readout)
                    self._chooser.learn_agreement(layer, right, lens.num_noted)
                lens.fit_noted()
        self._choose()

    def _choose(self) -> None:
        layer = self._chooser.choose()
        lens = self._lenses.get(layer)
        self.exit_layer = layer if lens is not None and lens.is_readable else 0

    def _give_up(self, layer: int) -> None:
        self._chooser.drop(layer)
        self._lenses.pop(layer, None)
        self.exit_layer = 0

    def _learn_gain(self, outcome: Outcome) -> None:
        """Count the looks on the accepted path, and the tokens that nobody else had named."""
        asked = won = 0
        for node, token in zip(outcome.path, outcome.chosen, strict=True):
            new = self._asked.get(outcome.tree.token_path(node))
            if new is not None:
                asked += 1
                won += token in new
        self._asked.clear()
        if asked and self.exit_layer:
            self._chooser.learn_gain(self.exit_layer, won, asked)


class _Lens:
    """What leaves one layer, turned into what the output layer is given.

    Rows are noted as they come and learnt several at a time, which costs much less.
    """

    def __init__(self) -> None:
        self._regression = RunningRegression(max_rows=LENS_ROWS)
        self._noted: list[tuple[Tensor, Tensor, list[int]]] = []
        self._questions = 0

    @property
    def is_readable(self) -> bool:
        return self._regression.num_rows >= FEWEST_ROWS

    @property
    def num_noted(self) -> int:
        return sum(len(tokens) for _, _, tokens in self._noted)

    def read(self, left: Tensor) -> Tensor:
        return self._regression.predict(normalize(left.float(), dim=-1))

    def fit(self, left: Tensor, hidden: Tensor, noise: float) -> None:
        left, hidden = left.float(), hidden.float()
        finite = torch.isfinite(left).all(-1) & torch.isfinite(hidden).all(-1)
        inputs = normalize(left[finite], dim=-1)
        self._regression.add(inputs, hidden[finite], torch.full_like(inputs[:, 0], noise))

    def note(self, left: Tensor, hidden: Tensor, chosen: list[int]) -> None:
        self._noted.append((left, hidden, chosen))

    def is_question_due(self) -> bool:
        """Say whether to ask if the lens is right: always at first, then every few times."""
        self._questions += 1
        return self._questions <= EVERY or self._questions % EVERY == 0

    def count_right(self, readout: Readout) -> int:
        """Count the noted rows for which the target's own token comes first."""
        first = readout.top(self.read(torch.cat([left for left, _, _ in self._noted])), 1)
        chosen = [token for _, _, tokens in self._noted for token in tokens]
        return int((first.tokens[:, 0] == np.array(chosen)).sum())

    def fit_noted(self) -> None:
        left, hidden, _ = zip(*self._noted, strict=True)
        self.fit(torch.cat(left), torch.cat(hidden), NOISE_OF_ANSWER)
        self._noted.clear()


def _spread(found: Candidates, rows: np.ndarray, num_nodes: int) -> Candidates:
    """Put candidates into the rows of the nodes that were looked at; the others stay empty."""
    tokens = np.full((num_nodes, found.tokens.shape[1]), -1, dtype=np.int32)
    probabilities = np.zeros(tokens.shape, dtype=np.float32)
    tokens[rows], probabilities[rows] = found.tokens, found.probabilities
    return Candidates(tokens, probabilities)
