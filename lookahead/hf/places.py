"""What a model derives from the slot of a row, made from the place that the row stands for.

Some families read no position ids: ALiBi and the buckets of T5 come from where a key lies in the
cache, learnt positions of BART from how long the cache is. In plain decoding slot and place are the
same. In a tree pass they are not, and for its length the modules concerned are called with what
plain decoding would have given them. A pass of another thread is not touched.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from lookahead.hf.compat import OWN_MASK, first_place, length_argument
from lookahead.hf.masks import Visibility
from lookahead.hf.split import Instead, instead

__all__ = ["PlaceReaders", "Places"]


class Places:
    """The places of all rows and slots of one pass.

    Parameters
    ----------
    visibility : Visibility
    live : Tensor, bool, [batch, slots], or None
        False where the prompt is padding; it may end before the slots do.

    Attributes
    ----------
    rows : Tensor, int64, [batch, rows]
        Place of each row of the pass, padding counted.
    keys : Tensor, int64, [batch, slots]
        The same for each slot.
    live_keys : Tensor, int64, [batch, slots]
        The same, padding not counted.
    """

    def __init__(self, visibility: Visibility, live: Tensor | None) -> None:
        self.rows = visibility.row_slots
        self.keys = visibility.key_slots
        self._may_see = visibility.may_see
        self.embedded: Tensor | None = None  # [batch, rows, width], once it is made
        self._live = live
        self._known: dict[tuple[str, int], tuple[Any, Any]] = {}

    @functools.cached_property
    def live_keys(self) -> Tensor:
        """Place of each slot, padding not counted, int64, [batch, slots]."""
        if self._live is None:
            return self.keys
        num_slots = self.keys.shape[1]
        dead = (~self._live[:, :num_slots]).long().cumsum(dim=1).to(self.keys.device)
        behind = dead[:, -1:].expand(-1, num_slots - dead.shape[1])
        return (self.keys - torch.cat([dead, behind], dim=1)).clamp(min=0)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Return who may see whom as numbers that are added, [batch, 1, rows, slots]."""
        shown = torch.zeros(self.hidden.shape, dtype=dtype, device=self.hidden.device)
        return shown.masked_fill(self.hidden, torch.finfo(dtype).min)

    @functools.cached_property
    def hidden(self) -> Tensor:
        """Whom a row must not see, bool, [batch, 1, rows, slots]."""
        return ~self._may_see[:, None]

    def once(self, name: str, given: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes of a value, made once in a pass: layers share their biases."""
        key = (name, id(given))
        if key not in self._known:
            self._known[key] = (given, make())  # while the value is kept, its id is its own
        return self._known[key][1]


#: Makes what a module does in a pass, in place of a method of its own.
Correction = Callable[[Any, Places], Instead]


class PlaceReaders:
    """The modules of one model that read slots where they should read places.

    Parameters
    ----------
    model : PreTrainedModel
        Not changed outside of the passes.
    takes_positions : bool
        Whether it is given position ids: then it embeds those.
    """

    def __init__(self, model: Any, *, takes_positions: bool) -> None:
        #: By the method that is replaced: modules, and what makes the replacement.
        self._found: dict[str, list[tuple[nn.Module, Correction]]] = {}
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
        for module in decoder.modules():
            if hasattr(type(module), OWN_MASK) and not _slides(model):
                self._found.setdefault(OWN_MASK, []).append((module, _own_mask))
            method, correction = _correction(module, takes_positions=takes_positions)
            if correction is not None:
                self._found.setdefault(method, []).append((module, correction))

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    @contextmanager
    def corrected(self, visibility: Visibility, live: Tensor | None) -> Iterator[None]:
        """Have the passes of this thread in the block read places; see :class:`Places`."""
        places = Places(visibility, live)
        with ExitStack() as stack:
            for method, found in self._found.items():
                own = {module: make(module, places) for module, make in found}
                stack.enter_context(instead(own, method))
            yield


def _correction(module: nn.Module, *, takes_positions: bool) -> tuple[str, Correction | None]:
    """Return the method to be replaced in a module, and by what, if anything."""
    known = _BY_CLASS.get(type(module).__name__)
    if known is not None:
        return known
    if getattr(module, "has_relative_attention_bias", False) and hasattr(module, "compute_bias"):
        return "compute_bias", _relative_bias if getattr(module, "is_decoder", False) else None
    if not takes_positions and length_argument(type(module).forward):
        return "forward", _embedded_positions
    return "", None


def _slides(model: Any) -> bool:
    """Say whether layers have windows, which only a mask of the model's own would keep."""
    config = model.config.get_text_config(decoder=True)
    return True in DynamicCache(config=config).is_sliding


@functools.lru_cache(maxsize=256)
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)


