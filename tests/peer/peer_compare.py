"""Two answers to one call, and every way in which they differ."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: Largest difference of scores, logits, states and K/V that counts as rounding in 32 bits.
CLOSE = 1e-4


@dataclass
class Answer:
    """What a call gave: a result or an exception, and what it did to its surroundings."""

    result: Any = None
    error: Exception | None = None
    caches: list[Any] = field(default_factory=list)
    random_state: Tensor | None = None

    @classmethod
    def of(
        cls, function: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]
    ) -> Answer:
        """Call it."""
        answer = cls(caches=[v for v in kwargs.values() if hasattr(v, "get_seq_length")])
        try:
            answer.result = function(model, *args, **kwargs)
        except Exception as error:
            answer.error = error
        answer.random_state = torch.get_rng_state()
        return answer

    @property
    def ids(self) -> list[list[int]]:
        """Rows of the answer, prompt included; none where it has no ids."""
        found = getattr(self.result, "sequences", self.result)
        is_ids = isinstance(found, Tensor) and found.ndim == 2 and not found.is_floating_point()
        return found.tolist() if is_ids else []


class Oracle:
    """Guesses the known answer, with a wrong token beside each right one."""

    name = "oracle"

    def __init__(self, rows: list[list[int]], text_config: Any) -> None:
        self.rows, self.vocab = rows, getattr(text_config, "vocab_size", 2)

    def draft(self, context: list[int], max_nodes: int) -> list[list[int]]:
        right = self._rest(context)[:3]
        wrong = [(token + 1) % self.vocab for token in right]
        return [right, *[[*right[:i], wrong[i]] for i in range(len(right))]]

    def _rest(self, context: list[int]) -> list[int]:
        num = len(context)
        for row in self.rows:
            for start in range(len(row) - num + 1):  # padding may stand before the prompt
                if row[start : start + num] == context:
                    return row[start + num :]
        return []


def copied(model: Any, arguments: Any) -> Any:
    """Copy the arguments of a call; models among them are not copied."""
    memo: dict[int, Any] = {id(model): model}
    for value in arguments[1].values():
        _prepare(value, memo)
    return copy.deepcopy(arguments, memo)


def _prepare(value: Any, memo: dict[int, Any]) -> None:
    """Put into ``memo`` what ``deepcopy`` should not or cannot copy itself: see `copied`."""
    if isinstance(value, torch.nn.Module):
        memo[id(value)] = value
    elif isinstance(value, Tensor):
        memo[id(value)] = value.detach().clone()  # those with a gradient cannot be deep-copied
    elif isinstance(value, dict):
        for part in value.values():
            _prepare(part, memo)
    elif isinstance(value, list | tuple):
        for part in value:
            _prepare(part, memo)
    elif hasattr(value, "get_seq_length"):
        _prepare(vars(value), memo)


def differences(plain: Answer, fast: Answer) -> Iterator[str]:
    """Yield every way in which two answers differ, as a sentence."""
    if plain.error is not None or fast.error is not None:
        if type(plain.error) is not type(fast.error):
            yield f"plain raised {shown(plain.error)}, accelerated raised {shown(fast.error)}"
        return
    yield from _results(plain.result, fast.result)
    assert plain.random_state is not None
    assert fast.random_state is not None
    if not torch.equal(plain.random_state, fast.random_state):
        yield "random numbers go on in another place"
    for one, other in zip(plain.caches, fast.caches, strict=True):
        yield from _caches("the cache passed in", one, other)


def _results(plain: Any, fast: Any) -> Iterator[str]:
    if type(plain) is not type(fast):
        yield f"plain gave {type(plain).__name__}, accelerated {type(fast).__name__}"
        return
    if isinstance(plain, Tensor):
        yield from _tensors("the ids", plain, fast)
        return
    if not hasattr(plain, "keys"):
        return
    if list(plain.keys()) != list(fast.keys()):
        yield f"plain has the fields {list(plain.keys())}, accelerated {list(fast.keys())}"
    for name in plain.keys() & fast.keys():
        if hasattr(plain[name], "get_seq_length"):
            yield from _caches(f"field {name}", plain[name], fast[name])
        else:
            yield from _values(f"field {name}", plain[name], fast[name])


def _values(name: str, plain: Any, fast: Any) -> Iterator[str]:
    if isinstance(plain, Tensor) and isinstance(fast, Tensor):
        yield from _tensors(name, plain, fast)
    elif isinstance(plain, tuple) and isinstance(fast, tuple):
        if len(plain) != len(fast):
            yield f"{name} has {len(plain)} parts plain and {len(fast)} accelerated"
            return
        for i, (one, other) in enumerate(zip(plain, fast, strict=True)):
            found = list(_values(f"{name}[{i}]", one, other))
            if found:
                yield found[0]
                return


def _tensors(name: str, plain: Tensor, fast: Tensor) -> Iterator[str]:
    if plain.shape != fast.shape or plain.dtype != fast.dtype:
        yield f"{name}: {shown(plain)} plain, {shown(fast)} accelerated"
    elif plain.is_floating_point():
        same = torch.isclose(plain, fast, rtol=CLOSE, atol=CLOSE, equal_nan=True)
        if not bool(same.all()):
            gap = (plain - fast).abs()[~same]
            yield f"{name} differ at {int((~same).sum())} places by up to {float(gap.max()):.3g}"
    elif not torch.equal(plain, fast):
        rows = (plain != fast).reshape(-1, plain.shape[-1])
        row = int(rows.any(1).nonzero()[0])
        yield f"{name} differ, first in row {row} at {int(rows[row].nonzero()[0])}"


def _caches(name: str, plain: Any, fast: Any) -> Iterator[str]:
    if type(plain) is not type(fast):
        yield f"{name} is a {type(plain).__name__} plain and a {type(fast).__name__} accelerated"
        return
    lengths = [_length(cache) for cache in (plain, fast)]
    if lengths[0] != lengths[1]:
        yield f"{name} has {lengths[0]} tokens plain and {lengths[1]} accelerated"
        return
    for i, (one, other) in enumerate(_layers(plain, fast)):
        if type(one) is not type(other):
            yield f"{name}, layer {i}: {type(one).__name__} plain, {type(other).__name__} fast"
            return
        for part in ("keys", "values"):
            pair = [getattr(layer, part, None) for layer in (one, other)]
            if all(isinstance(p, Tensor) and p.numel() for p in pair):
                found = list(_tensors(f"{name}, {part} of layer {i}", *pair))
                if found:
                    yield found[0]
                    return


def _length(cache: Any) -> int | None:
    try:
        return int(cache.get_seq_length())
    except ValueError:  # recurrent layers only
        return None


def _layers(plain: Any, fast: Any) -> Iterator[tuple[Any, Any]]:
    yield from zip(getattr(plain, "layers", ()), getattr(fast, "layers", ()), strict=False)


def shown(value: Any) -> str:
    """Return a value, short."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {(str(value).splitlines() or [''])[0][:150]}"
    if isinstance(value, bool | int | float | str | None):
        return repr(value)[:60]
    return type(value).__name__
