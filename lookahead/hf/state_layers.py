"""Layers that keep a state of all that they have read, in place of its K/V.

A state cannot be cut to a prefix. It is saved before a pass that may have to be taken back.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

from lookahead.hf.compat import (
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)
from lookahead.hf.kinds import LayerForm
from lookahead.hf.slot_layers import Lengths, SlotLayer

__all__ = ["HYBRIDS", "SlotStateLayer", "StateLayer"]

#: Layers of the library that have both K/V and states.
HYBRIDS = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)

#: What a layer knows of its states, by number of the state.
FIELDS = (
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)
STATES = ("conv_states", "recurrent_states")


class StateLayer(LinearAttentionLayer):
    """States of one layer, which can be saved and restored."""

    _saved: dict[str, dict[int, Any]] | None = None

    def load_states(self, given: LinearAttentionLayer) -> None:
        """Copy the states of a layer of the library in."""
        _copy_states(given, self)

    def write_states(self, given: LinearAttentionLayer) -> None:
        """Leave the states in a layer of the library."""
        _copy_states(self, given)

    def save(self) -> None:
        """Remember the states as they are."""
        self._saved = _states_of(self)

    def restore(self) -> None:
        """Go back to what was saved last."""
        assert self._saved is not None
        _set_states(self, self._saved)
        self._saved = None


class SlotStateLayer(StateLayer, SlotLayer):
    """A layer with both K/V and states."""

    is_compileable = False
    is_croppable = False

    def __init__(self, lengths: Lengths, form: LayerForm, number_of_states: int) -> None:
        SlotLayer.__init__(self, lengths, form)
        LinearAttentionLayer.__init__(self, number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Begin with K/V, given by place, or with states, given by name, as the library does."""
        if args:
            SlotLayer.lazy_initialization(self, *args, **kwargs)
        else:
            StateLayer.lazy_initialization(self, **kwargs)


def _states_of(layer: LinearAttentionLayer) -> dict[str, dict[int, Any]]:
    """Return copies of all that a layer keeps of what it has read."""
    found: dict[str, dict[int, Any]] = {name: dict(getattr(layer, name)) for name in FIELDS}
    for name in STATES:
        states = getattr(layer, name)
        found[name] = {i: s.clone() if isinstance(s, Tensor) else s for i, s in states.items()}
    return found


def _set_states(layer: LinearAttentionLayer, states: dict[str, dict[int, Any]]) -> None:
    for name, by_number in states.items():
        setattr(layer, name, by_number)


def _copy_states(source: LinearAttentionLayer, target: LinearAttentionLayer) -> None:
    _set_states(target, _states_of(source))
    if isinstance(target, DynamicLayer | SlotLayer) and target.is_initialized:
        return  # its K/V say where it lies
    target.device, target.dtype = source.device, source.dtype
