"""Random numbers, which what is asked before a call must leave as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["random_states", "same_random_numbers", "set_random_states"]


def random_states(device: torch.device) -> list[Tensor]:
    """Return the states of the generators that passes on a device may draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def set_random_states(device: torch.device, states: list[Tensor]) -> None:
    """Give the generators back the states that :func:`random_states` returned."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


@contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """Leave the generators as they were before the block."""
    states = random_states(device)
    try:
        yield
    finally:
        set_random_states(device, states)
