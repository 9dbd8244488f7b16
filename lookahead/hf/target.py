"""A Hugging Face model as the target of the engine: prompts and trees in, logits out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lookahead.hf.cache import SlotCache
from lookahead.hf.masks import Visibility, tree_attention
from lookahead.outcome import PassRows, PromptRows
from lookahead.rows import Rows, rows_of
from lookahead.tree import DraftTree
from lookahead.window import WindowRows

__all__ = ["HFTarget"]

#: Prompt positions whose logits are computed at a time: 32 rows of a vocabulary of 50,000 in
#: float32 are 6 MB.
ROWS_AT_A_TIME = 32


class HFTarget:
    """One call's view of a model: its prompts, its cache, and passes over trees.

    Parameters
    ----------
    model : PreTrainedModel
    input_ids : Tensor, int64, [batch, tokens]
    contexts : list of list of int, [batch]
        The same without padding.
    generation_config : GenerationConfig
    model_kwargs : dict
        As the library prepared them; the cache in it is ours.
    cache : SlotCache
    cache_name : str
        The name under which forward takes the cache.
    """

    def __init__(
        self,
        model: Any,
        input_ids: Tensor,
        contexts: list[list[int]],
        generation_config: Any,
        model_kwargs: dict[str, Any],
        cache: SlotCache,
        cache_name: str,
    ) -> None:
        self._model = model
        self._input_ids = input_ids
        self._contexts = contexts
        self._generation_config = generation_config
        self._kwargs = model_kwargs
        self._cache = cache
        self._cache_name = cache_name
        self._hidden: Tensor | None = None
        self._live_prompt: Tensor | None = None  # bool, [batch, slots]: False where padding is
        self._first_position: list[int] = []
        self._prompt_slots = 0

    def prefill(self) -> Tensor:
        """Run the prompts; return the logits after each, float, [batch, vocab]."""
        attention_mask = self._kwargs.get("attention_mask")
        with _last_hidden_state(self._model) as seen:
            outputs = self._model._prefill(
                self._input_ids, self._generation_config, self._kwargs, is_first_iteration=True
            )
        self._cache.prompt_read()
        self._prompt_slots = self._cache.lengths[0]
        self._hidden = seen.matching_hidden()
        if attention_mask is not None:
            self._live_prompt = attention_mask.to(torch.bool)
        positions = self._kwargs["position_ids"][..., -1]
        self._first_position = (positions.expand(len(self._contexts)) + 1).tolist()
        logits: Tensor = outputs.logits[:, -1]
        return logits

    def prompt_rows(self, slot: int, limit: int) -> Iterable[PromptRows]:
        """Yield logits after the last ``limit`` positions of a prompt, in parts.

        Only the last position of each pair of tokens is computed: it would overwrite the others.
        Computed from the hidden states of the prefill, which are kept until the first step.
        """
        context = self._contexts[slot]
        if self._hidden is None or not context:
            return
        hidden = self._hidden[slot]
        fed = min(len(hidden), len(context))
        newest: dict[tuple[int, int], int] = {}
        for position in range(len(context) - min(fed, limit), len(context)):
            previous = context[position - 1] if position else -1
            newest[(previous, context[position])] = position
        pairs = sorted(newest.items(), key=lambda item: item[1])
        head = self._model.get_output_embeddings()
        for start in range(0, len(pairs), ROWS_AT_A_TIME):
            part = pairs[start : start + ROWS_AT_A_TIME]
            # Hidden states end where the context ends; padding stands before both.
            rows = torch.tensor([position - len(context) for _, position in part])
            logits = head(hidden[rows + len(hidden)])
            yield PromptRows([p for (p, _), _ in part], [t for (_, t), _ in part], logits)

    def prompt_hidden(self, slot: int) -> Tensor | None:
        """Return the hidden states of the last prompt positions, [positions, width], or None."""
        if self._hidden is None:
            return None
        fed = min(self._hidden.shape[1], len(self._contexts[slot]))
        return self._hidden[slot, self._hidden.shape[1] - fed :]

    def verify(
        self,
        slots: Sequence[int],
        trees: Sequence[DraftTree],
        windows: Sequence[WindowRows | None] | None = None,
    ) -> list[PassRows]:
        """Run all trees and windows in one pass; return for each what it computed."""
        self._hidden = None
        batch = len(self._contexts)
        by_slot: list[Rows | None] = [None] * batch
        for slot, tree, window in zip(slots, trees, windows or [None] * len(slots), strict=True):
            by_slot[slot] = rows_of(tree, window)
        there = [rows for rows in by_slot if rows is not None]
        num_rows = max(map(len, there))
        tokens = np.zeros((batch, num_rows), dtype=np.int64)
        depths = np.zeros((batch, num_rows), dtype=np.int64)
        for slot, one in enumerate(by_slot):
            if one is not None:
                tokens[slot, : len(one)] = one.tokens
                depths[slot, : len(one)] = one.offsets
        lengths = np.array(self._cache.lengths)
        first = np.array(self._first_position) + lengths - self._prompt_slots
        device = self._input_ids.device
        positions = torch.from_numpy(first[:, None] + depths).to(device)
        inputs = self._inputs(torch.from_numpy(tokens).to(device), positions)
        read = _rows_read(there, max(map(len, trees)) + 1)
        with ExitStack() as stack:
            if num_rows > 1 or batch > 1 or self._cache.window or self._live_prompt is not None:
                stack.enter_context(tree_attention(self._visibility(by_slot, depths)))
            seen = stack.enter_context(
                _output_input(self._model, read if len(read) < num_rows else None)
            )
            # In 32 bits an argmax is four times faster than in 16, and no less exact.
            logits: Tensor = self._model(**inputs, return_dict=True).logits.float()
        hidden = seen.of_rows(num_rows)
        if logits.shape[1] == num_rows:  # the output layer was not ours to narrow
            read = list(range(num_rows))
        return [
            PassRows(
                logits[slot, : len(tree.tokens)],
                None if hidden is None else hidden[slot, : len(tree.tokens)],
                _window_tokens(by_slot[slot], logits[slot], read),
            )
            for slot, tree in zip(slots, trees, strict=True)
        ]

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Keep the K/V of these nodes of the last pass, in this order, and drop the others."""
        self._cache.keep(slot, path)

    def _inputs(self, tokens: Tensor, positions: Tensor) -> dict[str, Any]:
        """Let the model prepare its own inputs for the rows of a pass."""
        kwargs = dict(self._kwargs)
        kwargs.update(attention_mask=None, position_ids=positions)
        kwargs[self._cache_name] = self._cache
        for name, value in kwargs.items():
            if name.endswith("token_type_ids") and value is not None:
                # Plain decoding gives every new token the type of the last one.
                kwargs[name] = value[..., -1:].expand(*value.shape[:-1], tokens.shape[1])
        if "logits_to_keep" in kwargs:
            kwargs["logits_to_keep"] = 0
        inputs: dict[str, Any] = self._model.prepare_inputs_for_generation(
            tokens, is_first_iteration=False, **kwargs
        )
        inputs["position_ids"] = positions
        return inputs

    def _visibility(
        self, by_slot: Sequence[Rows | None], depths: np.ndarray[Any, Any]
    ) -> Visibility:
        """Work out which slots each row of a pass may see."""
        batch, num_rows = depths.shape
        lengths = self._cache.lengths
        past = max(lengths)
        may_see = np.zeros((batch, num_rows, past + num_rows), dtype=np.bool_)
        key_slots = np.tile(np.arange(past + num_rows), (batch, 1))
        row_slots = np.zeros((batch, num_rows), dtype=np.int64)
        for slot, (rows, length) in enumerate(zip(by_slot, lengths, strict=True)):
            corner = slice(length, length + num_rows)
            row_slots[slot] = key_slots[slot, corner] = length + depths[slot]
            # Rows without a token see themselves alone: a row that sees nothing gives NaN.
            may_see[slot, :, corner] = np.eye(num_rows, dtype=np.bool_)
            if rows is not None:
                size = len(rows)
                may_see[slot, :size, :length] = True
                may_see[slot, :size, length : length + size] = rows.may_see
        if self._cache.window is not None:
            may_see &= row_slots[:, :, None] - key_slots[:, None, :] < self._cache.window
        device = self._input_ids.device
        seen = torch.from_numpy(may_see).to(device)
        if self._live_prompt is not None:
            known = min(self._live_prompt.shape[1], past)
            seen[:, :, :known] &= self._live_prompt[:, None, :known].to(device)
        return Visibility(
            seen, torch.from_numpy(row_slots).to(device), torch.from_numpy(key_slots).to(device)
        )


