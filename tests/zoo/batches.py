"""A ragged batch on every registered type: what the self-test, which reads one text, leaves open.

By hand: ``python -m tests.zoo.batches [names...]``.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import lookahead
from tests.cases.test_batches import ragged
from tests.drafters import Random
from tests.zoo.build import NAMES
from tests.zoo.configs import VOCAB
from tests.zoo.sweep import EXACT, FAILS, NOT_BUILT, PLAIN, WRONG, Verdict, make, name_of, sweep

#: Prompts of unlike length, padded on the left.
LENGTHS = (7, 20, 13)
NEW = 20


class ByText:
    """Three wrong guesses and two right ones for each of several texts, in a tree."""

    name = "by-text"

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts = texts

    def draft(self, context: list[int], max_nodes: int) -> list[list[int]]:
        end = len(context)
        text = next((t for t in self.texts if t[:end] == context), [])
        right = text[end : end + 3]
        return [[(t + 1) % VOCAB for t in right], right[:2]] if right else []


def look_at_batch(name: str) -> Verdict:
    """Compare plain and accelerated answers to three prompts at once, padded on the left.

    All rows write to the end, and then one of them stops earlier.
    """
    try:
        model, _ = make(name)
    except Exception as error:
        return Verdict(NOT_BUILT, name_of(error))
    ids, mask = ragged(LENGTHS)
    call = {"attention_mask": mask, "max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    best, mode, end = 1.0, "tree", 0
    for stops in (False, True):
        call["eos_token_id"] = end if stops else None
        try:
            plain = model.generate(ids, **call)
        except Exception as error:
            return Verdict(FAILS, name_of(error))
        texts = [
            [t for t, live in zip(row.tolist(), kept.tolist(), strict=False) if live]
            + row[ids.shape[1] :].tolist()
            for row, kept in zip(plain, mask, strict=True)
        ]
        for drafter in (ByText(texts), Random()):
            try:
                found, stats = _accelerated(model, ids, call, drafter)
            except Exception as error:
                return Verdict(WRONG, f"{drafter.name}: {name_of(error)}")
            if found != plain.tolist():
                return Verdict(WRONG, f"{drafter.name}, end token {end}: ids differ")
            if not stats.accelerated:
                return Verdict(PLAIN, str(stats.plain_reason))
            mode, best = stats.shape, max(best, stats.new_tokens / stats.passes / len(ids))
        end = end or int(plain[0, ids.shape[1] + 5])
    num_ids = len(set(plain[:, ids.shape[1] :].flatten().tolist()))
    return Verdict(EXACT, "", mode, best, num_ids)


def _accelerated(model: Any, ids: Any, call: dict[str, Any], drafter: Any) -> tuple[Any, Any]:
    lookahead.forget(model)
    settings = {"nodes": 8, "sources": (), "drafters": (drafter,), "remember": False}
    with lookahead.accelerate(model, **settings):
        return model.generate(ids, **call).tolist(), lookahead.last_stats(model)


if __name__ == "__main__":
    counts = Counter[str]()
    for name, verdict in sweep(sys.argv[1:] or NAMES, look_at_batch):
        counts[verdict.word] += 1
        print(f"{name:28} {verdict}", flush=True)
    print(dict(counts))
