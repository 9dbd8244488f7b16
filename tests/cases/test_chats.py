"""Kind K: chat turns and caches that are passed in."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import lookahead
from tests.drafters import ALL
from tests.helpers import CACHE, FAMILIES, NEW_IDS_ALONE, cache_of, fresh, prompt, shared
from tests.oracles import assert_cache_from_scratch, assert_same_cache
from tests.vocabularies import word_tokenizer

USER = [prompt(9, seed=31), prompt(5, seed=32), prompt(1, seed=33), prompt(7, seed=34)]


def _chat(model, *, cache, with_mask, new=10, **options):
    """Three turns and more; return ids, and the cache after each turn."""
    ids, caches = torch.zeros((1, 0), dtype=torch.long), []
    for user in USER:
        ids = torch.cat([ids, user], dim=1)
        extra = {"attention_mask": torch.ones_like(ids)} if with_mask else {}
        out = model.generate(
            ids,
            max_new_tokens=new,
            do_sample=False,
            **{CACHE: cache},
            return_dict_in_generate=True,
            **extra,
            **options,
        )
        ids, cache = out.sequences, cache_of(out)
        caches.append(cache.get_seq_length())
    return ids, cache, caches


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("start", ["returned", "bare", "typed"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_k1_a_cache_goes_from_turn_to_turn(family, start, with_mask):
    """K1: passing the returned cache into the next call failed on mask or length."""
    model = shared(family)

    def new_cache():
        return {
            "returned": None,
            "bare": DynamicCache(),
            "typed": DynamicCache(config=model.config),
        }[start]

    plain, one, lengths = _chat(model, cache=new_cache(), with_mask=with_mask)
    with lookahead.accelerate(model, nodes=8, strict=True):
        fast, other, found = _chat(model, cache=new_cache(), with_mask=with_mask)
    assert fast.tolist() == plain.tolist()
    assert found == lengths
    assert_same_cache(other, one)
    # The same as one that never had a cache passed in.
    last = model.generate(fast[:, :-10], max_new_tokens=10, do_sample=False)
    assert last.tolist() == fast.tolist()


@pytest.mark.parametrize("drafter", ["all", "oracle", "half", "random", "none"])
@NEW_IDS_ALONE
def test_k2_only_the_new_ids_may_be_given_with_a_cache(drafter):
    """K1 in the other style: ids that hold what is not cached, and no more."""
    model = shared()
    first = model.generate(
        USER[0], max_new_tokens=10, do_sample=False, return_dict_in_generate=True
    )
    rest = torch.cat([first.sequences[:, -1:], USER[1]], dim=1)
    mask = torch.ones((1, first.sequences.shape[1] + USER[1].shape[1]), dtype=torch.long)
    import copy

    def go():
        return model.generate(
            rest,
            attention_mask=mask,
            **{CACHE: copy.deepcopy(cache_of(first))},
            max_new_tokens=10,
            do_sample=False,
            return_dict_in_generate=True,
        )

    plain = go()
    text = rest[0].tolist() + plain.sequences[0, rest.shape[1] :].tolist()
    with lookahead.accelerate(model, **({"strict": True} | ALL[drafter](text))):
        fast = go()
    assert fast.sequences.tolist() == plain.sequences.tolist()
    assert_same_cache(cache_of(fast), cache_of(plain))


@pytest.mark.parametrize("family", FAMILIES)
def test_k3_acceleration_may_be_switched_in_mid_session(family):
    """K3: the chat crashed when acceleration was switched off by its own flag."""
    model = fresh(family)
    expected, _, _ = _chat(model, cache=DynamicCache(), with_mask=False)
    ids, cache = torch.zeros((1, 0), dtype=torch.long), DynamicCache()
    for turn, user in enumerate(USER):
        ids = torch.cat([ids, user], dim=1)
        if turn % 2 == 0:
            lookahead.accelerate(model, nodes=8, strict=True)
        else:
            lookahead.restore(model)
        ids = model.generate(ids, max_new_tokens=10, do_sample=False, **{CACHE: cache})
        assert_cache_from_scratch(model, cache, ids[0].tolist()) if family != "mistral" else None
    assert ids.tolist() == expected.tolist()


@pytest.mark.parametrize("template", [False, True])
def test_k3_text_is_the_same_with_and_without_a_chat_template(template):
    """K3: on and off give the same text at temperature 0."""
    model, tokenizer = shared(), word_tokenizer()
    if template:
        ids = tokenizer.apply_chat_template(
            [{"role": "w5", "content": "w7 w8 w9 w7 w8"}], return_tensors="pt", return_dict=True
        ).input_ids
    else:
        ids = tokenizer("w7 w8 w9 w7 w8", return_tensors="pt").input_ids
    texts = []
    for on in (True, False, True):
        if on:
            lookahead.accelerate(model, strict=True)
        texts.append(tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False)[0]))
        lookahead.restore(model)
    assert len(set(texts)) == 1


def test_k5_an_unusual_split_of_a_word_goes_on_by_ids():
    """K5: the split that was emitted is what stands in the cache; ids are never made anew."""
    model = shared()
    tokens = [9, 9, 17, 9, 9, 17, 9]  # any ids, whatever a tokenizer would make of their text
    cache = DynamicCache()
    ids = torch.tensor([tokens])
    forced = model.generate(
        ids,
        max_new_tokens=8,
        do_sample=False,
        prefix_allowed_tokens_fn=lambda b, i: [9, 17],
        **{CACHE: cache},
    )
    following = torch.cat([forced, torch.tensor([[40, 41]])], dim=1)
    plain = model.generate(following, max_new_tokens=10, do_sample=False)
    with lookahead.accelerate(model, strict=True):
        fast = model.generate(following, max_new_tokens=10, do_sample=False, **{CACHE: cache})
    assert fast.tolist() == plain.tolist()


def test_k6_a_cache_that_was_passed_in_is_the_one_that_comes_back():
    """K1: the very object, filled."""
    model, cache = shared(), DynamicCache()
    with lookahead.accelerate(model, strict=True):
        out = model.generate(
            USER[0],
            max_new_tokens=6,
            do_sample=False,
            **{CACHE: cache},
            return_dict_in_generate=True,
        )
    assert cache_of(out) is cache
    assert_cache_from_scratch(model, cache, out.sequences[0].tolist())
    cache.crop(4 - cache.get_seq_length())
    assert cache.get_seq_length() == 4


def test_k7_a_cache_of_zero_new_tokens_is_filled_with_the_prompt():
    """K1 with one new token: the prompt alone is cached."""
    model, cache = shared(), DynamicCache()
    with lookahead.accelerate(model, strict=True):
        out = model.generate(USER[0], max_new_tokens=1, do_sample=False, **{CACHE: cache})
    assert_cache_from_scratch(model, cache, out[0].tolist())
