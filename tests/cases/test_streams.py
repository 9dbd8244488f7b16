"""Kind M: streaming."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from transformers import TextIteratorStreamer, TextStreamer

import lookahead
from tests.drafters import ALL, Oracle
from tests.helpers import Recorder, make_model, new_ids, prompt, run, shared
from tests.vocabularies import byte_tokenizer, letter_tokenizer

IDS = prompt(18, repeat=4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("drafter", ["all", "oracle", "half", "random"])
def test_m1_the_stream_is_the_return_value_piece_by_piece(drafter, sample, family):
    """M1: block tokens were left out of the stream, the last one repeated."""
    model, made = shared(family), []
    text = IDS[0].tolist() + new_ids(model, IDS)

    def make():
        made.append(Recorder())
        return {"streamer": made[-1]}

    for eos in (None, text[25]):
        made.clear()
        runs = run(
            model,
            IDS,
            settings=ALL[drafter](text),
            make=make,
            max_new_tokens=20,
            do_sample=sample,
            eos_token_id=eos,
        )
        plain, fast = made
        assert fast.ids == runs.fast[0].tolist() == runs.plain[0].tolist()
        assert [v.tolist() for v in fast.values] == [v.tolist() for v in plain.values]
        assert [v.dtype for v in fast.values] == [v.dtype for v in plain.values]
        assert [v.device.type for v in fast.values] == [v.device.type for v in plain.values]
        assert fast.ends == 1


class Watching(Recorder):
    """Writes down how often the model had run when each token came."""

    def __init__(self, count):
        super().__init__()
        self.count, self.seen = count, []

    def put(self, value):
        super().put(value)
        self.seen.append(self.count())


def test_m2_a_token_is_streamed_as_soon_as_it_is_known():
    """M1: no token waits for a later pass."""
    model = shared()
    text = IDS[0].tolist() + new_ids(model, IDS)
    passes = []
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    try:
        with lookahead.accelerate(
            model, nodes=3, sources=(), drafters=(Oracle(text, 3),), strict=True
        ):
            model.generate(IDS, max_new_tokens=1, do_sample=False)
            passes.clear()
            watching = Watching(lambda: len(passes))
            model.generate(IDS, max_new_tokens=9, do_sample=False, streamer=watching)
    finally:
        hook.remove()
    assert watching.seen == [0, 1, 2, 2, 2, 2, 3, 3, 3, 3]


EMOJI = "naïve 😀😃 漢字かな交じり文 — ok 👩‍👩‍👧 end"


class Pieces(TextStreamer):
    """Keeps the text instead of printing it."""

    def __init__(self, tokenizer, **kwargs):
        super().__init__(tokenizer, **kwargs)
        self.pieces = []

    def on_finalized_text(self, text, stream_end=False):
        self.pieces.append(text)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_m3_a_block_that_cuts_a_character_shows_no_replacement_character(length):
    """M3: one emoji spans several tokens; decoding each alone shows replacement characters."""
    tokenizer = byte_tokenizer()
    model = make_model("llama", vocab_size=256)
    ids = tokenizer("say: ", return_tensors="pt").input_ids
    wanted = tokenizer(EMOJI).input_ids
    text = ids[0].tolist() + wanted
    streamers = []

    def make():
        streamers.append(Pieces(tokenizer, skip_prompt=True))
        return {"streamer": streamers[-1]}

    run(
        model,
        ids,
        make=make,
        max_new_tokens=len(wanted),
        do_sample=False,
        settings={"sources": (), "drafters": (Oracle(text, length),)},
        prefix_allowed_tokens_fn=lambda b, seen: [text[len(seen)]],
    )
    plain, fast = streamers
    assert "".join(fast.pieces) == EMOJI
    assert fast.pieces == plain.pieces
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(fast.pieces)


@pytest.mark.parametrize("seed", range(10))
def test_m5_an_iterating_streamer_ends_where_the_ids_end(seed):
    """M5: lookup with TextIteratorStreamer sometimes ran beyond the end token."""
    model, tokenizer = shared(), letter_tokenizer()
    ids = prompt(20, seed=seed, repeat=5)
    new = new_ids(model, ids)
    eos = new[seed + 3]
    plain = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=eos)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    with lookahead.accelerate(model, nodes=8, strict=True):
        thread = Thread(
            target=model.generate,
            args=(ids,),
            kwargs={
                "max_new_tokens": 24,
                "do_sample": False,
                "eos_token_id": eos,
                "streamer": streamer,
            },
        )
        thread.start()
        text = "".join(streamer)
        thread.join()
    assert text == tokenizer.decode(plain[0, ids.shape[1] :])


def test_m6_what_is_streamed_does_not_change_afterwards():
    """M1: a streamer that keeps what it is given keeps the truth."""
    kept = []

    class Keeper:
        def put(self, value):
            kept.append((value, value.clone()))

        def end(self):
            pass

    run(shared(), IDS, make=lambda: {"streamer": Keeper()}, max_new_tokens=80, do_sample=False)
    assert all(torch.equal(value, copy) for value, copy in kept)
