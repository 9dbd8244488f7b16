"""A decoder taken apart: its first layers alone, or the others on hidden states that are there.

The model's own forward is run each time, so embeddings, masks, positions, norms and scaling stay
its own. Only what a layer does when it is called changes, for one thread and one pass: a layer that
is not wanted hands on what it is given, and the one below the cut hands on the saved hidden states.
Nothing of it is left when the pass is over, whatever is raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from lookahead.errors import UnsupportedError
from lookahead.hf.compat import is_compiled

__all__ = ["Instead", "LayerSplit", "find_layers", "instead"]

#: What a layer does in place of its forward: called with that forward and its arguments.
Instead = Callable[..., Any]

_lock = threading.Lock()


class LayerSplit:
    """The decoder layers of one model, to be run in two parts.

    Layers are counted from 1: "what leaves layer E" is what the first E layers make of a row.

    Parameters
    ----------
    model : PreTrainedModel
        Not changed outside of the blocks below.

    Attributes
    ----------
    reason : str or None
        Why the model cannot be taken apart, as half a sentence. None does not mean that it can:
        the self-test asks the model itself.
    """

    def __init__(self, model: Any) -> None:
        self._layers = find_layers(model)
        self._head = model.get_output_embeddings()
        self._num_returned: int | None = None  # 0 for a bare tensor; learned from the first pass
        self.reason = _reason(model, self._layers)

    @property
    def num_layers(self) -> int:
        """Number of decoder layers; 0 if they were not found."""
        return len(self._layers)

    @contextmanager
    def watching(self, watch: Iterable[int]) -> Iterator[dict[int, Tensor]]:
        """See what leaves these layers in the forwards of this thread in the block.

        Yields
        ------
        dict of int to Tensor, float, [batch, rows, width]
            Filled by a forward.
        """
        left: dict[int, Tensor] = {}
        with instead(self._watched(watch, left)):
            yield left

    @contextmanager
    def first(self, exit_layer: int, watch: Iterable[int] = ()) -> Iterator[dict[int, Tensor]]:
        """Let a forward of this thread run the first ``exit_layer`` layers, and little else.

        The logits it returns mean nothing.

        Yields
        ------
        dict of int to Tensor, float, [batch, rows, width]
            What leaves ``exit_layer`` and the layers in ``watch`` below it, once it has run.
        """
        self._check(exit_layer)
        left: dict[int, Tensor] = {}
        wanted = {n for n in watch if n <= exit_layer} | {exit_layer}
        changed = self._watched(wanted, left)
        changed.update((layer, self._hand_on) for layer in self._layers[exit_layer:])
        if isinstance(self._head, nn.Module):
            changed[self._head] = _no_logits
        with instead(changed):
            yield left

    @contextmanager
    def rest(
        self, exit_layer: int, hidden: Tensor, watch: Iterable[int] = ()
    ) -> Iterator[dict[int, Tensor]]:
        """Let a forward of this thread run all but the first ``exit_layer`` layers.

        Parameters
        ----------
        exit_layer : int
            The forward starts above it.
        hidden : Tensor, float, [batch, rows, width]
            What left ``exit_layer`` for the rows of the forward.
        watch : iterable of int
            Layers above to look at.

        Yields
        ------
        dict of int to Tensor, float, [batch, rows, width]
            What leaves the layers in ``watch``, once it has run.
        """
        self._check(exit_layer)
        left: dict[int, Tensor] = {}
        changed = self._watched((n for n in watch if n > exit_layer), left)
        changed.update((layer, self._hand_on) for layer in self._layers[: exit_layer - 1])
        changed[self._layers[exit_layer - 1]] = lambda *_args, **_kwargs: self._packed(hidden)
        with instead(changed):
            yield left

    def _check(self, exit_layer: int) -> None:
        if self.reason is not None:
            raise UnsupportedError(self.reason)
        if not 0 < exit_layer < self.num_layers:
            raise ValueError(
                f"an exit layer is a whole number from 1 to {self.num_layers - 1}, "
                f"not {exit_layer!r}."
            )

    def _watched(self, watch: Iterable[int], left: dict[int, Tensor]) -> dict[nn.Module, Instead]:
        return {self._layers[n - 1]: partial(self._see, left, n) for n in watch}

    def _see(
        self, left: dict[int, Tensor], number: int, forward: Instead, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a layer, and keep the hidden states that leave it."""
        returned = forward(*args, **kwargs)
        hidden = returned[0] if isinstance(returned, tuple) and returned else returned
        if not isinstance(hidden, Tensor) or hidden.ndim != 3:
            raise UnsupportedError("its layers return something else than one vector for each row")
        self._num_returned = len(returned) if isinstance(returned, tuple) else 0
        left[number] = hidden
        return returned

    def _hand_on(self, _forward: Instead, *args: Any, **kwargs: Any) -> Any:
        """Return what a layer is given, in the form in which it returns what it makes."""
        return self._packed(args[0] if args else kwargs["hidden_states"])

    def _packed(self, hidden: Tensor) -> Any:
        if self._num_returned is None:
            raise UnsupportedError("no pass has shown yet what its layers return")
        if self._num_returned == 0:
            return hidden
        return (hidden, *[None] * (self._num_returned - 1))


