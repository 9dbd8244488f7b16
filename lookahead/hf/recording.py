"""What a decoder layer computes, recorded while it runs: its operations, and what stands between.

A layer is run by its own code, on rows of a made-up text, and every operation that reaches the
dispatcher is noted. Matrix layers, the cache and the attention are noted as calls, whatever is
behind them. Two records with different numbers of rows make a program for any number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily
from transformers.pytorch_utils import Conv1D

from lookahead.errors import UnsupportedError
from lookahead.hf.cache import SlotCache
from lookahead.hf.grouped import attention_seen_by
from lookahead.hf.split import Instead, instead

__all__ = [
    "Input",
    "Program",
    "Record",
    "Register",
    "Count",
    "Step",
    "Weight",
    "flat",
    "is_constant",
    "products_of",
    "program_of",
    "recording",
]


#: Kinds of values that are written into a program.
CONSTANTS = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


#: What a layer may ask a cache for, and what is no constant.
LENGTHS = ("get_seq_length", "get_mask_sizes", "get_max_length", "get_max_cache_shape")

#: Operations after which a layer may go on in another way for other numbers.
REFUSED = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))

OTHERWISE = "a layer does something else for other numbers of rows"


class Register(NamedTuple):
    """A tensor that a step makes, by its number."""

    number: int


class Input(NamedTuple):
    """What a layer is called with, by position or name, and by the place in a tuple there."""

    path: tuple[int | str, ...]


class Weight(NamedTuple):
    """A parameter or buffer of the layer, by its name."""

    name: str


class Count(NamedTuple):
    """A whole number that depends on the pass: so many times what ``of`` names."""

    times: int
    #: "rows", "batch", or "batch * rows".
    of: str


class Step(NamedTuple):
    """One operation or call.

    Attributes
    ----------
    kind : str
        ``"op"``, ``"module"``, ``"update"`` of the cache, or ``"attention"``.
    what : Any
        The operation, or the name of the module that is called or calls.
    args, kwargs
        With :class:`Register`, :class:`Input`, :class:`Weight` and :class:`Count` in them.
    makes : tuple of int
        Registers.
    """

    kind: str
    what: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    makes: tuple[int, ...]


@dataclass
class Record:
    """One run of a layer.

    Attributes
    ----------
    steps : list of Step
    sizes : dict of Register, Input or Weight to tuple of (shape, dtype)
    given : dict of tuple to Any
        What it was called with, tensors as their shape and dtype.
    cache_layers : tuple of int
        Where in the cache it writes, once for each ``"update"``.
    strided : set
        Register, Input or Weight whose numbers do not lie one behind another.
    result : Any
        What it returned, tensors as references.
    """

    steps: list[Step] = field(default_factory=list)
    sizes: dict[Any, tuple[tuple[Any, ...], torch.dtype]] = field(default_factory=dict)
    given: dict[tuple[int | str, ...], Any] = field(default_factory=dict)
    result: Any = None
    strided: set[Any] = field(default_factory=set)
    cache_layers: tuple[int, ...] = ()


class Program(Record):
    """A record for any batch and number of rows: :class:`Count` stands for what depends on them.

    In sizes, what neither explains, the length of a cache say, is None.
    """


@contextmanager
def recording(layers: list[nn.Module], cache: SlotCache) -> Iterator[dict[nn.Module, Record]]:
    """Record the layers in the forward of this thread in the block.

    Parameters
    ----------
    layers : list of Module
        Decoder layers.
    cache : SlotCache
        Nobody else's; it is what the layers write to.

    Yields
    ------
    dict of Module to Record
        When the forward is over.

    Raises
    ------
    UnsupportedError
        Out of the forward, if a layer does what cannot be repeated from a record.
    """
    records: dict[nn.Module, Record] = {}
    with instead({layer: partial(_run_recorded, layer, cache, records) for layer in layers}):
        yield records


def _run_recorded(
    layer: nn.Module,
    cache: SlotCache,
    records: dict[nn.Module, Record],
    forward: Instead,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    recorder = _Recorder(layer, args, kwargs)
    # A length that is asked for today is another one tomorrow.
    hidden = {name: partial(_refuse, name) for name in LENGTHS if hasattr(cache, name)}
    products = {m: partial(recorder.module, name) for name, m in products_of(layer).items()}
    hidden["update"] = partial(recorder.update, cache.update)
    cache.__dict__.update(hidden)
    try:
        with instead(products), attention_seen_by(recorder.attention), recorder:
            result = forward(*args, **kwargs)
    finally:
        for name in hidden:
            del cache.__dict__[name]
    recorder.record.result = recorder.referred(result)
    if layer in records:
        raise UnsupportedError("a pass runs a layer more than once")
    records[layer] = recorder.record
    return result


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise UnsupportedError(f"a layer asks the cache for {name}")


def products_of(layer: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost matrix layers of a decoder layer, of whatever kind, by name."""
    found: dict[str, nn.Module] = {}
    for name, module in layer.named_modules():
        is_product = isinstance(getattr(module, "out_features", None), int)
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if (is_product or isinstance(module, Conv1D)) and name and not inside:
            found[name] = module
    return found


