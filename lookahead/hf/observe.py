"""What a forward computes on its way: last hidden states, and what the output layer is given.

Hooks for the length of a block, which look at the forwards of one thread only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Seen", "last_hidden_state", "output_input"]


class Seen:
    """Last hidden states of one forward, and what the output layer was given of them."""

    def __init__(self) -> None:
        self.hidden: Tensor | None = None
        self.output_input: Tensor | None = None

    def matching_hidden(self) -> Tensor | None:
        """Return the hidden states, [batch, tokens, width], if they are what the layer takes."""
        hidden, taken = self.hidden, self.output_input
        if hidden is None or taken is None or hidden.ndim != 3 or taken.ndim != 3:
            return None
        if hidden.shape[-1] != taken.shape[-1] or not torch.equal(hidden[:, -1], taken[:, -1]):
            return None
        return hidden

    def of_rows(self, num_rows: int) -> Tensor | None:
        """Return what the output layer took, [batch, rows, width], if it took all rows."""
        taken = self.output_input
        if taken is None or taken.ndim != 3 or taken.shape[1] != num_rows:
            return None
        return taken


@contextmanager
def output_input(model: Any, read: list[int] | None = None) -> Iterator[Seen]:
    """Look at what the output layer is given by the forwards of this thread in the block.

    With ``read`` it is handed these rows only: others cost a row of the vocabulary for nothing.
    """
    seen = Seen()
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Module):
        yield seen
        return
    thread = threading.get_ident()

    def see_output_input(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != thread or not args:
            return None
        taken = seen.output_input = args[0]
        if read is None or taken.ndim != 3 or taken.shape[1] <= read[-1]:
            return None
        return (taken[:, read], *args[1:])

    hook = head.register_forward_pre_hook(see_output_input)
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def last_hidden_state(model: Any) -> Iterator[Seen]:
    """Look at the last hidden states of the forwards that this thread runs in the block."""
    base = getattr(model, "base_model", None)
    if base is None or base is model:
        yield Seen()
        return
    thread = threading.get_ident()

    def see_hidden(_module: nn.Module, _args: Any, output: Any) -> None:
        if threading.get_ident() == thread:
            hidden = output[0]
            seen.hidden = hidden if isinstance(hidden, Tensor) else None

    with output_input(model) as seen:
        hook = base.register_forward_hook(see_hidden)
        try:
            yield seen
        finally:
            hook.remove()
