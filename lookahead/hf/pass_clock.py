"""A clock on the parts of a model's passes: matrices, attention, output layer, and what is left.

For measuring only. Hooks and one entry of the library's registry are in place for the length of a
block; what they cost themselves is measured and taken off.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import AttentionInterface

from lookahead.hf.compat import device_of
from lookahead.hf.quantised import QuantisedLinear
from lookahead.hf.split import find_layers

__all__ = ["PASS_PARTS", "PassClock", "bytes_of_a_pass", "read_bandwidth"]

#: Parts of a pass, in the order of the table: matrix products of the layers, attention over the
#: cache, all else in the layers, the output layer, and what stands around the layers.
PASS_PARTS = ("matrices", "attention", "rest of layers", "output layer", "around layers")

#: Calls by which the cost of a hook is found, and numbers by which the bandwidth is.
NUM_HOOKED, NUM_READ = 2000, 2**26


class PassClock:
    """Adds up where the time of passes goes.

    Parameters
    ----------
    model : PreTrainedModel
        Of a decoder; on any device. Nothing of it is changed when no block is open.

    Attributes
    ----------
    passes : int
        Passes counted.
    seconds : dict of str to float
        By part, see :data:`PASS_PARTS`.
    read_bytes : dict of str to int
        What has to be read from memory for it at least: weights, and K and V.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._output = model.get_output_embeddings()
        self._layers = find_layers(model)
        self._matrices = [
            module for layer in self._layers for module in layer.modules() if _is_matrix(module)
        ]
        self._device = device_of(model)
        self._starts: list[float] = []
        self._is_counting: Callable[[], bool] = lambda: True
        self._in_pass = False
        self._raw = dict.fromkeys(("pass", "layers", "matrices", "attention", "output layer"), 0.0)
        self._hook_s = _cost_of_hooks()
        self._hooks_run = {"layers": 0, "matrices": 0}
        self.passes = 0
        self.read_bytes = dict.fromkeys(PASS_PARTS, 0)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by part, without those of the clock itself."""
        raw = self._raw
        # A hook on a matrix takes its time from the layer around it.
        inside = self._hooks_run["matrices"] * self._hook_s
        outside = self._hooks_run["layers"] * self._hook_s
        return {
            "matrices": raw["matrices"],
            "attention": raw["attention"],
            "rest of layers": raw["layers"] - raw["matrices"] - raw["attention"] - inside,
            "output layer": raw["output layer"],
            "around layers": raw["pass"] - raw["layers"] - raw["output layer"] - outside,
        }

    @property
    def own_seconds(self) -> float:
        """What the clock itself has taken."""
        return sum(self._hooks_run.values()) * self._hook_s

    @contextmanager
    def running(self, is_counting: Callable[[], bool]) -> Iterator[None]:
        """Look at passes of the block that begin while ``is_counting()`` says so."""
        self._is_counting = is_counting
        name = getattr(self._model.config, "_attn_implementation", None)
        registry = AttentionInterface._global_mapping
        original = registry.get(name)
        handles = [
            *self._on(self._model, "pass"),
            *(handle for layer in self._layers for handle in self._on(layer, "layers")),
            *(handle for matrix in self._matrices for handle in self._on(matrix, "matrices")),
            *(self._on(self._output, "output layer") if self._output is not None else ()),
        ]
        if original is not None:
            registry[name] = self._timed_attention(original)
        try:
            yield
        finally:
            if original is not None:
                registry[name] = original
            for handle in handles:
                handle.remove()
            self._starts.clear()
            self._in_pass = False

    def _on(self, module: nn.Module, part: str) -> tuple[Any, Any]:
        def begin(_module: nn.Module, _args: Any) -> None:
            if part == "pass":
                self._in_pass = self._is_counting()
            self._starts.append(self._now())

        def end(_module: nn.Module, _args: Any, _output: Any) -> None:
            start = self._starts.pop()
            if self._in_pass:
                self._raw[part] += self._now() - start
                self._count(module, part)
            if part == "pass":
                self._in_pass = False

        # Also where the pass is left by an exception.
        after = module.register_forward_hook(end, always_call=True)
        return module.register_forward_pre_hook(begin), after

    def _count(self, module: nn.Module, part: str) -> None:
        if part == "pass":
            self.passes += 1
        if part in self._hooks_run:
            self._hooks_run[part] += 1
        if part in self.read_bytes:
            numbers: Any = getattr(module, "weight", None)
            if isinstance(module, QuantisedLinear):
                numbers = module.numbers
            self.read_bytes[part] += numbers.nbytes if isinstance(numbers, torch.Tensor) else 0

    def _timed_attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def attention(
            module: Any, query: Any, key: Any, value: Any, *args: Any, **more: Any
        ) -> Any:
            start = self._now()
            found = original(module, query, key, value, *args, **more)
            if self._in_pass:
                self._raw["attention"] += self._now() - start
                self.read_bytes["attention"] += key.nbytes + value.nbytes
            return found

        return attention

    def _now(self) -> float:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        return time.perf_counter()


def _is_matrix(module: nn.Module) -> bool:
    """Say whether a module is a matrix layer, quantised ones included."""
    weight: Any = getattr(module, "weight", None)
    is_plain = isinstance(weight, torch.Tensor) and weight.ndim == 2
    return is_plain or isinstance(module, QuantisedLinear)


def read_bandwidth(device: torch.device) -> float:
    """Return the bytes a second that are read from memory, by summing a long row of numbers."""
    numbers = torch.ones(NUM_READ, device=device)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        float(numbers.sum())
        best = min(best, time.perf_counter() - start)
    return numbers.nbytes / best


def bytes_of_a_pass(model: Any) -> int:
    """Return the bytes of the weights that a pass over one row reads; of experts, all of them.

    Of an embedding one row is read, which counts as nothing, unless it is the output layer, too.
    """
    parameters = {id(p): p.nbytes for p in model.parameters()}
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    own = getattr(embedding, "weight", None)
    if own is not None and own is not getattr(output, "weight", None):
        parameters.pop(id(own), None)
    return sum(parameters.values())


def _cost_of_hooks() -> float:
    """Return the seconds that a pair of hooks adds to a call of a module."""
    module, starts = nn.Identity(), []

    def begin(_module: nn.Module, _args: Any) -> None:
        starts.append(time.perf_counter())

    def end(_module: nn.Module, _args: Any, _output: Any) -> None:
        starts.append(time.perf_counter() - starts.pop())
        starts.pop()

    without = _seconds_of_calls(module)
    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end)
    return max(0.0, _seconds_of_calls(module) - without) / NUM_HOOKED


def _seconds_of_calls(module: nn.Module) -> float:
    best, nothing = float("inf"), torch.zeros(1)
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(NUM_HOOKED):
            module(nothing)
        best = min(best, time.perf_counter() - start)
    return best