def _rows_read(there: Sequence[Rows], num_nodes: int) -> list[int]:
    """Return the rows of a pass whose logits any sequence reads: its tree's, and of its window."""
    read = set(range(num_nodes))
    return sorted(read.union(*(rows.window_read for rows in there)))


def _window_tokens(rows: Rows | None, logits: Tensor, read: list[int]) -> list[int] | None:
    """Return the best tokens after the last level of a window; ``logits`` are of rows ``read``."""
    if rows is None or not rows.window_read:
        return None
    # The last level stands in one piece at the end of a sequence's rows, and all of it is read.
    start = read.index(rows.window_read.start)
    tokens: list[int] = logits[start : start + len(rows.window_read)].argmax(dim=-1).tolist()
    return tokens


class _Seen:
    """Last hidden states of one forward, and what the output layer was given of them."""

    def __init__(self) -> None:
        self.hidden: Tensor | None = None
        self.output_input: Tensor | None = None

    def matching_hidden(self) -> Tensor | None:
        """Return the hidden states, [batch, tokens, width], if they are what the layer takes."""
        hidden, taken = self.hidden, self.output_input
        if hidden is None or taken is None or hidden.ndim != 3 or taken.ndim != 3:
            return None
        if hidden.shape[-1] != taken.shape[-1] or not torch.equal(hidden[:, -1], taken[:, -1]):
            return None
        return hidden

    def of_rows(self, num_rows: int) -> Tensor | None:
        """Return what the output layer took, [batch, rows, width], if it took all rows."""
        taken = self.output_input
        if taken is None or taken.ndim != 3 or taken.shape[1] != num_rows:
            return None
        return taken


