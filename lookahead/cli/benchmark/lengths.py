"""Prompts of one length: what the context costs, and not what is in it.

Text of other rows goes in front of a prompt that is too short, and one that is too long loses its
end. No text is used twice in a prompt, since repeated text is easy to guess.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lookahead.cli.benchmark.prompts import Row
from lookahead.cli.conversation import Transcript

__all__ = ["of_length"]


def of_length(rows: Sequence[Row], others: Sequence[Row], tokenizer: Any, length: int) -> list[Row]:
    """Return the first turns of rows, made as long as they can be with so many ids.

    Parameters
    ----------
    rows : sequence of Row
        What is asked.
    others : sequence of Row
        Where the text in front comes from, each row from those that follow it.
    tokenizer : tokenizer
        With its template, if it has one, which counts.
    length : int
        Most ids of a prompt. Where it does not even hold the template, one word is left.
    """
    return [replace(row, turns=(_fitted(row, others, tokenizer, length),)) for row in rows]


def _fitted(row: Row, others: Sequence[Row], tokenizer: Any, length: int) -> str:
    text = row.turns[0]
    before = _text_ids(row, others, tokenizer, length - _num_ids(tokenizer, text))
    while before:
        written = _decoded(tokenizer, before) + text
        excess = _num_ids(tokenizer, written) - length
        if excess <= 0:
            return written
        before = before[excess:]
    own = tokenizer(text, add_special_tokens=False)["input_ids"]
    while len(own) > 1 and (excess := _num_ids(tokenizer, text) - length) > 0:
        own = own[: max(1, len(own) - excess)]
        text = _decoded(tokenizer, own)
    return text


def _text_ids(row: Row, others: Sequence[Row], tokenizer: Any, wanted: int) -> list[int]:
    """Return the last ids of as much text of other rows as is wanted, or of all there is."""
    place = next((n for n, other in enumerate(others) if other.id == row.id), -1)
    ids: list[int] = []
    for other in itertools.chain(others[place + 1 :], others[: max(0, place)]):
        if len(ids) >= wanted:
            break
        ids += tokenizer("\n\n".join(other.turns) + "\n\n", add_special_tokens=False)["input_ids"]
    return ids[-wanted:] if wanted > 0 else []


def _num_ids(tokenizer: Any, text: str) -> int:
    return len(Transcript(tokenizer).prompt_ids(text))


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return Transcript(tokenizer).decode(ids)
