"""A Hugging Face model as the target of the engine: prompts and trees in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.errors import UnsupportedError
from lookahead.hf.cache import EarlyPath, SlotCache
from lookahead.hf.compat import pass_arguments, prefill
from lookahead.hf.early import Corner, EarlyRows
from lookahead.hf.fused import ordinary_layers, tried_seconds
from lookahead.hf.masks import Visibility, tree_attention, visibility_of
from lookahead.hf.observe import last_hidden_state, output_input
from lookahead.hf.outputs import StepOutputs
from lookahead.hf.pass_rows import pass_rows, rows_read
from lookahead.hf.places import PlaceReaders
from lookahead.hf.prepack import ordinary_weights
from lookahead.hf.prompts import (
    prompt_mask,
    prompt_mask_name,
    prompt_positions,
    prompt_positions_name,
    takes_positions,
)
from lookahead.hf.ragged import is_worth_it, read_one_by_one
from lookahead.hf.split import LayerSplit
from lookahead.outcome import PassRows, PromptRows
from lookahead.rows import Rows, rows_of
from lookahead.tree import DraftTree
from lookahead.window import WindowRows

__all__ = ["HFTarget"]

#: Prompt positions whose logits are computed at a time: 32 rows of a vocabulary of 50,000 in
#: float32 are 6 MB.
ROWS_AT_A_TIME = 32

#: Arguments of a call, by the end of their names, that have a row for each sequence and are used
#: in every pass.
BY_ROW = ("token_type_ids",)


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
    split : LayerSplit or None
        The model's layers, for :meth:`peek` and :meth:`watch`.
    exit_fault : callable or None
        Asked with an exit layer before it is used; see :func:`~lookahead.hf.selftest.exit_verdict`.
    outputs : StepOutputs or None
        Collects hidden states and attentions of what is kept, where the caller wants them.
    lets_go : bool
        Whether K/V of sequences that are not run any more may be dropped.
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
        split: LayerSplit | None = None,
        exit_fault: Callable[[int], str | None] | None = None,
        outputs: StepOutputs | None = None,
        *,
        lets_go: bool = False,
    ) -> None:
        self._model = model
        self._slots = list(range(len(contexts)))  # the sequence in each row of the batch
        self._lets_go = lets_go and not _has_more_of_rows(model_kwargs, len(contexts))
        self._input_ids = input_ids
        self._contexts = contexts
        self._generation_config = generation_config
        self._kwargs = model_kwargs
        self._cache = cache
        self._cache_name = cache_name
        self._hidden: Tensor | None = None
        self._live_prompt: Tensor | None = None  # bool, [batch, slots]: False where padding is
        self._first_position = np.zeros(0, dtype=np.int64)  # [..., batch]: of what comes next
        self._prompt_slots = 0
        self._positions_name = prompt_positions_name(model)
        given = model_kwargs.get(self._positions_name) is not None
        self._takes_positions = given or takes_positions(model)
        self._readers = PlaceReaders(model, takes_positions=self._takes_positions)
        self._split = split
        self._exit_fault = exit_fault
        self._outputs = outputs
        self._watched: tuple[int, ...] = ()
        self._left: dict[tuple[int, int], Tensor] = {}  # by slot and layer, of the last pass
        self._prompt_left: dict[int, Tensor] = {}  # [batch, positions, width], by layer
        self._early: EarlyRows | None = None  # what was peeked at in this step
        self._early_rows: list[int] = []  # the row there of each node of the tree

    def prefill(self) -> Tensor:
        """Run the prompts; return the logits after each, float, [batch, vocab]."""
        attention_mask = prompt_mask(self._model, self._kwargs)
        positions = prompt_positions(
            self._model, self._input_ids, self._generation_config, self._kwargs
        )
        with ordinary_weights(), ordinary_layers():
            logits = self._read_ragged(attention_mask, positions)
            outputs = self._read_whole() if logits is None else None
        self._cache.prompt_read(positions.shape[-1])
        if outputs is not None:
            if self._outputs is not None:
                self._outputs.take_prompt(outputs)
            logits = outputs.logits[:, -1]
        self._prompt_slots = self._cache.lengths[0]
        if attention_mask is not None:
            self._live_prompt = attention_mask.to(torch.bool)
        batch = len(self._contexts)
        last = positions[..., -1]
        self._first_position = last.expand(*last.shape[:-1], batch).cpu().numpy() + 1
        assert logits is not None
        return logits

    def _read_whole(self) -> Any:
        """Read the prompts as plain decoding does; return the outputs of the model."""
        with last_hidden_state(self._model) as seen, self._watching() as left:
            outputs = prefill(self._model, self._input_ids, self._generation_config, self._kwargs)
        made = outputs.get(self._cache_name)
        if made is not None and made is not self._kwargs[self._cache_name]:
            self._cache.load(made)
        self._hidden = seen.matching_hidden()
        self._prompt_left = left
        return outputs

    def _read_ragged(self, mask: Tensor | None, positions: Tensor) -> Tensor | None:
        """Read the prompts without their padding, where that saves time and nobody sees it."""
        seen_by_others = not self._lets_go or self._outputs is not None or bool(self._watched)
        if seen_by_others or not self._takes_positions or not self._cache.is_plain:
            return None
        name, settings = self._cache_name, self._generation_config
        if mask is None or mask.shape != self._input_ids.shape:
            return None
        if not is_worth_it(self._model, mask, positions, self._kwargs, settings):
            return None
        read = read_one_by_one(
            self._model, self._input_ids, mask, positions, self._kwargs, name, settings
        )
        self._cache.load(read.cache)
        self._hidden = read.hidden
        return read.logits

    def prompt_rows(self, slot: int, limit: int) -> Iterator[PromptRows]:
        """Yield logits after the last ``limit`` positions of a prompt, in parts, newest first.

        Only the last position of each pair of tokens is computed: it stands for the others. Each
        part is computed when it is asked for; the hidden states that it needs are kept until then.
        """
        context = self._contexts[slot]
        if self._hidden is None or not context:
            return iter(())
        hidden = self._hidden[slot]
        fed = min(len(hidden), len(context), limit)
        newest: dict[tuple[int, int], int] = {}
        for position in range(len(context) - fed, len(context)):
            previous = context[position - 1] if position else -1
            newest[(previous, context[position])] = position
        pairs = sorted(newest.items(), key=lambda item: -item[1])
        # Hidden states end where the context ends; padding stands before both.
        return self._parts(pairs, hidden[len(hidden) - fed :].clone(), len(context))

    def _parts(
        self, pairs: list[tuple[tuple[int, int], int]], hidden: Tensor, end: int
    ) -> Iterator[PromptRows]:
        """Yield logits at positions of a prompt; the last hidden state is that before ``end``."""
        head = self._model.get_output_embeddings()
        for start in range(0, len(pairs), ROWS_AT_A_TIME):
            part = pairs[start : start + ROWS_AT_A_TIME]
            rows = torch.tensor([position - end for _, position in part])
            with torch.no_grad():
                logits = head(hidden[rows + len(hidden)])
            yield PromptRows([p for (p, _), _ in part], [t for (_, t), _ in part], logits)

    def prompt_hidden(self, slot: int) -> Tensor | None:
        """Return the hidden states of the last prompt positions, [positions, width], or None."""
        if self._hidden is None:
            return None
        fed = min(self._hidden.shape[1], len(self._contexts[slot]))
        return self._hidden[slot, self._hidden.shape[1] - fed :]

    def prompt_left(self, slot: int, layer: int) -> Tensor | None:
        """Return what left a watched layer for the last prompt positions, [positions, width]."""
        left = self._prompt_left.get(layer)
        if left is None:
            return None
        fed = min(left.shape[1], len(self._contexts[slot]))
        return left[slot, left.shape[1] - fed :]

    def left(self, slot: int, layer: int) -> Tensor | None:
        """Return what left a watched layer in the last pass, float, [nodes + 1, width].

        None where it was not looked at. In the order of the tree.
        """
        return self._left.get((slot, layer))

    def watch(self, layers: Iterable[int]) -> None:
        """Keep what leaves these layers, from the next pass or prefill on.

        Layers are counted from 1. None is watched where early exit is impossible anyway.
        """
        alone = len(self._contexts) == 1
        usable = alone and self._split is not None and self._split.reason is None
        self._watched = tuple(sorted(set(layers))) if usable else ()

    def peek_reason(self, exit_layer: int) -> str | None:
        """Say why :meth:`peek` will refuse, as half a sentence, or return None."""
        if self._split is None:
            return "the target was not given its layers"
        if len(self._contexts) > 1:
            return "early exit in a batch is not supported yet"
        if self._split.reason is not None or self._exit_fault is None:
            return self._split.reason
        return self._exit_fault(exit_layer)

    def peek(
        self,
        slot: int,  # noqa: ARG002 - there is one only
        tree: DraftTree,
        nodes: Sequence[int],
        exit_layer: int,
    ) -> Tensor:
        """Run the first layers on nodes of a tree that is still being grown.

        A row is run once in a step, whatever tree asks for it, and :meth:`verify` runs only the
        other layers on it.

        Parameters
        ----------
        slot : int
            The sequence.
        tree : DraftTree
            As far as it has grown.
        nodes : sequence of int
            The root (0) included if wanted. What stands above them is run, too.
        exit_layer : int
            How many layers; the same throughout a step.

        Returns
        -------
        Tensor, float, [nodes, width]
            What leaves layer ``exit_layer``.

        Raises
        ------
        UnsupportedError
            If the model cannot be taken apart there, or in a batch.
        """
        if (reason := self.peek_reason(exit_layer)) is not None:
            raise UnsupportedError(reason)
        early = EarlyRows(exit_layer) if self._early is None else self._early
        if early.exit_layer != exit_layer:
            raise ValueError(f"layers up to {early.exit_layer} were run already in this step.")
        rows = self._run_first(early, tree, nodes)
        self._early = early
        hidden = early.left(exit_layer, [rows[node] for node in nodes])
        assert hidden is not None
        return hidden

    def verify(
        self,
        slots: Sequence[int],
        trees: Sequence[DraftTree],
        windows: Sequence[WindowRows | None] | None = None,
    ) -> list[PassRows]:
        """Run all trees and windows in one pass; return for each what it computed.

        Rows that were peeked at in this step go through the remaining layers only; such a step
        runs no window.
        """
        self._hidden = None
        self._prompt_left = {}
        self._left = {}
        if self._early is not None:
            return [self._verify_rest(self._early, slots[0], trees[0])]
        if self._lets_go and len(slots) < len(self._slots):
            self._let_go_of_others(slots)
        places = [self._slots.index(slot) for slot in slots]
        by_place: list[Rows | None] = [None] * len(self._slots)
        for place, slot, tree, window in zip(
            places, slots, trees, windows or [None] * len(slots), strict=True
        ):
            by_place[place] = self._rows(slot, tree, window)
        with self._watching() as left:
            rows = self._run_rows(by_place)
        for place, slot, tree in zip(places, slots, trees, strict=True):
            for layer, hidden in left.items():
                self._left[slot, layer] = hidden[place, : len(tree.tokens)]
        return [rows[place] for place in places]

    def _let_go_of_others(self, slots: Sequence[int]) -> None:
        """Go on with these sequences alone: rows that nobody reads cost as much as others."""
        rows = [self._slots.index(slot) for slot in slots]
        self._slots = list(slots)
        self._cache.select(rows)
        self._first_position = self._first_position[..., rows]
        if self._live_prompt is not None:
            self._live_prompt = self._live_prompt[rows]
        for name, value in self._kwargs.items():
            if name.endswith(BY_ROW) and isinstance(value, Tensor) and value.shape[0] > 1:
                self._kwargs[name] = value[rows]

    @property
    def seconds_aside(self) -> float:
        """Seconds of the last pass in which layers were run both ways."""
        return tried_seconds()

    def may_draft(self, slot: int) -> bool:  # noqa: ARG002 - a chain may say no
        """Say whether the next pass can verify guesses of a sequence."""
        return True

    def _rows(self, slot: int, tree: DraftTree, window: WindowRows | None) -> Rows:  # noqa: ARG002
        """Return what a sequence brings into the next pass."""
        return rows_of(tree, window)

    def settle(self) -> None:
        """See to it that the cache holds all but the last token; of trees it always does."""

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Keep the K/V of these nodes of the last pass, in this order, and drop the others."""
        early = None
        if self._early is not None:
            early = EarlyPath(self._early.exit_layer, [self._early_rows[node] for node in path])
            self._early = None
        if self._outputs is not None:
            self._outputs.keep(slot, path)
        self._cache.keep(self._slots.index(slot), path, early)

    def _run_first(
        self, early: EarlyRows, tree: DraftTree, nodes: Iterable[int]
    ) -> list[int | None]:
        """See to it that these nodes have been through the first layers; return their rows."""
        assert self._split is not None
        plan = early.plan(tree, nodes)
        if plan.nodes:
            with (
                self._split.first(early.exit_layer, self._watched) as left,
                self._cache.behind(len(early)),
            ):
                self._run(plan.tokens[None], [plan.corner], len(early))
            early.add(plan, left)
        return plan.rows

    def _verify_rest(self, early: EarlyRows, slot: int, tree: DraftTree) -> PassRows:
        """Verify a tree some rows of which have been through the first layers already."""
        assert self._split is not None
        rows = self._run_first(early, tree, range(len(tree.tokens)))
        self._early_rows = [row for row in rows if row is not None]
        hidden = early.left(early.exit_layer, rows)
        assert hidden is not None
        with self._split.rest(early.exit_layer, hidden[None], self._watched) as left:
            seen = self._run_rows([rows_of(tree)])[0]
        for layer in self._watched:
            known = left[layer][0] if layer in left else early.left(layer, rows)
            if known is not None:
                self._left[slot, layer] = known
        return seen

    def _run_rows(self, by_place: Sequence[Rows | None]) -> list[PassRows]:
        """Run a forward over the rows of each sequence; nobody reads those of None."""
        there = [rows for rows in by_place if rows is not None]
        num_rows = max(map(len, there))
        tokens = np.zeros((len(by_place), num_rows), dtype=np.int64)
        for place, rows in enumerate(by_place):
            if rows is not None:
                tokens[place, : len(rows)] = rows.tokens
        corners = [
            None if rows is None else Corner(rows.may_see, rows.offsets) for rows in by_place
        ]
        read = rows_read(there)
        with output_input(self._model, read if len(read) < num_rows else None) as seen:
            # In 32 bits an argmax is four times faster than in 16, and no less exact.
            outputs = self._run(tokens, corners)
            logits: Tensor = outputs.logits.float()
        if self._outputs is not None:
            self._outputs.take_pass(outputs)
        hidden = seen.of_rows(num_rows)
        if logits.shape[1] == num_rows:  # the output layer was not ours to narrow
            read = list(range(num_rows))
        return [pass_rows(rows, logits, hidden, place, read) for place, rows in enumerate(by_place)]

    def _run(
        self, tokens: NDArray[np.int64], corners: Sequence[Corner | None], behind: int = 0
    ) -> Any:
        """Run a forward over rows of all sequences, written ``behind`` rows of the same step."""
        batch, num_rows = tokens.shape
        depths = np.zeros((batch, behind + num_rows), dtype=np.int64)
        for slot, corner in enumerate(corners):
            if corner is not None:
                depths[slot, : len(corner.depths)] = corner.depths
        first = self._first_position + self._cache.lengths - self._prompt_slots
        device = self._input_ids.device
        positions = torch.from_numpy(first[..., None] + depths[:, behind:]).to(device)
        first_slot = max(self._cache.lengths) + behind
        inputs = self._inputs(torch.from_numpy(tokens).to(device), positions, first_slot)
        with ExitStack() as stack:
            if self._needs_mask(num_rows, corners):
                visibility = self._visibility(corners, depths, num_rows)
                stack.enter_context(tree_attention(visibility))
                stack.enter_context(self._readers.corrected(visibility, self._live_prompt))
            return self._model(**inputs, return_dict=True)

    def _needs_mask(self, num_rows: int, corners: Sequence[Corner | None]) -> bool:
        """Say whether there is a slot that some row must not see."""
        if num_rows > 1 or len(corners) > 1 or self._cache.window or self._live_prompt is not None:
            return True
        return not all(corner is None or corner.may_see.all() for corner in corners)

    def _watching(self) -> AbstractContextManager[dict[int, Tensor]]:
        if self._split is None or not self._watched:
            return nullcontext({})
        return self._split.watching(self._watched)

    def _inputs(self, tokens: Tensor, positions: Tensor, first_slot: int) -> dict[str, Any]:
        """Let the model prepare its own inputs for the rows of a pass."""
        kwargs = self._kwargs | pass_arguments(first_slot, tokens.shape[1], tokens.device)
        kwargs[prompt_mask_name(self._model)] = None
        if self._takes_positions:
            kwargs[self._positions_name] = positions
        for name, value in kwargs.items():
            if name.endswith("token_type_ids") and value is not None:
                # Plain decoding gives every new token the type of the last one, or that of text.
                last = torch.zeros_like if name == "mm_token_type_ids" else torch.clone
                kwargs[name] = last(value[..., -1:]).expand(*value.shape[:-1], tokens.shape[1])
        inputs: dict[str, Any] = self._model.prepare_inputs_for_generation(tokens, **kwargs)
        if self._takes_positions:
            inputs[self._positions_name] = positions
        # Phi-3 leaves it out where a pass has more rows than its original length.
        inputs[self._cache_name] = self._kwargs[self._cache_name]
        if "logits_to_keep" in kwargs or "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = 0  # some models put a number of their own there
        return inputs

    def _visibility(
        self, corners: Sequence[Corner | None], depths: NDArray[np.int64], num_rows: int
    ) -> Visibility:
        """Work out which slots each row of a pass may see."""
        return visibility_of(
            self._cache.lengths,
            corners,
            depths,
            num_rows,
            window=self._cache.window,
            live=self._live_prompt,
            device=self._input_ids.device,
        )


def _has_more_of_rows(model_kwargs: dict[str, Any], batch: int) -> bool:
    """Say whether a call has tensors of all sequences that could not be told apart by name."""
    return any(
        isinstance(value, Tensor)
        and value.ndim > 0
        and value.shape[0] == batch
        and not name.endswith((*BY_ROW, "attention_mask", "position_ids"))
        for name, value in model_kwargs.items()
    )