def _own_mask(module: Any, places: Places) -> Instead:
    names = _parameters(getattr(type(module), OWN_MASK))[1:]

    def make(_: Instead, *args: Any, **kwargs: Any) -> Tensor:
        call = dict(zip(names, args, strict=False)) | kwargs
        embedded = call["inputs_embeds"] if "inputs_embeds" in call else call["input_tensor"]
        return places.mask(embedded.dtype)

    return make


def _bloom(module: Any, places: Places) -> Instead:  # noqa: ARG001
    def attend(forward: Instead, *args: Any, **kwargs: Any) -> Any:
        alibi = kwargs["alibi"]
        kwargs["alibi"] = places.once("alibi", alibi, lambda: _by_key(alibi, places.live_keys))
        return forward(*args, **kwargs)

    return attend


def _falcon(module: Any, places: Places) -> Instead:
    """Correct ALiBi, which the mask contains as well."""

    def attend(forward: Instead, *args: Any, **kwargs: Any) -> Any:
        alibi, mask = kwargs["alibi"], kwargs["attention_mask"]
        if alibi is None:
            return forward(*args, **kwargs)
        right = places.once("alibi", alibi, lambda: _by_key(alibi, places.live_keys))
        kwargs["alibi"] = right
        kwargs["attention_mask"] = places.once("mask", mask, lambda: masked(mask, right))
        return forward(*args, **kwargs)

    def masked(mask: Tensor, alibi: Tensor) -> Tensor:
        lowest = torch.finfo(mask.dtype).min
        apart = alibi.reshape(len(mask), -1, 1, alibi.shape[-1])
        return torch.where(mask == lowest, lowest, apart / math.sqrt(module.head_dim))

    return attend


def _mpt(module: Any, places: Places) -> Instead:  # noqa: ARG001
    def attend(forward: Instead, *args: Any, **kwargs: Any) -> Any:
        bias = kwargs["position_bias"]
        kwargs["position_bias"] = places.once("bias", bias, lambda: right(bias))
        kwargs["attention_mask"] = places.hidden  # in 4.57 no rule made it
        return forward(*args, **kwargs)

    def right(bias: Tensor) -> Any:
        # The bias ends with that of the last key. Which key that is changes all of a row alike.
        last = places.rows[:, :1]
        columns = (bias.shape[-1] - 1 + places.keys - last).clamp(0, bias.shape[-1] - 1)
        taken = bias[:, 0][:, columns]  # [heads, batch, slots]
        ahead = (places.keys - last).clamp(min=0)
        step = bias[:, 0, -1:] - bias[:, 0, -2:-1]
        taken = (taken + step[:, :, None] * ahead).transpose(0, 1)[:, :, None]
        return taken[0] if len(taken) == 1 else _BiasOfBatch(taken)

    return attend


class _BiasOfBatch:
    """Passes for one bias of three axes where every sequence has its own.

    MPT looks at the shape, cuts the bias to size, which it has already, and adds it.
    """

    def __init__(self, bias: Tensor) -> None:
        self._bias = bias
        self.shape = bias.shape[1:]

    def size(self, axis: int) -> int:
        """Return the size along an axis, that of sequences left out."""
        return self.shape[axis]

    def __getitem__(self, _: Any) -> _BiasOfBatch:
        return self

    def __radd__(self, scores: Tensor) -> Tensor:
        return scores + self._bias


def _relative_bias(module: Any, places: Places) -> Instead:  # noqa: ARG001
    """Compute the bias of T5 and its kin between places."""

    def compute(bias: Instead, *_: Any, **__: Any) -> Tensor:
        low, high = int(places.rows.min()), int(places.rows.max())
        # From every place where a row stands to every place: [heads, places of rows, places]
        device = places.rows.device
        first = first_place(bias, low, high, device)
        table = bias(high + 1 - low, high + 1, device=device, **first)[0]
        keys = places.keys.clamp(max=high)  # what lies ahead is not seen
        taken: Tensor = table[:, (places.rows - low)[:, :, None], keys[:, None, :]]
        return taken.transpose(0, 1)

    return compute