class _ByThread:
    """A method of a module while it is overridden: each thread's own, or the one it had."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.attribute: Any = vars(module).get(name)  # an offloading hook's, say
        self.original: Instead = getattr(module, name)
        self.own: dict[int, Instead] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.own.get(threading.get_ident())
        return (
            self.original(*args, **kwargs) if own is None else own(self.original, *args, **kwargs)
        )


@contextmanager
def instead(changed: Mapping[nn.Module, Instead], name: str = "forward") -> Iterator[None]:
    """Have modules do something else when this thread calls them in the block.

    Parameters
    ----------
    changed : dict of module to callable
        Called with what it stands for and its arguments.
    name : str
        The method that it stands for.
    """
    try:
        with _lock:
            for module, own in changed.items():
                if not isinstance(vars(module).get(name), _ByThread):
                    vars(module)[name] = _ByThread(module, name)
                vars(module)[name].own[threading.get_ident()] = own
        yield
    finally:
        _give_back_surely(changed, name)


def _give_back_surely(modules: Iterable[nn.Module], name: str) -> None:
    """Give methods back, and let a Ctrl-C that comes meanwhile wait until that is done."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            _give_back(modules, name)
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _give_back(modules: Iterable[nn.Module], name: str) -> None:
    with _lock:
        for module in modules:
            found = vars(module).get(name)
            if not isinstance(found, _ByThread):
                continue
            found.own.pop(threading.get_ident(), None)
            if found.own:  # another thread is in a pass of its own
                continue
            if found.attribute is None:
                del vars(module)[name]
            else:
                vars(module)[name] = found.attribute


def _no_logits(_forward: Instead, *args: Any, **kwargs: Any) -> Any:
    """Return one number a row: nobody reads it, and the output layer is dear."""
    hidden = args[0] if args else next(iter(kwargs.values()))
    return hidden[..., :1]


def find_layers(model: Any) -> list[nn.Module]:
    """Return the decoder layers: the outermost list of as many modules as there are layers."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    number = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    found = [
        (name.count("."), list(modules))
        for name, modules in decoder.named_modules()
        if isinstance(modules, nn.ModuleList) and len(modules) == number and "expert" not in name
    ]
    return min(found, key=lambda one: one[0])[1] if found else []


def _reason(model: Any, layers: list[nn.Module]) -> str | None:
    """Say why a model cannot be taken apart, or None."""
    name = type(model).__name__
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        return f"{name} has an encoder"
    if not layers:
        return f"no list of decoder layers was found in {name}"
    if len(layers) < 2:
        return f"{name} has one layer only"
    if len({id(layer) for layer in layers}) < len(layers):
        return f"{name} uses a layer more than once"
    if model._is_stateful:
        return f"{name} keeps a recurrent state"
    if getattr(config, "num_kv_shared_layers", 0):
        return f"layers of {name} share K/V with one another"
    if getattr(model, "_tp_size", None) or is_compiled(model):
        return f"{name} is compiled or spread over several processes"
    return None
