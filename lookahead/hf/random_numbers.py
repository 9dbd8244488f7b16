"""Random numbers, which what is asked before a call must leave as they are."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["random_states", "set_random_states"]


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
