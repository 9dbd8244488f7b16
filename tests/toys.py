"""Targets of a few tokens, driven through the engine itself: no model, no transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

import ngram_pool
from lookahead import Config, DecodeStats, DraftTree
from lookahead.budget import Budget
from lookahead.choose import NodeChooser
from lookahead.cost_curve import CostCurve
from lookahead.drafters import MergedDrafter
from lookahead.engine import Engine
from lookahead.noise import Draws
from lookahead.outcome import PassRows, PromptRows
from lookahead.sequence import Sequence, TokenBuffer
from lookahead.window import WindowRows

#: Next-token law of a toy: probabilities after a context.
Law = Callable[[list[int]], Seq[float]]


class TableTarget:
    """Looks the next token's law up; keeps what a cache would keep, to check the engine.

    Every call is written down in ``calls``: the order of verify and keep.
    """

    def __init__(self, law: Law, prompts: list[list[int]]) -> None:
        self.law = law
        self.cached: list[list[int]] = [list(p) for p in prompts]
        self.calls: list[tuple[Any, ...]] = []
        self.trees: dict[int, DraftTree] = {}

    def _logits(self, contexts: list[list[int]]) -> Tensor:
        rows = torch.tensor([list(self.law(context)) for context in contexts])
        return rows.log()

    def prefill(self) -> Tensor:
        self.calls.append(("prefill",))
        return self._logits(self.cached)

    def prompt_rows(self, slot: int, limit: int) -> Iterator[PromptRows]:
        self.calls.append(("prompt_rows", slot))
        prompt = self.cached[slot][-limit:]
        first = len(self.cached[slot]) - len(prompt)
        contexts = [self.cached[slot][: first + i + 1] for i in reversed(range(len(prompt)))]
        previous = [c[-2] if len(c) > 1 else -1 for c in contexts]
        yield PromptRows(previous, [c[-1] for c in contexts], self._logits(contexts))

    def prompt_hidden(self, slot: int) -> Tensor | None:
        return None

    seconds_aside = 0.0

    def may_draft(self, slot: int) -> bool:
        return True

    def verify(
        self,
        slots: Seq[int],
        trees: Seq[DraftTree],
        windows: Seq[WindowRows | None] | None = None,
    ) -> list[PassRows]:
        self.calls.append(("verify", *slots))
        self.trees = dict(zip(slots, trees, strict=True))
        rows = []
        for (slot, tree), window in zip(
            self.trees.items(), windows or [None] * len(slots), strict=True
        ):
            tokens = tree.tokens.tolist()
            contexts = [
                [*self.cached[slot], tokens[0], *(tokens[n] for n in tree.path(node))]
                for node in range(len(tokens))
            ]
            root = [*self.cached[slot], tokens[0]]
            rows.append(PassRows(self._logits(contexts), None, self._window_tokens(root, window)))
        return rows

    def _window_tokens(self, root: list[int], window: WindowRows | None) -> list[int] | None:
        if window is None:
            return None
        contexts = []
        for row in range(len(window) - window.num_read, len(window)):
            seen = [n for n in range(len(window)) if window.may_see[row, n]]
            seen.sort(key=lambda n: window.offsets[n])
            # One token for each place from behind the root to the row's own.
            assert [int(window.offsets[n]) for n in seen] == [*range(1, len(seen) + 1)]
            contexts.append([*root, *(int(window.tokens[n]) for n in seen)])
        return self._logits(contexts).argmax(dim=-1).tolist()

    def keep(self, slot: int, path: Seq[int]) -> None:
        self.calls.append(("keep", slot, tuple(path)))
        self.cached[slot] += [int(self.trees[slot].tokens[node]) for node in path]


def make_sequence(
    prompt: list[int],
    *,
    config: Config,
    stats: DecodeStats,
    vocab: int,
    num: int | None = 16,
    slot: int = 0,
    stop: Callable[[list[int]], bool] | None = None,
    sample: bool = False,
    process: Any = None,
    events: list[tuple[Any, ...]] | None = None,
    calibration: Any = None,
    emit: Any = None,
) -> Sequence:
    """Make the state of one row, which ends after ``num`` tokens or where ``stop`` says so."""
    end = None if num is None else len(prompt) + num

    def should_stop(ids: Tensor, scores: Any) -> bool:
        if events is not None:
            events.append(("stop?", int(ids[0, -1])))
        done = end is not None and ids.shape[1] >= end
        return done or (stop is not None and stop(ids[0].tolist()))

    def emitted(token: int) -> None:
        if events is not None:
            events.append(("emit", token))
        if emit is not None:
            emit(token)

    pool = ngram_pool.new_pool(calibration=calibration or ngram_pool.Calibration())
    return Sequence(
        slot=slot,
        context=list(prompt),
        seen=TokenBuffer(torch.tensor([prompt])),
        drafter=MergedDrafter(config, pool, stats, vocab),
        chooser=NodeChooser(
            process, sample=sample, draws=Draws(torch.device("cpu")) if sample else None
        ),
        should_stop=should_stop,
        max_length=end,
        emit=emitted,
    )


def decode(
    law: Law,
    prompt: list[int],
    num: int,
    *,
    seed: int = 0,
    sample: bool = True,
    curve: CostCurve | None = None,
    calibration: Any = None,
    **settings: Any,
) -> tuple[list[int], DecodeStats]:
    """Decode ``num`` tokens of a toy through the engine; return them and the statistics."""
    config = Config(**({"nodes": 4} | settings))
    stats = DecodeStats()
    target = TableTarget(law, [prompt])
    vocab = len(list(law(prompt)))
    sequence = make_sequence(
        prompt,
        config=config,
        stats=stats,
        vocab=vocab,
        num=num,
        sample=sample,
        calibration=calibration,
    )
    torch.manual_seed(seed)
    Engine(target, Budget(config, curve or CostCurve()), config, stats).run([sequence])
    assert target.cached[0] == sequence.context[:-1]
    return sequence.context[len(prompt) :], stats


def plain_decode(
    law: Law, prompt: list[int], num: int, *, seed: int = 0, sample: bool = True
) -> list[int]:
    """Decode one token at a time, as the library does."""
    torch.manual_seed(seed)
    context = list(prompt)
    for _ in range(num):
        scores = torch.tensor([list(law(context))]).log()
        if sample:
            token = int(torch.multinomial(scores.softmax(-1), num_samples=1))
        else:
            token = int(scores.argmax())
        context.append(token)
    return context[len(prompt) :]


def scripted(text: list[int], vocab: int) -> Law:
    """Return the law that replays a text by place, whatever stood before."""

    def law(context: list[int]) -> list[float]:
        row = [1e-6] * vocab
        row[text[len(context)] if len(context) < len(text) else 0] = 1.0
        return row

    return law
