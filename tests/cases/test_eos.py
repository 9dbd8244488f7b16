"""Kind A: the end token inside an accepted block."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import lookahead
from tests.drafters import ALL, WELL_BEHAVED, Oracle
from tests.helpers import (
    CACHE,
    Recorder,
    cache_of,
    check,
    first_seen,
    fresh,
    new_ids,
    prompt,
    quietly,
    shared,
)

IDS = prompt(18, repeat=4)


def _text() -> tuple[list[int], list[int]]:
    new = new_ids(shared(), IDS)
    return IDS[0].tolist() + new, new


@pytest.mark.parametrize("length", [1, 3, 4, 8])
@pytest.mark.parametrize("place", range(12))
def test_a1_end_token_at_every_offset_of_a_block_ends_the_text(place, length):
    """A1: the whole block was appended although a token in its middle was EOS."""
    text, new = _text()
    eos = new[place]
    streamers = []

    def make():
        streamers.append(Recorder())
        return {"streamer": streamers[-1]}

    runs = check(
        shared(),
        IDS,
        settings={"sources": (), "drafters": (Oracle(text, length),)},
        make=make,
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=eos,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    end = new.index(eos) + 1
    fast = runs.fast
    assert fast.sequences[0, IDS.shape[1] :].tolist() == new[:end]
    assert [s.ids for s in streamers] == [fast.sequences[0].tolist()] * 2
    assert [s.ends for s in streamers] == [1, 1]
    assert len(fast.scores) == len(fast.logits) == end
    assert cache_of(fast).get_seq_length() == cache_of(runs.plain).get_seq_length()


@pytest.mark.parametrize("drafter", WELL_BEHAVED)
def test_a2_a_list_of_end_tokens_ends_at_the_first_of_them(drafter):
    """A1, with several end tokens."""
    text, new = _text()
    late, early = new[9], new[first_seen(new)[3]]
    for eos in ([late, early], [early, late], [early]):
        check(
            shared(),
            IDS,
            settings=ALL[drafter](text),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=eos,
        )


@pytest.mark.parametrize("drafter", WELL_BEHAVED)
def test_a3_without_any_end_token_the_length_is_exact(drafter):
    """A3: a crash with no EOS in force as soon as an n-gram matched."""
    ids = prompt(14)
    ids[0, -3:] = ids[0, 4:7]
    text = ids[0].tolist() + new_ids(shared(), ids)
    runs = check(
        shared(),
        ids,
        settings=ALL[drafter](text),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
    )
    assert runs.fast.shape[1] == 14 + 12


@pytest.mark.parametrize("drafter", WELL_BEHAVED)
def test_a4_end_token_as_the_first_token_gives_that_token_alone(drafter):
    """A1 at offset 0: the token that the prefill gives."""
    text, new = _text()
    streamers = []

    def make():
        streamers.append(Recorder())
        return {"streamer": streamers[-1]}

    runs = check(
        shared(),
        IDS,
        settings=ALL[drafter](text),
        make=make,
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=new[0],
    )
    assert runs.fast.shape[1] == IDS.shape[1] + 1
    assert streamers[0].ids == streamers[1].ids
    assert streamers[1].ends == 1
    assert runs.stats.passes == 0


@pytest.mark.parametrize("drafter", ALL)
def test_a5_no_draft_source_moves_the_end_or_the_length(drafter):
    """A5: EOS and length were right for some draft sources only."""
    text, new = _text()
    model = shared()
    for options in ({"eos_token_id": new[7]}, {"eos_token_id": None, "max_new_tokens": 7}):
        quietly(
            lambda options=options: check(
                model,
                IDS,
                settings=ALL[drafter](text),
                **({"max_new_tokens": 24, "do_sample": False} | options),
            )
        )


@pytest.mark.parametrize("drafter", ["all", "oracle", "half", "none"])
def test_a6_an_end_token_of_the_generation_config_counts(drafter):
    """A1, with EOS only in the model's generation_config."""
    text, new = _text()
    model = fresh()
    for eos in (new[6], [new[6], new[9]]):
        model.generation_config.eos_token_id = eos
        runs = check(model, IDS, settings=ALL[drafter](text), max_new_tokens=24, do_sample=False)
        assert runs.fast.shape[1] == IDS.shape[1] + new.index(new[6]) + 1
        assert model.generation_config.eos_token_id == eos


def test_a7_an_end_token_inside_the_prompt_ends_nothing():
    """A1: only new tokens count."""
    runs = check(
        shared(),
        IDS,
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=int(IDS[0, 2]),
        settings={"sources": ("ngrams",)},
    )
    assert runs.fast.shape[1] > IDS.shape[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drafter", ["all", "random", "oracle"])
def test_a8_sampled_text_ends_at_the_end_token_too(drafter, seed):
    """A1 in sampled mode."""
    model = shared()
    torch.manual_seed(seed)
    plain = model.generate(IDS, max_new_tokens=24, do_sample=True, top_k=0)
    new = plain[0, IDS.shape[1] :].tolist()
    runs = check(
        model,
        IDS,
        seed=seed,
        settings=ALL[drafter](plain[0].tolist()),
        max_new_tokens=24,
        do_sample=True,
        top_k=0,
        eos_token_id=new[9],
    )
    assert runs.fast[0, -1] == new[9]


def test_a9_what_comes_behind_the_end_is_not_learnt_as_text(llama):
    """A1: nothing after EOS in the cache that a caller goes on with."""
    text, new = _text()
    cache = DynamicCache()
    with lookahead.accelerate(llama, sources=(), drafters=(Oracle(text, 8),)):
        out = llama.generate(
            IDS, max_new_tokens=24, do_sample=False, eos_token_id=new[4], **{CACHE: cache}
        )
    assert cache.get_seq_length() == out.shape[1] - 1
