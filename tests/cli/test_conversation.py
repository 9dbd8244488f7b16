from __future__ import annotations

from typing import Any

import pytest
import torch

import lookahead
from lookahead.cli.conversation import (
    ContextFullError,
    Conversation,
    KeptCache,
    Transcript,
    generate_ids,
    num_common,
)

OPTIONS = {"max_new_tokens": 12, "do_sample": False}
TURNS = ("hello", "and again", "once more")


def reference(model: Any, prompt_ids: list[int]) -> list[int]:
    return generate_ids(model, prompt_ids, None, **OPTIONS).new_ids


def fed_rows(model: Any) -> list[int]:
    """Collect how many rows each pass of the model is fed."""
    rows: list[int] = []
    model.register_forward_pre_hook(
        lambda _m, args, kwargs: rows.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    return rows


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("has_template", [False, True])
def test_later_turns_reuse_the_cache_and_change_nothing(
    tiny: Any, tokenizer: Any, is_fast: bool, has_template: bool
) -> None:
    fresh_answers = Transcript(tokenizer, use_template=has_template)
    conversation = Conversation(tiny, tokenizer, use_template=has_template)
    for number, text in enumerate(TURNS):
        prompt_ids = fresh_answers.prompt_ids(text)
        expected = reference(tiny, prompt_ids)
        fresh_answers.add(text, prompt_ids, expected)
        if is_fast:
            with lookahead.accelerate(tiny, nodes=8):
                reply = conversation.ask(text, **OPTIONS)
        else:
            reply = conversation.ask(text, **OPTIONS)
        assert reply.new_ids == expected
        assert (reply.num_reused > 0) == (number > 0)


def test_switching_plain_and_fast_in_mid_session_gives_the_same_text(
    tiny: Any, tokenizer: Any
) -> None:
    plain = Conversation(tiny, tokenizer)
    expected = [plain.ask(text, **OPTIONS).new_ids for text in TURNS]
    switched = Conversation(tiny, tokenizer)
    for number, text in enumerate(TURNS):
        if number % 2:
            lookahead.restore(tiny)
        else:
            lookahead.accelerate(tiny, nodes=8)
        assert switched.ask(text, **OPTIONS).new_ids == expected[number]
    lookahead.restore(tiny)


def test_only_new_ids_are_fed(tiny: Any, plain_tokenizer: Any) -> None:
    conversation = Conversation(tiny, plain_tokenizer)
    first = conversation.ask("hello", **OPTIONS)
    rows = fed_rows(tiny)
    reply = conversation.ask("again", **OPTIONS)
    # All but the last id of the first turn are cached, and that id is fed with the new ones.
    assert rows[0] == 1 + len("\nagain\n")
    assert reply.num_reused == len("hello") + len(first.new_ids) - 1


def test_differing_retokenisation_reuses_up_to_the_first_difference(
    tiny: Any, tokenizer: Any
) -> None:
    """The answer may come back from the template in other ids: those are read anew."""
    conversation = Conversation(tiny, tokenizer)
    first = conversation.ask("hello", **OPTIONS)
    conversation.transcript._messages[-1]["content"] = "something else"
    prompt_ids = conversation.transcript.prompt_ids("again")
    reply = conversation.ask("again", **OPTIONS)
    before = len(Transcript(tokenizer).prompt_ids("hello"))
    assert before <= reply.num_reused < before + len(first.new_ids)
    assert reply.new_ids == reference(tiny, prompt_ids)


def test_a_cache_that_cannot_be_cut_is_dropped() -> None:
    class Stubborn:
        is_croppable = True

        def get_seq_length(self) -> int:
            return 5

        def crop(self, _rows: int) -> None:
            raise RuntimeError("the window has moved on")

    kept = KeptCache()
    kept.put([1, 2, 3, 4, 5, 6], Stubborn())
    assert kept.ids == [1, 2, 3, 4, 5]
    assert kept.take([1, 2, 9, 9]) is None
    assert kept.take([1, 2, 3]) is None  # given away or dropped, never used twice


def test_the_last_id_of_a_prompt_is_always_read(tiny: Any) -> None:
    kept = KeptCache()
    result = generate_ids(tiny, [5, 6, 7], None, **OPTIONS)
    kept.put([5, 6, 7, *result.new_ids], result.cache)
    cache = kept.take([5, 6, 7])
    assert cache is not None
    assert cache.get_seq_length() == 2
    assert generate_ids(tiny, [5, 6, 7], cache, **OPTIONS).new_ids == result.new_ids


def test_ctrl_c_keeps_what_was_written_and_drops_the_cache(tiny: Any, tokenizer: Any) -> None:
    conversation = Conversation(tiny, tokenizer)
    pieces: list[str] = []

    def interrupt(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    reply = conversation.ask("hello", interrupt, max_new_tokens=40, do_sample=False)
    assert reply.is_interrupted
    assert 3 <= len(reply.new_ids) < 40
    assert reply.text == "".join(pieces)
    assert "stopped" in reply.summary()
    assert conversation.kept.cache is None
    prompt_ids = conversation.transcript.prompt_ids("again")
    assert conversation.ask("again", **OPTIONS).new_ids == reference(tiny, prompt_ids)


def test_a_full_context_is_a_sentence(tiny: Any, tokenizer: Any) -> None:
    tiny.config.max_position_embeddings = 40
    conversation = Conversation(tiny, tokenizer)
    assert len(conversation.ask("hi", max_new_tokens=500, do_sample=False).new_ids) <= 40
    with pytest.raises(ContextFullError, match="context ends at"):
        conversation.ask("hi" * 40, max_new_tokens=5, do_sample=False)


def test_summary_has_the_figures(tiny: Any, tokenizer: Any) -> None:
    conversation = Conversation(tiny, tokenizer)
    assert "MAT 1.00, plain" in conversation.ask("hello", **OPTIONS).summary()
    with lookahead.accelerate(tiny, nodes=8):
        line = conversation.ask("hello", **OPTIONS).summary()
    for part in ("12 tokens", "tokens/s", "MAT", "n-grams", "recycled", "target's own"):
        assert part in line


def test_num_common() -> None:
    assert num_common([1, 2, 3], [1, 2, 4, 5]) == 2
    assert num_common([], [1]) == 0
    assert num_common(torch.tensor([1, 2]).tolist(), [1, 2]) == 2
