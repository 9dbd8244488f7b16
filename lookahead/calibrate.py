"""A prior of a model, from its own writing: it answers prompts, and its hidden states are summed.

Knows token ids and time; which prompts, and what the sums are for, is known elsewhere.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lookahead.drafters.sums import HeadSums
from lookahead.errors import UnsupportedError
from lookahead.hf.batches import left_padded, until_end
from lookahead.hf.ends import ends_of
from lookahead.hf.fingerprint import identify
from lookahead.hf.observe import output_input
from lookahead.learnt import CALIBRATED, Rememberable
from lookahead.memory import Memory

__all__ = ["Calibrated", "TextSums", "calibrate", "empty_sums"]

#: A pass over many rows costs little more than one over a few; two batches are all prompts.
BATCH = 25
#: Answers are short: many beginnings teach more than a few ends.
MAX_NEW_TOKENS = 160
#: More positions than these change the sums' answers little.
MAX_ROWS = 32_000
TEMPERATURE = 0.8


class TextSums(Rememberable, Protocol):
    """Sums that can be made from whole texts."""

    def add_text(self, tokens: Tensor, hidden: Tensor) -> None:
        """Take in a text.

        Parameters
        ----------
        tokens : Tensor, int64, [positions]
            Prompt and answer.
        hidden : Tensor, float, [positions, width]
            What the output layer was given at each of them.
        """


@dataclass(frozen=True)
class Calibrated:
    """What a calibration made."""

    label: str
    texts: int
    rows: int
    seconds: float
    num_bytes: int
    path: Path


def empty_sums(model: Any) -> TextSums:
    """Return the sums that a head of this model begins with.

    Raises
    ------
    UnsupportedError
        Where there is nothing to calibrate.
    """
    ends = ends_of(model)
    if ends is None:
        raise UnsupportedError(
            f"there is nothing to calibrate: the output layer of a {type(model).__name__} cannot "
            "be read row by row, so it runs without a head."
        )
    return HeadSums(ends)


def calibrate(
    model: Any,
    prompts: Sequence[list[int]],
    sums: TextSums,
    *,
    seconds: float = 60.0,
    seed: int = 0,
    memory: Memory | None = None,
    tell: Callable[[str, float | None], None] | None = None,
) -> Calibrated:
    """Let a model answer prompts, sum up its hidden states, and store the sums.

    Sums of an earlier calibration are replaced, so that calibrating twice is as good as once;
    until the new ones are whole, the old ones stay. Torch's global random numbers are left as
    they were.

    Parameters
    ----------
    model : PreTrainedModel
        In eval mode.
    prompts : sequence of list of int
        In the order in which they are to be answered, and again from the start while there is
        time.
    sums : TextSums
        Empty; filled here.
    seconds : float
        When to stop. Rows are summed up to then only, and at most :data:`MAX_ROWS`.
    seed : int
        Start of the random numbers of the answers.
    memory : Memory, optional
        Where to store.
    tell : callable, optional
        Told what is being done and the share that is done.

    Returns
    -------
    Calibrated

    Raises
    ------
    UnsupportedError
        If the model gave no hidden states.
    MemoryFileError
        If nothing can be stored.
    """
    start = time.perf_counter()
    texts = 0
    with torch.no_grad(), _own_random_numbers(seed):
        for number in itertools.count():
            left = start + seconds - time.perf_counter()
            if left <= 0 or sums.rows >= MAX_ROWS:
                break
            if tell is not None:
                share = max(1 - left / seconds, sums.rows / MAX_ROWS)
                tell("The model writes, and is watched", share)
            first = number * BATCH % len(prompts)
            for tokens, hidden in _answers(model, prompts[first : first + BATCH], left):
                sums.add_text(tokens, hidden)
                texts += 1
    if not sums.rows:
        raise UnsupportedError("the model wrote nothing in that time; give it more --seconds.")
    label = identify(model).label
    store = memory or Memory()
    path = store.save(
        identify(model).fingerprint,
        CALIBRATED,
        dict(sums.state()),
        {"label": label, "rows": str(sums.rows)},
    )
    taken = time.perf_counter() - start
    return Calibrated(label, texts, sums.rows, taken, path.stat().st_size, path)


def _answers(
    model: Any, prompts: Sequence[list[int]], seconds: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield prompts with sampled answers, [positions], and hidden states, [positions, width]."""
    inputs = left_padded(model, prompts)
    width = inputs["input_ids"].shape[1]
    with _watched(model) as seen:
        # Of the class: plain, whatever stands in its place on the object.
        out = type(model).generate(
            model,
            **inputs,
            max_new_tokens=MAX_NEW_TOKENS,
            max_time=seconds,
            do_sample=True,
            temperature=TEMPERATURE,
            top_p=1.0,
            top_k=0,
            return_dict_in_generate=False,
        )
    hidden = seen.hidden()
    for row, prompt in enumerate(prompts):
        end = width + len(until_end(model, out[row, width:].tolist()))
        text = out[row, width - len(prompt) : end]
        if hidden is None:
            yield text, _hidden_of(model, text)
        else:
            # The last token was never read, so there is nothing that follows from it.
            yield text[:-1], hidden[row, width - len(prompt) : end - 1]


class _Seen:
    """Hidden states of one call of ``generate``, if they are what the output layer takes."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self.is_right = True

    def hidden(self) -> Tensor | None:
        """Return all of them, float, [batch, positions, width]; one position less than ids."""
        return torch.cat(self.parts, dim=1) if self.parts and self.is_right else None


@contextmanager
def _watched(model: Any) -> Iterator[_Seen]:
    """Look at hidden states while the model writes: to run each text again would take a third."""
    seen = _Seen()

    def see_hidden(_module: Any, _args: Any, output: Any) -> None:
        seen.parts.append(output[0])

    def see_output_input(_module: Any, args: tuple[Any, ...]) -> None:
        # Some models do something in between; then the texts are run again.
        taken = args[0][:, -1]
        last = seen.parts[-1][:, -1] if seen.parts else None
        seen.is_right &= last is not None and torch.equal(last, taken)

    base, head = model.base_model, model.get_output_embeddings()
    if base is model or not isinstance(head, nn.Module):
        yield seen
        return
    hooks = [
        base.register_forward_hook(see_hidden),
        head.register_forward_pre_hook(see_output_input),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _hidden_of(model: Any, text: Tensor) -> Tensor:
    """Return what the output layer is given for a text, float, [positions, width]."""
    with output_input(model) as seen:
        model(input_ids=text[None], use_cache=False)
    hidden = seen.of_rows(len(text))
    if hidden is None:
        raise UnsupportedError(
            f"a {type(model).__name__} does not show what its output layer is given."
        )
    return hidden[0]


@contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
