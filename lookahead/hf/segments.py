"""A recorded layer as source text: what can be fused in segments, and the calls between them.

Between two matrix products a layer does a dozen small things to few numbers: norms, rotary
embedding, activation, residuals. Each segment holds what can be done at one go, and is a function
of tensors alone; the layer's own function calls segments, matrix layers, cache and attention.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lookahead.errors import UnsupportedError
from lookahead.hf.recording import Count, Input, Program, Register, Step, Weight

__all__ = ["LayerSource", "Segment", "layer_source"]

#: Operations on few numbers that are no pointwise ones and no views, but can be fused with them.
ALSO_FUSED = frozenset(
    f"aten.{name}"
    for name in (
        "_softmax.default",
        "_to_copy.default",
        "_unsafe_view.default",
        "amax.default",
        "cat.default",
        "clone.default",
        "mean.dim",
        "native_layer_norm.default",
        "rsqrt.default",
        "stack.default",
        "sum.dim_IntList",
        "var_mean.correction",
    )
)

#: Fewer operations than these are no faster at one go.
FEWEST = 2


BATCH, ROWS = Count(1, "batch"), Count(1, "rows")


class Segment(NamedTuple):
    """What is done at one go, as a function of tensors.

    Attributes
    ----------
    source : str
        Of a function ``segment`` that returns a tuple of tensors.
    sizes : tuple of (shape, dtype)
        Of its arguments; in a shape, ``"2 * rows"`` is twice the number of rows.
    """

    source: str
    sizes: tuple[tuple[tuple[int | str, ...], str], ...]

    @property
    def key(self) -> str:
        """What it is known by on disk."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()

    @property
    def text(self) -> str:
        """All of it, for another process."""
        return json.dumps([self.source, self.sizes])

    @classmethod
    def from_text(cls, text: str) -> Segment:
        """Return what another process has written."""
        source, sizes = json.loads(text)
        return cls(source, tuple((tuple(shape), dtype) for shape, dtype in sizes))


@dataclass(frozen=True)
class LayerSource:
    """The source of one layer's function, and what it takes from where.

    Attributes
    ----------
    source : str
        Of a function ``layer`` that is called as the layer is. Where in the cache it writes
        stands there as ``cache_layer_0`` and so on.
    given : list of tuple
        Paths.
    weights, modules : dict of str to str
        Names in the source, and in the layer.
    segments : list of Segment
        Called by the source as ``segment_0`` and so on, with a list, and return a list.
    hidden : tuple
        Path of the hidden states, [batch, rows, width], that the layer is given.
    """

    source: str
    given: list[tuple[int | str, ...]]
    weights: dict[str, str]
    modules: dict[str, str]
    segments: list[Segment]
    hidden: tuple[int | str, ...]


def layer_source(program: Program) -> LayerSource:
    """Write a program as source text.

    Raises
    ------
    UnsupportedError
        If there is nothing in it to be fused.
    """
    return _Writer(program).written()


