"""Hidden states and attentions of the accepted rows, as passes over single tokens give them.

A pass over a tree computes them for every node. What stays is cut out row by row: query length 1,
and of the attention only the columns that plain decoding has, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lookahead.hf.cache import SlotCache
from lookahead.hf.kinds import LayerForm

__all__ = ["StepOutputs", "fields_of", "layer_types", "wanted_outputs"]

#: Fields of a model's output, by the setting of ``generate`` that asks for them.
OUTPUTS: dict[str, tuple[str, ...]] = {
    "output_attentions": ("attentions",),
    "output_hidden_states": ("hidden_states",),
}
#: The same where there is an encoder.
OF_DECODER: dict[str, tuple[str, ...]] = {
    "output_attentions": ("decoder_attentions", "cross_attentions"),
    "output_hidden_states": ("decoder_hidden_states",),
}

#: The tensors of one pass, one a layer; what a model leaves out is None.
Layers = tuple[Tensor | None, ...] | None


def fields_of(model: Any) -> dict[str, tuple[str, ...]]:
    """Return the fields that a model's passes can give, by the setting that asks for them."""
    return OF_DECODER if model.config.is_encoder_decoder else OUTPUTS


def wanted_outputs(model: Any, generation_config: Any) -> tuple[str, ...]:
    """Return the fields that a call is to return for every token."""
    if not generation_config.return_dict_in_generate:
        return ()
    asked = [s for s in fields_of(model) if getattr(generation_config, s, None)]
    return tuple(field for setting in asked for field in fields_of(model)[setting])


def layer_types(model: Any) -> tuple[str, ...]:
    """Return the kind of each decoder layer, as far as the configuration has kinds."""
    text = model.config.get_text_config(decoder=True)
    return tuple(getattr(text, "layer_types", None) or ())


class StepOutputs:
    """Collects fields of a model's output, token by token.

    Parameters
    ----------
    fields : sequence of str
        Of those of :func:`fields_of`.
    cache : SlotCache
        Knows which slots a layer shows to a pass.
    batch : int
        Number of sequences.
    layer_types : sequence of str
        The kind of each decoder layer, where the configuration has kinds: a layer that borrows the
        K/V of another has no place of its own in the cache.
    """

    def __init__(
        self, fields: Sequence[str], cache: SlotCache, batch: int, layer_types: Sequence[str] = ()
    ) -> None:
        self._fields = tuple(fields)
        self._cache = cache
        self._layer_types = layer_types
        self._prompt: dict[str, Layers] = {}
        self._pass: dict[str, Layers] = {}
        self._longest = 0  # slots of the longest sequence when the last pass ran
        self._steps: list[dict[str, list[Layers]]] = [
            {field: [] for field in self._fields} for _ in range(batch)
        ]

    def take_prompt(self, outputs: Any) -> None:
        """Take what the pass that read the prompt, or the last part of it, computed."""
        end = self._cache.lengths[0]
        for field in self._fields:
            layers = outputs.get(field)
            if _is_of_text(field) and layers is not None:
                layers = _each(layers, lambda i, a: _cut_columns(a, self._form(i), end))
            self._prompt[field] = layers

    def take_pass(self, outputs: Any) -> None:
        """Hold on to what a pass over trees computed, until it is known which rows stay."""
        self._pass = {field: outputs.get(field) for field in self._fields}
        self._longest = max(self._cache.lengths)

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Cut out these rows of the last pass for one sequence; before the cache keeps them."""
        for field, layers in self._pass.items():
            cut = _hidden_row if field.endswith("hidden_states") else _cross_row
            cut = self._attention_row if _is_of_text(field) else cut
            for place in range(len(path)):
                row = None if layers is None else cut(layers, slot, path[: place + 1])
                self._steps[slot][field].append(row)

    def joined(self) -> dict[str, tuple[Layers, ...]]:
        """Return all fields: for each token, for each layer, a tensor of all sequences."""
        found = {}
        for field in self._fields:
            rows = [steps[field] for steps in self._steps]
            behind = 3 if field.endswith("hidden_states") else 4  # dimensions from the batch on
            steps = [_stack(at_once, behind) for at_once in zip(*rows, strict=True)]
            found[field] = (self._prompt[field], *steps)
        return found

    def _attention_row(
        self, layers: Sequence[Tensor | None], slot: int, path: Sequence[int]
    ) -> Layers:
        base = self._cache.lengths[slot]

        def cut(index: int, attention: Tensor) -> Tensor:
            num_rows, columns = attention.shape[-2:]
            start = self._longest + num_rows - columns  # the first slot that the layer still holds
            first, empty = self._form(index).columns(base + len(path), 1)
            slots = [*range(first, base), *(base + row for row in path)]
            slots = slots[max(0, first - base) :]
            wanted = torch.tensor(slots, device=attention.device) - start
            row = attention[slot : slot + 1, :, path[-1] : path[-1] + 1]
            return _widened(row.index_select(-1, wanted), empty)

        return _each(layers, cut)

    def _form(self, index: int) -> LayerForm:
        """Return what the cache of a layer shows; that of the layer it borrows from."""
        own = [i for i, layer in enumerate(self._cache.layers) if layer.is_initialized]
        if index not in own:
            kind = self._layer_types[index]
            index = max(i for i in own if i < index and self._layer_types[i] == kind)
        form: LayerForm = self._cache.layers[index].form
        return form


def _is_of_text(field: str) -> bool:
    """Say whether a field has a column for every slot of the text; what was encoded has its own."""
    return field in ("attentions", "decoder_attentions")


def _hidden_row(layers: Sequence[Tensor | None], slot: int, path: Sequence[int]) -> Layers:
    row = path[-1]
    # Some models put streams before the batch, [streams, batch, rows, width].
    return _each(layers, lambda _, h: h[..., slot : slot + 1, row : row + 1, :].clone())


def _cross_row(layers: Sequence[Tensor | None], slot: int, path: Sequence[int]) -> Layers:
    row = path[-1]
    return _each(layers, lambda _, a: a[slot : slot + 1, :, row : row + 1].clone())


def _each(layers: Sequence[Tensor | None], change: Callable[[int, Tensor], Tensor]) -> Layers:
    return tuple(
        None if layer is None else change(index, layer) for index, layer in enumerate(layers)
    )


def _stack(rows: Sequence[Layers], behind: int) -> Layers:
    """Join what one token of each sequence gave, layer by layer."""
    first = rows[0]
    there: list[Any] = [row for row in rows if row is not None]
    if first is None or len(there) == 1:
        return first
    return tuple(
        None if one is None else torch.cat([row[i] for row in there], dim=one.ndim - behind)
        for i, one in enumerate(first)
    )


def _cut_columns(attention: Tensor, form: LayerForm, end: int) -> Tensor:
    """Leave the columns of a prompt that plain decoding has; ours are the last up to ``end``."""
    first, empty = form.columns(end, attention.shape[-2])
    columns = attention.shape[-1]
    return _widened(attention[..., columns - min(columns, end - first) :], empty)


def _widened(attention: Tensor, empty: int) -> Tensor:
    """Add columns without a row, as a static cache shows them."""
    return torch.nn.functional.pad(attention, (0, empty)) if empty else attention
