"""Early exit as the only drafter of a call, put in where the merged drafter would be."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from lookahead.budget import Plan
from lookahead.drafters.early_exit import EarlyExitDrafter
from lookahead.drafters.exits import ExitChooser
from lookahead.drafters.readout import Readout
from lookahead.hf import drafting, generate
from lookahead.hf.split import LayerSplit
from lookahead.tree import DraftTree


class Ends:
    """The output layer of a model, and nothing of its other end."""

    dtype_of_guesses = torch.float32

    def __init__(self, model: Any) -> None:
        self._head = model.get_output_embeddings()
        self.vocab, self.width = self._head.weight.shape

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def output_rows(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        bias = getattr(self._head, "bias", None)
        weight = self._head.weight.detach()
        return weight[tokens].float(), None if bias is None else bias.detach()[tokens].float()


class Looks:
    """The target of the latest call, with all looks of all calls written down."""

    def __init__(self) -> None:
        self.target: Any = None
        self.peeks: list[tuple[DraftTree, list[int], int]] = []

    def peek(self, slot: int, tree: DraftTree, nodes: Any, exit_layer: int) -> torch.Tensor:
        self.peeks.append((tree, list(nodes), exit_layer))
        return self.target.peek(slot, tree, nodes, exit_layer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


class ExitTree:
    """Grows a tree by asking about its best node, ``rounds`` times, and one node that is dropped.

    The tree is shown in one order and verified in another, as happens where it is grown anew.
    """

    def __init__(self, exit_drafter: EarlyExitDrafter, rounds: int = 3, width: int = 2) -> None:
        self.exit = exit_drafter
        self.rounds, self.width = rounds, width
        self.offered = self.accepted = 0

    def begin(self, context: list[int], hidden: Any) -> None:
        self.exit.begin(context, hidden)

    def recycle(self, rows_of: Any) -> None:
        for _ in rows_of(512):
            pass

    def draft(self, context: list[int], plan: Plan, max_depth: int, noise: Any = None) -> DraftTree:
        rounds = min(self.rounds, max_depth)
        tree, node = DraftTree.only_root(context[-1]), 0
        tokens, parents, probabilities = [context[-1]], [0], [1.0]
        asked = []
        for _ in range(rounds):
            asked.append(node)
            found = self.exit.ask(context, tree, [node], noise)
            if found is None or found.tokens[0, 0] < 0:
                break
            for rank, token in enumerate(found.tokens[0, : self.width]):
                if len(tokens) <= plan.max_nodes:
                    tokens.append(int(token))
                    parents.append(node)
                    probabilities.append(probabilities[node] * (0.9 - 0.1 * rank))
            tree = DraftTree.from_parents(tokens, parents, probabilities)
            open_nodes = [n for n in range(1, len(tokens)) if n not in asked]
            if not open_nodes:
                break
            node = max(open_nodes, key=lambda n: probabilities[n])
        paths = [[int(tree.tokens[n]) for n in tree.path(m)] for m in range(1, len(tokens))]
        return DraftTree.from_paths(context[-1], sorted(paths, key=str))

    def learn(self, outcome: Any) -> None:
        self.offered += len(outcome.tree)
        self.accepted += len(outcome.path) - 1
        self.exit.learn(outcome)


@contextmanager
def only_early_exit(model: Any, layer: int, *, lens: Any = None, **shape: int) -> Any:
    """Let calls of accelerated models draft by early exit alone; yields their drafters and looks.

    ``lens`` is put in place of the fitted one: what leaves the layer to what the output layer is
    given.
    """
    looks, made = Looks(), []
    split = LayerSplit(model)
    chooser = ExitChooser(split.num_layers, (layer,), never_off=True)

    def make_target(*args: Any, **_: Any) -> Any:
        # In place of what the sources of the call ask for.
        looks.target = target(*args[:7], split)
        return looks.target

    def make_drafter(*_: Any, **__: Any) -> ExitTree:
        ends = Ends(model)
        readout = Readout(ends, np.arange(ends.vocab))
        drafter = EarlyExitDrafter(looks, 0, readout, chooser)
        if lens is not None:
            for one in drafter._lenses.values():
                one.read = lens
                one._regression.num_rows = 10**6
                one.fit = lambda *_: None
        made.append(ExitTree(drafter, **shape))
        return made[-1]

    target = generate.HFTarget
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "HFTarget", make_target)
        patch.setattr(drafting, "MergedDrafter", make_drafter)
        yield made, looks