class _Recorder(TorchDispatchMode):
    """Notes what one layer does."""

    def __init__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.record = Record()
        self._known: dict[int, Any] = {}
        self._kept: list[Any] = []  # ids stay those of what they were noted for
        self._num_registers = 0
        self._names = {id(module): name for name, module in layer.named_modules()}
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            self._note(tensor, Weight(name))
        for path, value in flat(args, kwargs):
            if isinstance(value, Tensor):
                self._note(value, Input(path))
                self.record.given[path] = (tuple(value.shape), value.dtype)
            elif is_constant(value):
                self.record.given[path] = value
            else:
                self._known[id(value)] = Input(path)
                self._kept.append(value)
                self.record.given[path] = type(value)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise UnsupportedError(f"a layer changes a tensor in place ({func})")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnsupportedError(f"a layer draws random numbers ({func})")
        if REFUSED.intersection(func.tags):
            raise UnsupportedError(f"what a layer does depends on the numbers ({func})")
        made = func(*args, **kwargs)
        self._add("op", func, args, kwargs, made)
        return made

    def module(self, name: str, forward: Instead, *args: Any, **kwargs: Any) -> Tensor:
        """Note the call of a matrix layer."""
        if len(args) != 1 or kwargs:
            raise UnsupportedError(f"{name} is called with more than its input")
        with _pop_mode_temporarily():
            made: Tensor = forward(*args)
        self._add("module", name, args, {}, made)
        return made

    def update(
        self,
        update: Callable[..., tuple[Tensor, Tensor]],
        keys: Tensor,
        values: Tensor,
        layer: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        """Note that K/V of the rows are written."""
        with _pop_mode_temporarily():
            made = update(keys, values, layer)
        self.record.cache_layers += (layer,)
        self._add("update", None, (keys, values), {}, made)
        return made

    def attention(
        self, attend: Callable[..., Any], module: nn.Module, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Note the attention over all slots."""
        with _pop_mode_temporarily():
            mixed, weights = attend(module, *args, **kwargs)
        if weights is not None:
            raise UnsupportedError("attention returns its weights")
        if id(module) not in self._names:
            raise UnsupportedError("the attention is not a part of the layer")
        self._add("attention", self._names[id(module)], args, kwargs, mixed)
        return mixed, None

    def referred(self, value: Any) -> Any:
        """Return a value with references in place of tensors and objects."""
        if isinstance(value, tuple | list):
            return type(value)(map(self.referred, value))
        if isinstance(value, dict):
            return {name: self.referred(one) for name, one in value.items()}
        if id(value) in self._known:
            return self._known[id(value)]
        if isinstance(value, Tensor):
            raise UnsupportedError("a layer uses a tensor that is neither given nor its own")
        if not is_constant(value):
            raise UnsupportedError(f"a layer hands on a {type(value).__name__}")
        return value

    def _add(
        self, kind: str, what: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any
    ) -> None:
        args, kwargs = self.referred(args), self.referred(kwargs)
        makes = []
        for one in made if isinstance(made, tuple | list) else (made,):
            if not isinstance(one, Tensor):
                raise UnsupportedError(f"a layer reads a number out of a tensor ({what})")
            makes.append(self._num_registers)
            self._note(one, Register(self._num_registers))
            self._num_registers += 1
        self.record.steps.append(Step(kind, what, args, kwargs, tuple(makes)))

    def _note(self, tensor: Tensor, reference: Any) -> None:
        self._known[id(tensor)] = reference
        self._kept.append(tensor)
        self.record.sizes[reference] = (tuple(tensor.shape), tensor.dtype)
        if not tensor.is_contiguous():
            self.record.strided.add(reference)


def program_of(records: Sequence[Record]) -> Program:
    """Return the program of which all records are cases.

    Parameters
    ----------
    records : sequence of Record
        With different numbers of sequences and of rows, neither in step with the other.

    Raises
    ------
    UnsupportedError
        If there is none.
    """
    join = partial(_joined, _counts(records))
    first = records[0]
    for other in records[1:]:
        if first.given.keys() != other.given.keys() or len(first.steps) != len(other.steps):
            raise UnsupportedError(OTHERWISE)
    return Program(
        [
            Step(*(join(*values) for values in zip(*steps, strict=True)))
            for steps in zip(*(record.steps for record in records), strict=True)
        ],
        {key: _joined_sizes(join, [r.sizes[key] for r in records]) for key in first.sizes},
        {path: _joined_sizes(join, [r.given[path] for r in records]) for path in first.given},
        join(*(record.result for record in records)),
        set().union(*(record.strided for record in records)),
        join(*(record.cache_layers for record in records)),
    )


def _counts(records: Sequence[Record]) -> dict[str, list[int]]:
    """Return what numbers may depend on, by name, in each of the records."""
    shapes = []
    for record in records:
        given = (value[0] for value in record.given.values() if isinstance(value, tuple))
        shapes.append(next((shape for shape in given if len(shape) == 3), None))
    if None in shapes:
        raise UnsupportedError("a layer is not given one vector for each row")
    batch, rows = ([int(shape[d]) for shape in shapes if shape] for d in (0, 1))
    both = [a * b for a, b in zip(batch, rows, strict=True)]
    return {"rows": rows, "batch": batch, "batch * rows": both}


def _joined(counts: Mapping[str, list[int]], *values: Any) -> Any:
    """Return what is common to the values of all records."""
    first = values[0]
    if all(type(value) is type(first) for value in values):
        if all(value == first for value in values):
            return first
        if isinstance(first, dict) and all(value.keys() == first.keys() for value in values):
            return {name: _joined(counts, *(v[name] for v in values)) for name in first}
        if type(first) in {tuple, list} and all(len(value) == len(first) for value in values):
            return type(first)(_joined(counts, *parts) for parts in zip(*values, strict=True))
        if type(first) is int:
            for of, numbers in counts.items():
                times = first // numbers[0]
                if times > 0 and list(values) == [times * number for number in numbers]:
                    return Count(times, of)
    raise UnsupportedError(OTHERWISE)


def _joined_sizes(join: Callable[..., Any], values: list[Any]) -> Any:
    """Return a common shape and type, or what else a layer is given."""
    if not isinstance(values[0], tuple):
        return join(*values)
    shapes, dtypes = zip(*values, strict=True)
    if len(set(dtypes)) > 1 or len(set(map(len, shapes))) > 1:
        raise UnsupportedError(OTHERWISE)
    sizes: list[Any] = []
    for parts in zip(*shapes, strict=True):
        try:
            sizes.append(join(*parts))
        except UnsupportedError:
            sizes.append(None)
    return tuple(sizes), dtypes[0]


def flat(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """Yield what a layer is called with, by position or name; what is in tuples, by place."""
    named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for name, value in named:
        if isinstance(value, tuple):
            yield from (((name, place), one) for place, one in enumerate(value))
        else:
            yield (name,), value


def is_constant(value: object) -> bool:
    """Say whether a value can stand in a program as it is."""
    return value is None or isinstance(value, CONSTANTS)