def _gpt_neo(module: Any, places: Places) -> Instead:
    """Cut local windows by place: the method reads them out of a table by slot."""

    def attend(original: Any, *args: Any, **kwargs: Any) -> Any:
        kind = module.config.attention_layers[module.layer_id]
        window = module.config.window_size if kind == "local" else None
        near = places.once("near", window, lambda: _near(places, window))
        table = SimpleNamespace(bias=_Cut(near), attn_dropout=module.attn_dropout)
        return original.__func__(table, *args, **kwargs)

    return attend


def _near(places: Places, window: int | None) -> Tensor:
    """Return which slots are in the window of a row, bool, [batch, 1, rows, slots]."""
    behind = places.rows[:, None, :, None] - places.keys[:, None, None, :]
    return torch.ones_like(behind, dtype=torch.bool) if window is None else behind < window


class _Cut:
    """Passes for a table of which the part that is wanted has been cut out already."""

    def __init__(self, part: Tensor) -> None:
        self._part = part

    def __getitem__(self, _: Any) -> Tensor:
        return self._part


def _embedded_positions(module: Any, places: Places) -> Instead:
    """Embed every row at its place, as a single step of plain decoding would."""
    signature = inspect.signature(module.forward)
    length_name = str(length_argument(module.forward))

    def embed(forward: Instead, *args: Any, **kwargs: Any) -> Tensor:
        call = signature.bind(*args, **kwargs).arguments
        # Made by the family itself, from the length of the cache.
        is_table = call.get("position_ids") is not None and isinstance(module, nn.Embedding)
        made = by_positions(forward, call) if is_table else by_length(forward, call)
        places.embedded = made
        # RoFormer takes one set of positions for all sequences; see below.
        shared = len(made) == 1 or type(module).__name__.startswith("RoFormer")
        return made[0] if shared else made

    def by_positions(forward: Instead, call: dict[str, Any]) -> Tensor:
        given = call["position_ids"]
        rows = places.rows.reshape((1,) * (given.ndim - 1) + (-1,))
        made: Tensor = forward(**(call | {"position_ids": rows}))
        return made.reshape(*places.rows.shape, made.shape[-1])

    def by_length(forward: Instead, call: dict[str, Any]) -> Tensor:
        rows = places.rows
        call.pop("position_ids", None)
        joined: Tensor | None = None
        for place in rows.unique().tolist():
            there = rows == place
            step = {name: _rows_of(value, there) for name, value in call.items()}
            one = forward(**(step | {length_name: place}))
            if joined is None:
                joined = one.new_empty((*rows.shape, one.shape[-1]))
            joined[there] = one.reshape(-1, one.shape[-1])
        assert joined is not None
        return joined

    return embed


def _roformer(module: Any, places: Places) -> Instead:  # noqa: ARG001
    """Hand every sequence of a batch its own sinusoids; the family has one set for all."""

    def attend(forward: Instead, *args: Any, **kwargs: Any) -> Any:
        if places.embedded is not None and kwargs.get("sinusoidal_pos") is not None:
            kwargs["sinusoidal_pos"] = places.embedded[:, None]
        return forward(*args, **kwargs)

    return attend


def _rows_of(value: Any, there: Tensor) -> Any:
    """Return the rows of an argument as a batch of single steps; it may be a shape, or neither."""
    if isinstance(value, Tensor) and value.shape[:2] == there.shape:
        return value[there][:, None]
    if isinstance(value, tuple) and tuple(value[:2]) == tuple(there.shape):
        return torch.Size((int(there.sum()), 1, *value[2:]))
    return value


def _by_key(bias: Tensor, places: Tensor) -> Tensor:
    """Take the columns of a bias, [batch x heads, 1, slots] or with both apart, by place."""
    batch, slots = places.shape
    apart = bias.reshape(batch, -1, 1, slots)
    index = places.clamp(max=slots - 1)[:, None, None, :].expand_as(apart)
    return apart.gather(-1, index).reshape(bias.shape)


#: By the class of a module: the method that is replaced, and by what.
_BY_CLASS: dict[str, tuple[str, Correction]] = {
    "BloomAttention": ("forward", _bloom),
    "FalconAttention": ("forward", _falcon),
    "GPTNeoSelfAttention": ("_attn", _gpt_neo),
    "MptAttention": ("forward", _mpt),
    "RoFormerSelfAttention": ("forward", _roformer),
}
