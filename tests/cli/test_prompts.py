from __future__ import annotations

from pathlib import Path

import pytest

from lookahead.cli.benchmark.prompts import Row, limit_rows, parse_rows, read_rows, turns_of
from lookahead.cli.console import CommandError


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        ({"turns": ["one", "two"]}, [["one"], ["two"]]),
        ({"turns": [{"user": "go", "calls": []}], "tool_names": ["cd", "ls"]}, [["cd, ls", "go"]]),
        ({"prompt": "def f():", "test": "no"}, [["def f():"]]),
        ({"question": "2 + 2?", "answer": "4"}, [["2 + 2?"]]),
        ({"instruction": "Fix it.", "before": "x = 1", "after": "y"}, [["Fix it.", "x = 1"]]),
        ({"tools": [{"name": "hypot"}], "user": "Call it."}, [['"hypot"', "Call it."]]),
    ],
)
def test_each_shape_gives_its_turns(record: dict, parts: list[list[str]]) -> None:
    turns = turns_of(record)
    assert len(turns) == len(parts)
    for turn, wanted in zip(turns, parts, strict=True):
        assert all(part in turn for part in wanted)
    assert not any(word in turn for turn in turns for word in ("answer", "after", "calls"))


@pytest.mark.parametrize("record", [{}, {"id": 1}, {"turns": []}, {"prompt": ""}, {"tools": []}])
def test_a_record_without_a_prompt_is_refused(record: dict) -> None:
    with pytest.raises(ValueError, match="no prompt text"):
        turns_of(record)


@pytest.mark.parametrize("text", ["", "\n", "not json\n", "[1]\n", '{"id": 1}\n'])
def test_a_bad_file_is_one_sentence(text: str) -> None:
    with pytest.raises(CommandError, match="prompt file"):
        parse_rows(text, "x")


def test_subtask_is_picked_by_the_part_after_the_colon(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"id": 1, "subtask": "a", "prompt": "p"}\n{"id": 2, "question": "q"}\n')
    assert [row.subtask for row in read_rows(str(file))] == ["a", "mine"]
    assert [row.id for row in read_rows(f"{file}:a")] == [1]
    with pytest.raises(CommandError, match="it has: a, mine"):
        read_rows(f"{file}:b")
    with pytest.raises(CommandError, match="no prompt file"):
        read_rows(str(tmp_path / "none.jsonl"))


def test_limit_thins_out_evenly_within_each_subtask() -> None:
    rows = [Row(i, "a", ("x",)) for i in range(10)] + [Row(i, "b", ("x",)) for i in range(10, 13)]
    kept = [row.id for row in limit_rows(rows, 4)]
    assert kept == [0, 2, 4, 6, 10, 11, 12]
    assert limit_rows(rows, None) == rows


def test_own_prompts_are_few_and_of_several_kinds() -> None:
    rows = read_rows(None)
    assert 8 <= len(rows) <= 12
    assert len({row.subtask for row in rows}) >= 4
    assert any(len(row.turns) == 2 for row in rows)
    assert len({row.id for row in rows}) == len(rows)


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(CommandError, match=r"rows\.jsonl cannot be read as text in UTF-8"):
        read_rows(str(file))