class _Writer:
    """Puts a program in order: all that can be fused of one level, then the calls behind it."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._made_by = {n: step for step in program.steps for n in step.makes}
        self._lines: list[str] = []
        self._segments: list[Segment] = []
        self._modules: dict[str, str] = {}
        self._given = list(program.given)
        self._weights: dict[str, str] = {}
        self._there: set[int] = set()  # registers that the lines so far have made
        self._levels: dict[int, int] = {}
        self._num_updates = 0
        for step in program.steps:
            level = max((self._level(ref) for ref in _registers(step)), default=0)
            for register in step.makes:
                self._levels[register] = level + (not _is_fused(step))

    def written(self) -> LayerSource:
        by_level: dict[int, tuple[list[Step], list[Step]]] = {}
        for step in self._program.steps:
            if not _is_view(step):
                level = self._levels[step.makes[0]] - (not _is_fused(step))
                by_level.setdefault(level, ([], []))[not _is_fused(step)].append(step)
        for _, (fused, calls) in sorted(by_level.items()):
            if len(fused) >= FEWEST:
                self._write_segment(fused)
            else:
                for step in fused:
                    self._write_step(step)
            for step in calls:
                self._write_step(step)
        if not self._segments:
            raise UnsupportedError("there is nothing to be fused between its matrix products")
        for register in _registers_in(self._program.result):
            self._need(register)
        hidden = self._hidden()
        head = [
            f"def layer({', '.join(dict.fromkeys(_argument(path) for path in self._given))}):",
            *(f"    {line}" for line in self._unpacking()),
            f"    batch, rows, _ = {self._name(Input(hidden))}.shape",
        ]
        body = [f"    {line}" for line in self._lines]
        end = f"    return {self._text(self._program.result)}"
        return LayerSource(
            "\n".join([*head, *body, end, ""]),
            self._given,
            {v: k for k, v in self._weights.items()},
            {v: k for k, v in self._modules.items()},
            self._segments,
            hidden,
        )

    def _hidden(self) -> tuple[int | str, ...]:
        for path, value in self._program.given.items():
            if isinstance(value, tuple) and value[0][:-1] == (BATCH, ROWS):
                return path
        raise UnsupportedError("a layer is not given one vector for each row")

    def _unpacking(self) -> Iterator[str]:
        """Yield lines that take tuples apart that the layer is given."""
        for name in dict.fromkeys(path[0] for path in self._given if len(path) > 1):
            parts = [self._name(Input(path)) for path in self._given if path[0] == name]
            yield f"{', '.join(parts)}, = {_argument((name,))}"

    def _level(self, register: int) -> int:
        return self._levels[register]

    def _need(self, register: int) -> None:
        """See to it that a register has been made: views are, where they are needed."""
        if register not in self._there:
            self._write_step(self._made_by[register])

    def _write_step(self, step: Step) -> None:
        for register in _registers(step):
            self._need(register)
        made = ", ".join(f"r{n}" for n in step.makes)
        args = [self._text(one) for one in step.args]
        if step.kind == "module":
            call = f"{self._module(step.what)}({args[0]})"
        elif step.kind == "update":
            name = next(p for p, value in self._program.given.items() if isinstance(value, type))
            place = f"cache_layer_{self._num_updates}"
            self._num_updates += 1
            call = f"{self._name(Input(name))}.update({', '.join([*args, place])})"
        elif step.kind == "attention":
            more = [f"{name}={self._text(value)}" for name, value in step.kwargs.items()]
            call = f"attend({', '.join([self._module(step.what), *args, *more])})[0]"
        else:
            call = self._operation(step, self._text)
        self._lines.append(f"{made} = {call}")
        self._there.update(step.makes)

    def _write_segment(self, fused: list[Step]) -> None:
        """Write steps of one level as a segment, with copies of the views they look through."""
        inside = {n for step in fused for n in step.makes}
        steps: list[Step] = []
        taken: list[Any] = []  # what comes from outside
        done: set[int] = set()

        def include(step: Step) -> None:
            for ref in _references(step):
                source = self._made_by.get(ref.number) if isinstance(ref, Register) else None
                if source is not None and _is_view(source):
                    if ref.number not in done:
                        include(source)
                elif ref not in taken and not (isinstance(ref, Register) and ref.number in inside):
                    taken.append(ref)
            steps.append(step)
            done.update(step.makes)

        for step in fused:
            include(step)
        returned = [n for n in sorted(inside) if self._is_used_outside(n, fused)]
        segment = self._segment(steps, taken, returned)
        if segment not in self._segments:
            self._segments.append(segment)
        for ref in taken:
            if isinstance(ref, Register):
                self._need(ref.number)
        made = ", ".join(f"r{n}" for n in returned)
        args = ", ".join(map(self._name, taken))
        self._lines.append(f"[{made}] = segment_{self._segments.index(segment)}([{args}])")
        self._there.update(returned)

    def _is_used_outside(self, register: int, fused: list[Step]) -> bool:
        """Say whether a value is needed behind its segment, be it through a view."""
        if register in _registers_in(self._program.result):
            return True
        for step in self._program.steps:
            if register not in _registers(step):
                continue
            if _is_view(step):
                if any(self._is_used_outside(n, fused) for n in step.makes):
                    return True
            elif step not in fused:
                return True
        return False

    def _segment(self, steps: list[Step], taken: list[Any], returned: list[int]) -> Segment:
        names: dict[Any, str] = {ref: f"a{i}" for i, ref in enumerate(taken)}
        for step in steps:
            for register in step.makes:
                names.setdefault(Register(register), f"v{len(names) - len(taken)}")

        def text(value: Any) -> str:
            return _text(value, names.__getitem__)

        sizes = [self._program.sizes[ref] for ref in taken]
        if any(ref in self._program.strided for ref in taken):
            raise UnsupportedError("a layer looks at numbers that do not lie one behind another")
        lines = [
            f"    {of} = a{argument}.shape[{dimension}]"
            for of, argument, dimension in self._counted(sizes)
        ]
        for step in steps:
            made = ", ".join(names[Register(n)] for n in step.makes)
            lines.append(f"    {made} = {self._operation(step, text)}")
        head = f"def segment({', '.join(f'a{i}' for i in range(len(taken)))}):"
        end = f"    return ({''.join(f'{names[Register(n)]}, ' for n in returned)})"
        return Segment("\n".join([head, *lines, end, ""]), tuple(map(_size_text, sizes)))

    @staticmethod
    def _counted(sizes: list[Any]) -> Iterator[tuple[str, int, int]]:
        """Yield where a segment reads how large the batch is, and how many rows there are."""
        for count in (BATCH, ROWS):
            for argument, (shape, _) in enumerate(sizes):
                if count in shape:
                    yield count.of, argument, shape.index(count)
                    break

    @staticmethod
    def _operation(step: Step, text: Any) -> str:
        args = [text(one) for one in step.args]
        more = [f"{name}={text(value)}" for name, value in step.kwargs.items()]
        return f"torch.ops.{step.what}({', '.join([*args, *more])})"

    def _text(self, value: Any) -> str:
        return _text(value, self._name)

    def _name(self, ref: Any) -> str:
        if isinstance(ref, Register):
            return f"r{ref.number}"
        if isinstance(ref, Weight):
            return self._weights.setdefault(ref.name, f"w{len(self._weights)}")
        return _argument(ref.path) if len(ref.path) == 1 else f"g{self._given.index(ref.path)}"

    def _module(self, name: str) -> str:
        return self._modules.setdefault(name, f"m{len(self._modules)}")


def _argument(path: tuple[int | str, ...]) -> str:
    """Return the name of what a layer is given by position or name."""
    return path[0] if isinstance(path[0], str) else f"g{path[0]}"


def _text(value: Any, name: Any) -> str:
    """Write a value as source text."""
    if isinstance(value, (Register, Input, Weight)):
        return str(name(value))
    if isinstance(value, Count):
        return value.of if value.times == 1 else f"{value.times} * {value.of}"
    if isinstance(value, list):
        return f"[{', '.join(_text(one, name) for one in value)}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{_text(one, name)}, ' for one in value)})"
    if isinstance(value, torch.device):
        return f"torch.{value!r}"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    return repr(value)


def _size_text(size: tuple[tuple[Any, ...], torch.dtype]) -> tuple[tuple[int | str, ...], str]:
    shape, dtype = size
    if None in shape:
        raise UnsupportedError("a layer looks at what is as long as the text")
    sizes = (_text(one, str) if isinstance(one, Count) else one for one in shape)
    return tuple(sizes), str(dtype).removeprefix("torch.")


def _is_view(step: Step) -> bool:
    return step.kind == "op" and step.what._schema.returns[0].alias_info is not None


def _is_fused(step: Step) -> bool:
    if step.kind != "op":
        return False
    pointwise = torch.Tag.pointwise in step.what.tags
    return pointwise or _is_view(step) or str(step.what) in ALSO_FUSED


def _references(step: Step) -> Iterator[Any]:
    for value in (*step.args, *step.kwargs.values()):
        yield from _references_in(value)


def _references_in(value: Any) -> Iterator[Any]:
    if isinstance(value, (Register, Input, Weight)):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _references_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _references_in(one)


def _registers(step: Step) -> set[int]:
    return {ref.number for ref in _references(step) if isinstance(ref, Register)}


def _registers_in(value: Any) -> set[int]:
    return {ref.number for ref in _references_in(value) if isinstance(ref, Register)}
