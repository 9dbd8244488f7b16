from __future__ import annotations

from typing import Any

import torch

from lookahead.cli.streaming import TextStream


def feed(stream: TextStream, ids: list[int]) -> None:
    stream.put(torch.tensor([[1, 2, 3]]))
    for token in ids:
        stream.put(torch.tensor([token]))
    stream.end()


def test_pieces_join_to_the_whole_text(tokenizer: Any) -> None:
    pieces: list[str] = []
    text = "grün — straße, 日本 ☂ end"
    feed(TextStream(tokenizer, pieces.append), tokenizer(text)["input_ids"])
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_broken_bytes_come_out_at_the_end(tokenizer: Any) -> None:
    pieces: list[str] = []
    feed(TextStream(tokenizer, pieces.append), tokenizer("aü")["input_ids"][:-1])
    assert "".join(pieces) == "a\ufffd"


def test_special_tokens_are_not_shown_but_counted(tokenizer: Any) -> None:
    pieces: list[str] = []
    stream = TextStream(tokenizer, pieces.append)
    feed(stream, [*tokenizer("ab")["input_ids"], 2])
    assert "".join(pieces) == "ab"
    assert len(stream.new_ids) == len(stream.times_s) == 3
    assert stream.times_s == sorted(stream.times_s)


def test_without_a_tokenizer_it_keeps_ids_and_times() -> None:
    stream = TextStream()
    feed(stream, [7, 8])
    assert stream.new_ids == [7, 8]
