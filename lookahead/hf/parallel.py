"""One model spread over several processes: all of them verify the trees of the first one.

Processes that hold parts of each layer have to run the same passes, or they wait for one another
for ever. What is drafted depends on measured times, on threads and on what each has learnt; so one
process drafts, and sends its trees to the others: one small message a step and sequence. All else
follows from the logits, which are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from lookahead.budget import Plan
from lookahead.config import Config
from lookahead.hf.compat import device_of
from lookahead.outcome import Outcome, PromptRows
from lookahead.sequence import TreeDrafter
from lookahead.stats import DecodeStats
from lookahead.tree import DraftTree
from lookahead.window import WindowRows

__all__ = ["Ranks", "in_step", "ranks_of", "reason_for_ranks", "share"]


class Ranks(NamedTuple):
    """The processes that hold one model between them.

    Parameters
    ----------
    group : ProcessGroup
    device : torch.device
        Where what they send lies.
    """

    group: Any
    device: torch.device

    @property
    def leads(self) -> bool:
        """True in the process that drafts."""
        return distributed.get_rank(self.group) == 0

    def broadcast(self, message: Tensor) -> Tensor:
        """Return what the first process gave."""
        distributed.broadcast(message, group=self.group, group_src=0)
        return message


def ranks_of(model: Any) -> Ranks | None:
    """Return the processes that a model is spread over, or None if it is here as a whole."""
    mesh = _mesh(model)
    if mesh is None or mesh.size() < 2:
        return None
    group = mesh.get_group() if mesh.ndim == 1 else mesh["tp"].get_group()
    return Ranks(group, device_of(model))


def reason_for_ranks(model: Any) -> str | None:
    """Say why processes that hold a model between them cannot decode together, or return None."""
    if not _in_company():
        return None
    inner = _inner(model)
    fsdp = any(getattr(m, "_is_fsdp_managed_module", False) for m in (model, inner))
    if fsdp or "FSDP" in type(inner).__name__ or is_deepspeed_zero3_enabled():
        return "its weights are gathered from several processes, whose texts may differ"
    mesh = _mesh(model)
    if mesh is not None and mesh.ndim > 1:
        names = mesh.mesh_dim_names or ()
        others = [n for n, size in zip(names, mesh.shape, strict=False) if n != "tp" and size > 1]
        if "tp" not in names or others:
            return f"its layers are spread over processes along {', '.join(others) or 'axes'}"
    return None


def in_step(config: Config, ranks: Ranks | None, stats: DecodeStats) -> Config:
    """Return settings with which no process runs a part of the model on its own."""
    if ranks is None:
        return config
    off = [s for s in ("head", "exit") if s in config.sources]
    if off:
        stats.note(f"{' and '.join(off)} off: the model is spread over several processes")
    sources = tuple(s for s in config.sources if s not in off)
    return replace(config, sources=sources, window=None, recycle_prompt=0, remember=False)


def share(ranks: Ranks | None, budget: int, make: Callable[[], TreeDrafter]) -> TreeDrafter:
    """Return a drafter whose trees are the same in all processes.

    Parameters
    ----------
    ranks : Ranks or None
        From :func:`ranks_of`.
    budget : int
        Most nodes of a tree, by settings that are the same everywhere.
    make : callable
        Makes the drafter; called in the process that drafts.
    """
    if ranks is None:
        return make()
    return _Leader(ranks, budget, make()) if ranks.leads else _Follower(ranks, budget)


class _Follower:
    """Drafts the trees that another process has drafted."""

    def __init__(self, ranks: Ranks, budget: int) -> None:
        self._ranks = ranks
        self._budget = budget

    def begin(self, context: list[int], hidden: Tensor | None) -> None:
        """Do nothing: the leader reads the prompt."""

    def recycle(self, rows_of: Callable[[int], Iterator[PromptRows]]) -> None:
        """Do nothing."""

    def draft(
        self,
        context: list[int],
        plan: Plan,  # noqa: ARG002 - the leader's counts
        max_depth: int,  # noqa: ARG002
        noise: NDArray[Any] | None = None,  # noqa: ARG002
    ) -> DraftTree:
        """Return the leader's tree."""
        return self._sent(context[-1], None)

    def cut(self, max_nodes: int) -> DraftTree:
        """Raise: trees that are shared are never cut afterwards, by times of one process."""
        raise NotImplementedError

    def window(
        self,
        context: list[int],  # noqa: ARG002
        max_offset: int | None,  # noqa: ARG002
        costs: NDArray[Any] | None,  # noqa: ARG002
    ) -> WindowRows | None:
        """Return None: there is no window."""
        return None

    def learn(self, outcome: Outcome) -> None:
        """Do nothing: the leader learns."""

    def _sent(self, root: int, tree: DraftTree | None) -> DraftTree:
        """Send a tree, or receive one: the number of nodes, their tokens, their parents."""
        message = torch.zeros(1 + 2 * self._budget, dtype=torch.int64)
        if tree is not None:
            nodes = len(tree)
            message[0] = nodes
            message[1 : 1 + nodes] = torch.from_numpy(tree.tokens[1:])
            message[1 + nodes : 1 + 2 * nodes] = torch.from_numpy(tree.parents[1:])
        found = self._ranks.broadcast(message.to(self._ranks.device)).tolist()
        nodes = found[0]
        tokens, parents = found[1 : 1 + nodes], found[1 + nodes : 1 + 2 * nodes]
        return DraftTree.from_parents([root, *tokens], [0, *parents])


class _Leader(_Follower):
    """Drafts, and sends each tree to the other processes."""

    def __init__(self, ranks: Ranks, budget: int, inner: TreeDrafter) -> None:
        super().__init__(ranks, budget)
        self._inner = inner
        self.begin = inner.begin  # type: ignore[method-assign]
        self.recycle = inner.recycle  # type: ignore[method-assign]
        self.learn = inner.learn  # type: ignore[method-assign]

    def draft(
        self,
        context: list[int],
        plan: Plan,
        max_depth: int,
        noise: NDArray[Any] | None = None,
    ) -> DraftTree:
        """Return a tree of one's own, which all others return, too."""
        tree = DraftTree.only_root(context[-1])  # sent even if drafting fails: others wait for it
        try:
            tree = self._inner.draft(context, plan, max_depth, noise)
        finally:
            self._sent(context[-1], tree)
        return tree


def _in_company() -> bool:
    return bool(
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _inner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _mesh(model: Any) -> Any:
    """Return the mesh of processes that share layers of a model, or None."""
    if not _in_company():
        return None
    inner = _inner(model)
    if (getattr(inner, "_tp_size", None) or 1) > 1:
        return inner._device_mesh
    # Parallelised by hand, with tensors that know where their parts are.
    return next((p.device_mesh for p in inner.parameters() if hasattr(p, "device_mesh")), None)
