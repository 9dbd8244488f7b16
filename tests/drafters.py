"""Drafters that are right or wrong on purpose, and the one list that feeds the matrix."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from lookahead import DraftTree
from lookahead.config import SOURCES
from tests.helpers import VOCAB


class Oracle:
    """Replays a text, ``length`` tokens at a time, with a wrong token at ``wrong_at``."""

    name = "oracle"

    def __init__(self, text: list[int], length: int = 4, wrong_at: int | None = None) -> None:
        self.text, self.length, self.wrong_at = text, length, wrong_at

    def draft(self, context: list[int], max_nodes: int) -> list[int]:
        guess = list(self.text[len(context) : len(context) + self.length])
        if self.wrong_at is not None and guess:
            place = self.wrong_at % self.length
            if place < len(guess):
                guess[place] = (guess[place] + 1) % VOCAB
        return guess


class Fixed:
    """Always says the same."""

    name = "fixed"

    def __init__(self, guess: Any) -> None:
        self.guess = guess

    def draft(self, context: list[int], max_nodes: int) -> Any:
        return self.guess


class Random:
    """Says something else each time: several guesses of different lengths."""

    name = "random"

    def __init__(self, seed: int = 0, vocab: int = VOCAB) -> None:
        self.random = np.random.default_rng(seed)
        self.vocab = vocab

    def draft(self, context: list[int], max_nodes: int) -> list[list[int]]:
        return [
            self.random.integers(0, self.vocab, self.random.integers(1, 6)).tolist()
            for _ in range(3)
        ]


class Half:
    """The right token and a wrong one at every depth of a chain, the wrong one first."""

    name = "half"

    def __init__(self, text: list[int], length: int = 4) -> None:
        self.text, self.length = text, length

    def draft(self, context: list[int], max_nodes: int) -> DraftTree | None:
        right = self.text[len(context) : len(context) + self.length]
        if not right:
            return None
        tokens, parents, above = [context[-1]], [0], 0
        for token in right:
            tokens += [(token + 1) % VOCAB, token]
            parents += [above, above]
            above = len(tokens) - 1
        return DraftTree.from_parents(tokens, parents)


class Raising:
    """Raises in one of its methods, once it has been called ``after`` times."""

    name = "raising"

    def __init__(self, method: str = "draft", after: int = 0, error: Any = RuntimeError) -> None:
        self.method, self.after, self.error = method, after, error

    def _maybe(self, method: str) -> None:
        if method == self.method:
            if self.after == 0:
                raise self.error("meant to fail")
            self.after -= 1

    def begin(self, context: list[int]) -> None:
        self._maybe("begin")

    def draft(self, context: list[int], max_nodes: int) -> list[int]:
        self._maybe("draft")
        return context[-1:] * 2

    def learn(self, outcome: Any) -> None:
        self._maybe("learn")


class Vandal:
    """Changes everything that it is handed."""

    name = "vandal"

    def begin(self, context: list[int]) -> None:
        context.clear()

    def draft(self, context: list[int], max_nodes: int) -> list[int]:
        guess = context[-3:]
        context[:] = [0] * 5
        return guess

    def learn(self, outcome: Any) -> None:
        outcome.path.clear()
        outcome.chosen.clear()
        outcome.context[:] = [1, 2, 3]
        outcome.logits.zero_()
        outcome.tree.tokens[:] = 0


class Endless:
    """Returns a guess without an end; counts how much of it was read."""

    name = "endless"
    most = 20_000

    def __init__(self) -> None:
        self.read = 0

    def draft(self, context: list[int], max_nodes: int) -> Iterator[int]:
        return self._tokens()

    def _tokens(self) -> Iterator[int]:
        for number in itertools.count():
            self.read = max(self.read, number)
            if number > self.most:
                raise RuntimeError("read without end")
            yield number % VOCAB


def forged(tokens: Any, parents: Any, depths: Any, probabilities: Any) -> DraftTree:
    """Make a tree past the checks of its class."""
    tree = object.__new__(DraftTree)
    values = {
        "tokens": tokens,
        "parents": parents,
        "depths": depths,
        "probabilities": probabilities,
        "_children": {},
    }
    for name, value in values.items():
        object.__setattr__(tree, name, value)
    return tree


def _forged(parents: list[int], probabilities: Any = None, depths: Any = None) -> DraftTree:
    size = len(parents)
    ones = np.ones(size, np.float32)
    return forged(
        np.arange(10, 10 + size),
        np.array(parents),
        np.arange(size) if depths is None else depths,
        ones if probabilities is None else np.array(probabilities, np.float32),
    )


def _alone(*drafters: Any) -> dict[str, Any]:
    return {"sources": (), "drafters": drafters}


#: What each configuration is called, and its settings for the text that plain decoding gives.
#: One line here puts a drafter into the whole matrix.
WELL_BEHAVED: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "none": lambda text: {"sources": ()},
    "ngrams": lambda text: {"sources": ("ngrams",)},
    "recycled": lambda text: {"sources": ("recycled",)},
    "head": lambda text: {"sources": ("head",)},
    "exit": lambda text: {"sources": ("exit",), "exit_layer": 1},
    "all-and-exit": lambda text: {"sources": SOURCES, "exit_layer": 1},
    "no-head": lambda text: {"sources": ("ngrams", "recycled")},
    "all": lambda text: {},
    "all-nothing-of-the-prompt": lambda text: {"recycle_prompt": 0},
    "all-depth-1": lambda text: {"max_depth": 1},
    "oracle": lambda text: _alone(Oracle(text)),
    "oracle-1": lambda text: _alone(Oracle(text, 1)),
    "oracle-20": lambda text: _alone(Oracle(text, 20)),
    "oracle-wrong-at-0": lambda text: _alone(Oracle(text, 6, 0)),
    "oracle-wrong-at-2": lambda text: _alone(Oracle(text, 6, 2)),
    "oracle-wrong-at-last": lambda text: _alone(Oracle(text, 6, -1)),
    "half": lambda text: _alone(Half(text)),
    "fixed": lambda text: _alone(Fixed([5, 6, 7, 8])),
    "random": lambda text: _alone(Random()),
    "factory": lambda text: _alone(Random, lambda: Oracle(text)),
    "four-and-all": lambda text: {
        "drafters": (Oracle(text, 3), Half(text), Fixed([[5], [6, 7]]), Random())
    },
}

BADLY_BEHAVED: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "ignores-limits": lambda text: _alone(
        Fixed([[text[-1]] * 400, *[[n % VOCAB] * 9 for n in range(300)]])
    ),
    "ignores-limits-rightly": lambda text: _alone(Oracle([*text, *[7] * 999], 999)),
    "endless": lambda text: _alone(Endless()),
    "raises": lambda text: {"drafters": (Raising(),)},
    "raises-later": lambda text: {"drafters": (Raising(after=3), Oracle(text))},
    "raises-in-begin": lambda text: {"drafters": (Raising("begin"),)},
    "raises-in-learn": lambda text: {"drafters": (Raising("learn"), Oracle(text))},
    "factory-raises": lambda text: {"drafters": (lambda: 1 // 0,)},
    "factory-makes-nothing": lambda text: {"drafters": (lambda: None,)},
    "too-large-tokens": lambda text: _alone(Fixed([5, VOCAB, 6])),
    "negative-tokens": lambda text: _alone(Fixed([-1, 5])),
    "enormous-tokens": lambda text: _alone(Fixed([2**70])),
    "tokens-of-31-bits": lambda text: _alone(Fixed([2**31 - 1, 2**31, 2**40])),
    "duplicates": lambda text: _alone(Fixed([[5, 6], [5, 6], [5, 6, 7], [5]])),
    "duplicate-siblings": lambda text: _alone(
        Fixed(DraftTree.from_parents([1, 5, 5, 6, 6], [0, 0, 0, 1, 2]))
    ),
    "empty": lambda text: _alone(Fixed([])),
    "empty-guesses": lambda text: _alone(Fixed([[], []])),
    "cycle": lambda text: _alone(Fixed(_forged([0, 2, 1]))),
    "own-parent": lambda text: _alone(Fixed(_forged([0, 1, 2]))),
    "parents-outside": lambda text: _alone(Fixed(_forged([0, 7, -3]))),
    "no-root": lambda text: _alone(Fixed(_forged([]))),
    "short-probabilities": lambda text: _alone(Fixed(_forged([0, 0, 1], [1.0]))),
    "nan-probabilities": lambda text: _alone(Fixed(_forged([0, 0, 1], [1, np.nan, np.inf]))),
    "negative-probabilities": lambda text: _alone(Fixed(_forged([0, 0, 1], [1, -1, 7]))),
    "wrong-depths": lambda text: _alone(Fixed(_forged([0, 0, 1], None, np.array([9, 9, -9])))),
    "string": lambda text: _alone(Fixed("abc")),
    "float": lambda text: _alone(Fixed(3.5)),
    "floats": lambda text: _alone(Fixed([1.5, 2.5])),
    "nan": lambda text: _alone(Fixed([float("nan")])),
    "object": lambda text: _alone(Fixed(object())),
    "dictionary": lambda text: _alone(Fixed({5: 6})),
    "mixed": lambda text: _alone(Fixed([5, [6, 7]])),
    "too-deep": lambda text: _alone(Fixed([[[5]]])),
    "torch-tensor": lambda text: _alone(Fixed(torch.tensor([[5, 6]]))),
    "numpy-scalar": lambda text: _alone(Fixed(np.int64(5))),
    "numpy-array": lambda text: _alone(Fixed(np.array([5, 6, 7]))),
    "vandal": lambda text: {"drafters": (Vandal(),)},
}

ALL = WELL_BEHAVED | BADLY_BEHAVED

#: Half right, wrong, random, and all built-in ones with a window: for what depends on the model.
DRAFTERS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "half": lambda text: _alone(Half(text)),
    "wrong": lambda text: _alone(Oracle(text, 6, 0)),
    "random": lambda text: _alone(Random()),
    "all-and-window": lambda text: {"window": (5, 3, 4)},
}
