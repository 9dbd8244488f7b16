"""Generates plainly and accelerated on every registered type, and says what came of it.

By hand: ``python -m tests.zoo.sweep [names...]``. Each name runs in a process of its own, under a
time limit, so that one that crashes or hangs takes nothing along.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers

import lookahead
import ngram_pool
from tests.drafters import Half, Oracle, Random
from tests.helpers import prompt
from tests.zoo.build import NAMES, attentions, build, model_class
from tests.zoo.configs import VOCAB
from tests.zoo.others import OTHERS, build_other, inputs, other_class

#: New tokens of each run: past the windows, and long enough for several passes.
NEW = 24
#: Fewer different tokens than this in a greedy text hide a wrong mask.
FEWEST_IDS = 5
#: Seconds after which a child is taken to hang; it may have been stopped in between.
TIMEOUT = 600.0
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
    num_ids: int = 0

    def __str__(self) -> str:
        if self.kind == EXACT:
            few = "" if self.num_ids >= FEWEST_IDS else f", but only {self.num_ids} different ids"
            return f"{self.kind} ({self.mode}, MAT {self.mat:.2f}){few}"
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


def look(
    model: Any,
    inputs: dict[str, Any],
    ways: Iterable[str] = WAYS,
    new: int = NEW,
    settings: dict[str, Any] | None = None,
) -> Verdict:
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
    settings : dict or None
        Of :func:`lookahead.accelerate`, besides those that every run has.
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
            return Verdict(FAILS, name_of(error))
        try:
            found, stats = _accelerated(
                model, calls[call], drafters(texts[call])[drafter], settings
            )
        except Exception as error:
            return Verdict(WRONG, f"{way}: {name_of(error)}")
        if found != texts[call]:
            if _generate(model, calls[call]) != texts[call]:
                return Verdict(FAILS, "two runs of it differ")
            return Verdict(WRONG, f"{way}: ids differ from place {_place(found, texts[call])} on")
        if not stats.accelerated:
            return Verdict(PLAIN, str(stats.plain_reason))
        mode = getattr(stats, "shape", "tree")
        best = max(best, stats.mean_acceptance_length)
    if best <= 1.0 and "greedy-right" in ways:
        return Verdict(WRONG, "right guesses were not accepted")
    num_ids = len(set(next(iter(texts.values()))[-new:]))
    return Verdict(EXACT, "", mode, best, num_ids)


def _place(found: list[int], right: list[int]) -> int:
    pairs = zip(found, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(found), len(right)))


def _generate(model: Any, kwargs: dict[str, Any]) -> list[int]:
    torch.manual_seed(0)
    ids: list[int] = model.generate(**kwargs)[0].tolist()
    return ids


def _accelerated(
    model: Any, kwargs: dict[str, Any], drafter: Any, more: dict[str, Any] | None
) -> tuple[list[int], Any]:
    lookahead.forget(model)
    settings = {"nodes": 8, "sources": (), "drafters": (drafter,), "remember": False}
    with lookahead.accelerate(model, **settings, **(more or {})):
        ids = _generate(model, kwargs)
        return ids, lookahead.last_stats(model)


def make(name: str, attention: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Make a model by name, and what its ``generate`` is given.

    Parameters
    ----------
    name : str
        One of :data:`~tests.zoo.build.NAMES` or :data:`~tests.zoo.others.OTHERS`.
    attention : str or None
        None is ``"sdpa"``, or ``"eager"`` where the class has no other.
    """
    attention = attention or attentions(_class(name))[-1]
    if name in OTHERS:
        return build_other(name, attention), inputs(name)
    model_type, _, variant = name.partition(":")
    return build(model_type, variant, attention), {"inputs": prompt(20, repeat=4)}


def look_at(name: str) -> Verdict:
    """Compare the runs of a type under every attention implementation that it has."""
    first: Verdict | None = None
    for attention in attentions(_class(name)):
        try:
            model, given = make(name, attention)
        except Exception as error:
            if first is not None:  # a part that sees or hears has no such attention
                break
            return Verdict(NOT_BUILT, name_of(error))
        verdict = look(model, given, WAYS if first is None else FEW_WAYS)
        if verdict.kind == WRONG:
            return replace(verdict, detail=f"{attention}: {verdict.detail}")
        first = first or verdict
    assert first is not None
    return first


def _class(name: str) -> Any:
    return other_class(name) if name in OTHERS else model_class(name.partition(":")[0])


def in_child(
    name: str, look_at: Callable[[str], Verdict] = look_at, timeout: float = TIMEOUT
) -> Verdict:
    """Look at a type in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sender, name, look_at))
    child.start()
    sender.close()
    try:
        found: Verdict | None = receiver.recv() if receiver.poll(timeout) else None
    except EOFError:
        child.join()
        return Verdict(WRONG, f"the process ended with {child.exitcode}")
    else:
        return found or Verdict(WRONG, f"took more than {timeout:.0f} s")
    finally:
        child.kill()
        child.join()


def _send(sender: Any, name: str, look_at: Callable[[str], Verdict]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sender.send(look_at(name))
        except Exception as error:
            sender.send(Verdict(NOT_BUILT, name_of(error)))


def name_of(error: Exception) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:140]}"


def sweep(
    names: Iterable[str], look_at: Callable[[str], Verdict] = look_at
) -> Iterator[tuple[str, Verdict]]:
    """Yield each name with its verdict."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    ngram_pool.warm_up(block=True)
    for name in names:
        yield name, in_child(name, look_at)


if __name__ == "__main__":
    counts = Counter[str]()
    for name, verdict in sweep(sys.argv[1:] or (*NAMES, *OTHERS)):
        counts[verdict.word] += 1
        print(f"{name:28} {verdict}", flush=True)
    print(dict(counts))
