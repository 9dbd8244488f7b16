"""With a lookahead window of any shape, the answer is that of plain generation, call after call."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import lookahead
from lookahead.drafters.window import WindowDrafter
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_argument
from lookahead.hf.masks import install
from lookahead.hf.target import HFTarget
from lookahead.tree import DraftTree
from lookahead.window import LookaheadWindow
from tests.drafters import Oracle, Random
from tests.helpers import CACHE, FAMILIES, Recorder, check, fresh, make_model, prompt, shared
from tests.oracles import assert_cache_from_scratch

SHAPES = ((1, 2, 1), (3, 3, 2), (7, 5, 7))
ALL_FAMILIES = (*FAMILIES, "gemma3")
NEW = 20


@functools.cache
def _plain(family: str, attention: str, sample: bool) -> list[int]:
    torch.manual_seed(3)
    ids = shared(family, attention=attention).generate(
        prompt(18, repeat=4), max_new_tokens=NEW, do_sample=sample, top_k=0
    )
    return ids[0].tolist()


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("shape", [*SHAPES, "auto"], ids=str)
def test_output_is_that_of_plain_generation(shape, family, attention, sample):
    expected = _plain(family, attention, sample)
    model = shared(family, attention=attention)
    sources: Any = {(3, 3, 2): {}, "auto": {}}.get(shape, {"sources": ()})
    streamer, cache = Recorder(), DynamicCache(config=model.config)
    lookahead.forget(model)
    with lookahead.accelerate(model, window=shape, nodes=8, strict=True, **sources):
        torch.manual_seed(3)
        ids = model.generate(
            prompt(18, repeat=4),
            max_new_tokens=NEW,
            do_sample=sample,
            top_k=0,
            streamer=streamer,
            **{CACHE: cache},
        )[0].tolist()
        stats = lookahead.last_stats(model)
    assert ids == expected
    assert streamer.ids == ids
    assert_cache_from_scratch(model, cache, ids)
    if shape != "auto":
        assert (stats.window_rows > 0) == (shape != (1, 2, 1))
    assert "window" in stats.by_source


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gemma3"])
def test_padded_batches_give_the_same(shape, family):
    ids = torch.cat([prompt(18, seed=s, repeat=4) for s in (1, 2, 3)])
    mask = torch.ones_like(ids)
    ids[1, :7], mask[1, :7] = 0, 0
    runs = check(
        shared(family),
        ids,
        attention_mask=mask,
        max_new_tokens=NEW,
        do_sample=False,
        settings={"window": shape, "nodes": 12},
    )
    assert runs.stats.rows == 3


def test_it_goes_together_with_other_drafters():
    expected = _plain("llama", "sdpa", False)
    runs = check(
        shared("llama"),
        prompt(18, repeat=4),
        max_new_tokens=NEW,
        do_sample=False,
        settings={"window": (5, 3, 3), "drafters": (Oracle(expected, 3), Random)},
    )
    names = {"ngrams", "recycled", "head", "oracle", "random", "window"}
    assert set(runs.stats.by_source) == names


@pytest.mark.parametrize("method", ["rows", "draft", "learn", "earned"])
def test_a_fault_in_the_window_costs_the_window_and_nothing_else(method, monkeypatch):
    calls = []

    def fail(*args: Any) -> None:
        calls.append(args)
        raise RuntimeError("meant to fail")

    monkeypatch.setattr(WindowDrafter, method, fail)
    model = fresh()
    with pytest.warns(lookahead.LookaheadWarning, match="'window' raised RuntimeError"):
        check(
            model,
            prompt(18, repeat=4),
            max_new_tokens=NEW,
            do_sample=False,
            settings={"window": (5, 3, 3)},
        )
    assert len(calls) == 1


def test_every_call_is_like_the_first():
    """Case L1: other prompts, other settings and an aborted call in between."""
    model = fresh()
    ids, other = prompt(18, repeat=4), prompt(25, seed=9)
    arguments: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
    plain, plain_other = (model.generate(x, **arguments).tolist() for x in (ids, other))

    class Aborting(Recorder):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.values) == 6:
                raise InterruptedError

    for call in range(5):
        lookahead.accelerate(model, window=(7, 5, 7), nodes=16, strict=True)
        assert model.generate(ids, **arguments).tolist() == plain
        if call == 1:
            assert model.generate(other, **arguments).tolist() == plain_other
        if call == 2:
            lookahead.accelerate(model, window=(3, 3, 1), nodes=4, sources=(), strict=True)
            assert model.generate(other, **arguments).tolist() == plain_other
        if call == 3:
            with pytest.raises(InterruptedError):
                model.generate(ids, streamer=Aborting(), **arguments)
    lookahead.restore(model)
    assert model.generate(ids, **arguments).tolist() == plain


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_no_row_stands_behind_the_last_position(family):
    """A learnt table of positions raises for a row beyond it."""
    names = {"gpt2": "n_positions"}
    model = make_model(family, **{names.get(family, "max_position_embeddings"): 32})
    for new in (8, 13, 14):
        runs = check(
            model,
            prompt(18, repeat=4),
            max_new_tokens=new,
            do_sample=False,
            settings={"window": (9, 5, 4)},
        )
        assert runs.stats.window_rows > 0


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_window_rows_are_what_plain_passes_along_their_columns_give(family, attention):
    """Each row of the last level is compared with a plain pass over what it may see."""
    model = shared(family, attention=attention)
    text = prompt(18)[0].tolist()
    target = _target(model, [text[:-1]])
    tree = DraftTree.from_paths(text[-1], [[5, 6], [7]])
    window = LookaheadWindow(4, 4, text)
    for _ in range(4):
        rows = window.rows()
        seen = target.verify([0], [tree], [rows])[0]
        expected = []
        for row in range(len(rows) - rows.num_read, len(rows)):
            visible = sorted(
                (int(rows.offsets[n]), int(rows.tokens[n]))
                for n in range(len(rows))
                if rows.may_see[row, n]
            )
            expected.append(_next(model, [*text, *(token for _, token in visible)]))
        assert seen.window_tokens == expected
        assert seen.logits.argmax(-1).tolist() == [
            _next(model, text),
            _next(model, [*text, 5]),
            _next(model, [*text, 5, 6]),
            _next(model, [*text, 7]),
        ]
        # Nothing is kept: the same tree and the next window stand in the same place.
        window.advance(text[-1], seen.window_tokens)


def test_only_rows_that_are_read_go_through_the_output_layer():
    model = fresh()
    text = prompt(18)[0].tolist()
    target = _target(model, [text[:-1]])
    rows = []
    hook = model.lm_head.register_forward_hook(lambda m, a, out: rows.append(out.shape[1]))
    window = LookaheadWindow(4, 4, text)
    for _ in range(3):
        seen = target.verify([0], [DraftTree.only_root(text[-1])], [window.rows()])[0]
        assert seen.logits.shape[0] == 1
        assert seen.hidden.shape[0] == 1
        window.advance(text[-1], seen.window_tokens)
    hook.remove()
    assert rows == [1 + 5, 1 + 5, 1 + 4]


def test_windows_of_different_sizes_in_one_pass():
    model = shared("llama")
    texts = [prompt(18, seed=s)[0].tolist() for s in (1, 2, 3)]
    target = _target(model, [text[:-1] for text in texts])
    windows = [LookaheadWindow(5, 3, texts[0]), None, LookaheadWindow(2, 4, texts[2])]
    trees = [
        DraftTree.only_root(texts[0][-1]),
        DraftTree.from_paths(texts[1][-1], [[5, 6, 7, 8]]),
        DraftTree.from_paths(texts[2][-1], [[9]]),
    ]
    seen = target.verify([0, 1, 2], trees, [None if w is None else w.rows() for w in windows])
    assert [s.window_tokens is None for s in seen] == [False, True, False]
    for text, tree, window, one in zip(texts, trees, windows, seen, strict=True):
        assert one.logits.shape[0] == len(tree) + 1
        assert int(one.logits[0].argmax()) == _next(model, text)
        if window is not None:
            level = window.levels[0]
            expected = [_next(model, [*text, *level[: n + 1]]) for n in range(len(level))]
            assert one.window_tokens == expected


def _next(model: Any, ids: list[int]) -> int:
    with torch.no_grad():
        return int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())


def _target(model: Any, contexts: list[list[int]]) -> HFTarget:
    """Make a target that has read some prompts of one length."""
    install()
    ids = torch.tensor(contexts)
    cache, name = SlotCache(DynamicCache(), len(contexts)), cache_argument(model)
    kwargs = {
        name: cache,
        "position_ids": torch.arange(ids.shape[1]).expand(ids.shape),
        "attention_mask": None,
        "use_cache": True,
    }
    settings = type("Settings", (), {"prefill_chunk_size": None, "_mask_length": ids.shape[1]})()
    target = HFTarget(model, ids, contexts, settings, kwargs, cache, name)
    with torch.no_grad():
        target.prefill()
    return target
