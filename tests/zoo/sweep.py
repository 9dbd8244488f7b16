"""Generates plainly and accelerated on every registered type, and says what came of it.

By hand: ``python -m tests.zoo.sweep [types...]``. Each type runs in a process of its own, under a
time limit, so that one that crashes or hangs takes nothing along.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers

import lookahead
import ngram_pool
from tests.drafters import Half, Oracle, Random
from tests.helpers import prompt
from tests.zoo.build import TYPES, attentions, build
from tests.zoo.configs import VOCAB

#: New tokens of each run: past the windows, and long enough for several passes.
NEW = 24
#: Fewer different tokens than this in a greedy text hide a wrong mask.
FEWEST_IDS = 5
TIMEOUT = 120.0
#: Runs that are compared: how tokens are chosen, and one of :func:`drafters`. The second tuple is
#: enough for a second attention implementation.
WAYS = (
    "greedy-half",
    "greedy-right",
    "greedy-alternating",
    "greedy-wrong",
    "greedy-random",
    "sample-half",
)
FEW_WAYS = ("sample-alternating",)

#: What can come of a type.
EXACT, PLAIN, WRONG, FAILS, NOT_BUILT = "exact", "plain", "WRONG", "plain itself fails", "not built"


@dataclass(frozen=True)
class Verdict:
    """What came of one type: one of the words above, how, and why."""

    kind: str
    detail: str = ""
    mode: str = ""
    mat: float = 1.0

    def __str__(self) -> str:
        if self.kind == EXACT:
            return f"{self.kind} ({self.mode}, MAT {self.mat:.2f}){self.detail}"
        return f"{self.kind}: {self.detail}"

    @property
    def word(self) -> str:
        """How the type runs in a word: the mode where it is accelerated."""
        return self.mode if self.kind == EXACT else self.kind


class Alternating:
    """Two guesses, the second of which is right: a tree that branches at its root."""

    name = "alternating"

    def __init__(self, text: list[int], length: int = 3) -> None:
        self.text, self.length = text, length

    def draft(self, context: list[int], max_nodes: int) -> list[list[int]]:
        right = self.text[len(context) : len(context) + self.length]
        return [[(t + 1) % VOCAB for t in right], right] if right else []


def drafters(text: list[int]) -> dict[str, Any]:
    """Return drafters for a text that plain decoding gives: right, wrong, both, and random."""
    return {
        "right": Oracle(text),
        "half": Half(text),
        "alternating": Alternating(text),
        "wrong": Oracle(text, 4, 0),
        "random": Random(),
    }


def look(model: Any, inputs: dict[str, Any], ways: Iterable[str] = WAYS, new: int = NEW) -> Verdict:
    """Compare plain and accelerated runs of one model.

    Parameters
    ----------
    model : PreTrainedModel
    inputs : dict
        What ``generate`` is given.
    ways : iterable of str
        Some of :data:`WAYS`.
    new : int
        New tokens of each run.
    """
    greedy: dict[str, Any] = {"do_sample": False, "max_new_tokens": new} | inputs
    calls = {
        "greedy": greedy,
        "sample": greedy | {"do_sample": True, "top_k": 0, "temperature": 1.0},
    }
    texts: dict[str, list[int]] = {}
    best, mode = 1.0, "tree"
    for way in ways:
        call, drafter = way.split("-")
        try:
            if call not in texts:
                texts[call] = _generate(model, calls[call])
        except Exception as error:
            return Verdict(FAILS, _name(error))
        try:
            found, stats = _accelerated(model, calls[call], drafters(texts[call])[drafter])
        except Exception as error:
            return Verdict(WRONG, f"{way}: {_name(error)}")
        if found != texts[call]:
            if _generate(model, calls[call]) != texts[call]:
                return Verdict(FAILS, "two runs of it differ")
            return Verdict(WRONG, f"{way}: ids differ from place {_place(found, texts[call])} on")
        if not stats.accelerated:
            return Verdict(PLAIN, str(stats.plain_reason))
        mode = getattr(stats, "shape", "tree")
        best = max(best, stats.mean_acceptance_length)
    if best <= 1.0:
        return Verdict(WRONG, "right guesses were not accepted")
    num_ids = min(len(set(text[-new:])) for text in texts.values())
    few = "" if num_ids >= FEWEST_IDS else f" but only {num_ids} different ids"
    return Verdict(EXACT, few, mode, best)


def _place(found: list[int], right: list[int]) -> int:
    pairs = zip(found, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(found), len(right)))


def _generate(model: Any, kwargs: dict[str, Any]) -> list[int]:
    torch.manual_seed(0)
    ids: list[int] = model.generate(**kwargs)[0].tolist()
    return ids


def _accelerated(model: Any, kwargs: dict[str, Any], drafter: Any) -> tuple[list[int], Any]:
    lookahead.forget(model)
    settings = {"nodes": 8, "sources": (), "drafters": (drafter,), "remember": False}
    with lookahead.accelerate(model, **settings):
        ids = _generate(model, kwargs)
        return ids, lookahead.last_stats(model)


def look_at_type(model_type: str, variant: str = "") -> Verdict:
    """Compare the runs of a type under every attention implementation that it has."""
    first: Verdict | None = None
    try:
        names = attentions(model_type)
    except Exception as error:
        return Verdict(NOT_BUILT, _name(error))
    for attention in names:
        try:
            model = build(model_type, variant, attention)
        except Exception as error:
            return Verdict(NOT_BUILT, _name(error))
        ways = WAYS if first is None else FEW_WAYS
        verdict = look(model, {"inputs": prompt(20, repeat=4)}, ways)
        if first is None or verdict.kind != first.kind:
            if first is not None:
                verdict = Verdict(verdict.kind, f"{attention}: {verdict.detail}", verdict.mode)
            first = verdict if first is None or verdict.kind == WRONG else first
    assert first is not None
    return first


def in_child(model_type: str, variant: str = "", timeout: float = TIMEOUT) -> Verdict:
    """Do :func:`look_at_type` in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sender, model_type, variant))
    child.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            return Verdict(WRONG, f"took more than {timeout:.0f} s")
        found: Verdict = receiver.recv()
        return found
    except EOFError:
        child.join()
        return Verdict(WRONG, f"the process ended with {child.exitcode}")
    finally:
        child.kill()
        child.join()


def _send(sender: Any, model_type: str, variant: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sender.send(look_at_type(model_type, variant))


def _name(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:140]}"


def sweep(names: Iterable[str] = TYPES) -> Iterator[tuple[str, Verdict]]:
    """Yield each type, or ``type:variant``, with its verdict."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    ngram_pool.warm_up(block=True)
    for name in names:
        model_type, _, variant = name.partition(":")
        yield name, in_child(model_type, variant)


if __name__ == "__main__":
    counts: dict[str, int] = {}
    for name, verdict in sweep(sys.argv[1:] or TYPES):
        counts[verdict.word] = counts.get(verdict.word, 0) + 1
        print(f"{name:28} {verdict}", flush=True)
    print(counts)
