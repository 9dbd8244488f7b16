"""Prompt files: one JSON object a line, in one of several shapes.

Knows how to make user turns out of a record, how to pick a subtask and how to thin out. Knows
nothing of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from lookahead.cli.console import CommandError

SHAPES = "turns | prompt | question | instruction + before | tools + user"


@dataclass(frozen=True)
class Row:
    """One record: the user's turns, in order."""

    id: str | int
    subtask: str
    turns: tuple[str, ...]


def read_rows(source: str | None) -> list[Row]:
    """Read ``FILE.jsonl`` or ``FILE.jsonl:SUBTASK``; ``None`` is the project's own small file.

    Raises
    ------
    CommandError
        If the file is missing, a line cannot be used, or the subtask is not in it.
    """
    if source is None:
        text = (resources.files("lookahead.cli") / "data" / "prompts.jsonl").read_text("utf-8")
        return parse_rows(text, "prompts")
    name, wanted = _split_subtask(source)
    path = Path(name)
    if not path.is_file():
        raise CommandError(
            f"There is no prompt file {name}; give FILE.jsonl or FILE.jsonl:SUBTASK."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise CommandError(f"{name} cannot be read as text in UTF-8: {error}.") from error
    rows = parse_rows(text, path.stem)
    if wanted is None:
        return rows
    chosen = [row for row in rows if row.subtask == wanted]
    if not chosen:
        known = ", ".join(sorted({row.subtask for row in rows}))
        raise CommandError(f"{name} has no subtask {wanted!r}; it has: {known}.")
    return chosen


def parse_rows(text: str, default_subtask: str) -> list[Row]:
    """Make rows out of the text of a prompt file."""
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            subtask = str(record.get("subtask") or default_subtask)
            rows.append(Row(record.get("id", number), subtask, turns_of(record)))
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise CommandError(
                f"Line {number} of the prompt file cannot be used ({error}); expected a JSON "
                f"object with {SHAPES}."
            ) from error
    if not rows:
        raise CommandError("The prompt file is empty; expected one JSON object a line.")
    return rows


def turns_of(record: dict[str, Any]) -> tuple[str, ...]:
    """Make the user's turns out of a record of any known shape.

    Raises
    ------
    ValueError
        If no known shape fits.
    """
    if "turns" in record:
        turns = [turn["user"] if isinstance(turn, dict) else str(turn) for turn in record["turns"]]
        if turns and record.get("tool_names"):
            turns[0] = f"You can call: {', '.join(record['tool_names'])}.\n\n{turns[0]}"
    elif "instruction" in record and "before" in record:
        turns = [f"{record['instruction']}\n\n```\n{record['before']}\n```"]
    elif "tools" in record and "user" in record:
        tools = json.dumps(record["tools"], indent=1)
        turns = [f"You can call these functions:\n{tools}\n\nAnswer with a call.\n{record['user']}"]
    elif "prompt" in record:
        turns = [record["prompt"]]
    elif "question" in record:
        turns = [record["question"]]
    else:
        turns = []
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ValueError("no prompt text in it")
    return tuple(turns)


def limit_rows(rows: Sequence[Row], limit: int | None) -> list[Row]:
    """Thin out evenly, within each subtask; the order of the file stays."""
    if limit is None:
        return list(rows)
    kept: set[int] = set()
    for subtask in {row.subtask for row in rows}:
        places = [place for place, row in enumerate(rows) if row.subtask == subtask]
        kept.update(places[:: max(1, len(places) // limit)][:limit])
    return [row for place, row in enumerate(rows) if place in kept]


def first_turns(rows: Sequence[Row], turns: int | None) -> list[Row]:
    """Leave out later turns."""
    return [replace(row, turns=row.turns[:turns]) for row in rows]


def _split_subtask(source: str) -> tuple[str, str | None]:
    name, separator, subtask = source.rpartition(".jsonl:")
    return (f"{name}.jsonl", subtask) if separator else (source, None)