@contextmanager
def _output_input(model: Any, read: list[int] | None = None) -> Iterator[_Seen]:
    """Look at what the output layer is given by the forwards of this thread in the block.

    With ``read`` it is handed these rows only: others cost a row of the vocabulary for nothing.
    """
    seen = _Seen()
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Module):
        yield seen
        return
    thread = threading.get_ident()

    def see_output_input(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != thread or not args:
            return None
        taken = seen.output_input = args[0]
        if read is None or taken.ndim != 3 or taken.shape[1] <= read[-1]:
            return None
        return (taken[:, read], *args[1:])

    hook = head.register_forward_pre_hook(see_output_input)
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def _last_hidden_state(model: Any) -> Iterator[_Seen]:
    """Look at the last hidden states of the forwards that this thread runs in the block."""
    base = getattr(model, "base_model", None)
    if base is None or base is model:
        yield _Seen()
        return
    thread = threading.get_ident()

    def see_hidden(_module: nn.Module, _args: Any, output: Any) -> None:
        if threading.get_ident() == thread:
            hidden = output[0]
            seen.hidden = hidden if isinstance(hidden, Tensor) else None

    with _output_input(model) as seen:
        hook = base.register_forward_hook(see_hidden)
        try:
            yield seen
        finally:
            hook.remove()
