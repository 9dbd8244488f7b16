"""Kind D: greedy parity."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version

import lookahead
from lookahead.hf import target as target_module
from lookahead.hf.compat import SUPPORTED, check_version
from tests.drafters import ALL, Half, Oracle, Random
from tests.helpers import (
    CACHE,
    FAMILIES,
    VOCAB,
    cache_of,
    check,
    fresh,
    make_model,
    new_ids,
    prompt,
    shared,
)
from tests.oracles import assert_same_cache, kv_from_scratch, next_logits

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("drafter", ["all", "oracle", "oracle-wrong-at-0"])
@pytest.mark.parametrize("length", [1, 2])
def test_d1_a_prompt_of_one_or_two_tokens_goes_right(length, drafter, family):
    """D1: a one-token prompt diverged at once."""
    model, ids = shared(family), prompt(length)
    text = ids[0].tolist() + new_ids(model, ids, 40)
    check(model, ids, settings=ALL[drafter](text), max_new_tokens=40, do_sample=False)


def test_d2_no_prompt_at_all_starts_from_the_first_token():
    """D1 with nothing given: the library begins with BOS."""
    check(shared(), None, max_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [[7], [7, 9], [5, 6, 5]])
def test_d3_a_repeated_word_goes_right(tokens, family):
    """D3: one word repeated 48 times changed the greedy text in 20 of 20 pairs."""
    ids = torch.tensor([(tokens * 40)[:48]])
    for settings in ({"nodes": 16}, {"sources": ("ngrams",), "nodes": "auto"}):
        check(shared(family), ids, settings=settings, max_new_tokens=40, do_sample=False)


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
@pytest.mark.parametrize("wrong_at", [None, 0, 2, -1, "all"])
def test_d5_after_each_round_the_cache_holds_exactly_the_accepted_text(
    wrong_at, family, monkeypatch
):
    """D5: rejected drafts stayed in the cache."""
    model, ids = shared(family), prompt(12, repeat=3)
    text = ids[0].tolist() + new_ids(model, ids)
    if wrong_at == "all":
        text = [(t + 1) % VOCAB for t in text]
    drafter = Oracle(text, 5, None if wrong_at == "all" else wrong_at)
    rounds, contexts = _check_each_round(model, monkeypatch)
    drafter.learn = lambda outcome: contexts.append(list(outcome.context))
    check(
        model,
        ids,
        settings={"sources": (), "drafters": (drafter,)},
        max_new_tokens=20,
        do_sample=False,
    )
    assert len(rounds) == len(contexts) > 2
    for (found, layers), context in zip(rounds, contexts, strict=True):
        assert found == len(context) - 1
        expected = kv_from_scratch(model, context[:-1])
        for mine, right in zip(layers, expected.layers, strict=True):
            rows = right.keys.shape[-2]
            torch.testing.assert_close(mine[..., -rows:, :], right.keys, atol=1e-5, rtol=1e-4)


def _check_each_round(model, monkeypatch):
    """Write down what the cache holds after each commit."""
    rounds, contexts = [], []
    keep = target_module.HFTarget.keep

    def watched(self, slot, path):
        keep(self, slot, path)
        if len(self._contexts[0]) < 12:  # the self-test
            return
        length = self._cache.lengths[slot]
        held = [layer.keys[:, :, : length - layer.start].clone() for layer in self._cache.layers]
        rounds.append((length, held))

    monkeypatch.setattr(target_module.HFTarget, "keep", watched)
    return rounds, contexts


def test_d5_the_state_after_the_last_round_gives_the_right_next_logits():
    """D5: what is computed on top of the cache is what no cache gives."""
    model, ids = shared(), prompt(12, repeat=3)
    text = ids[0].tolist() + new_ids(model, ids)
    with lookahead.accelerate(model, sources=(), drafters=(Half(text), Random()), nodes=12):
        out = model.generate(ids, max_new_tokens=20, do_sample=False, return_dict_in_generate=True)
    last = out.sequences[:, -1:]
    with torch.no_grad():
        logits = model(input_ids=last, **{CACHE: cache_of(out)}).logits[0, -1]
    full = next_logits(model, out.sequences[0].tolist())
    torch.testing.assert_close(logits, full, atol=1e-4, rtol=1e-4)


#: Logits of a pass over several rows may differ by rounding; measured well below this.
NEAR_TIE = {torch.bfloat16: 0.08, torch.float16: 0.01}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sources", [("ngrams", "recycled"), ("ngrams",)])
def test_d7_in_half_precision_the_first_difference_is_a_near_tie(sources, family, dtype):
    """D7: users take rounding for a fault; the gap at the first difference tells them apart."""
    model = fresh(family).to(dtype)
    for seed in range(2):
        ids = prompt(20, seed=seed, repeat=4)
        plain = model.generate(
            ids,
            max_new_tokens=40,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        with lookahead.accelerate(model, nodes=8, sources=sources, strict=True):
            fast = model.generate(ids, max_new_tokens=40, do_sample=False)
        one, other = plain.sequences[0].tolist(), fast[0].tolist()
        assert len(one) == len(other)
        if one == other:
            continue
        first = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        logits = plain.logits[first - ids.shape[1]][0].float()
        gap = (logits[one[first]] - logits[other[first]]) / logits.std()
        assert 0 <= gap <= NEAR_TIE[dtype]


def test_d7_in_32_bits_all_three_ways_agree():
    """D7: plain without a cache, plain with one, accelerated."""
    for family in FAMILIES:
        model, ids = shared(family), prompt(20, repeat=4)
        bare = model.generate(ids, max_new_tokens=30, do_sample=False, use_cache=False)
        runs = check(model, ids, max_new_tokens=30, do_sample=False)
        assert bare.tolist() == runs.fast.tolist()


def test_d11_a_model_with_eight_bit_weights_gives_what_it_gives_plainly():
    """D11: with 8-bit weights the answers were nonsense."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(
            make_model("llama"), {torch.nn.Linear}, dtype=torch.qint8
        )
    ids = prompt(20, repeat=4)
    plain = model.generate(ids, max_new_tokens=20, do_sample=False)
    for nodes in (2, 8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lookahead.LookaheadWarning)
            with lookahead.accelerate(model, nodes=nodes):
                fast = model.generate(ids, max_new_tokens=20, do_sample=False)
        assert fast.tolist() == plain.tolist()


def test_d12_two_caches_of_one_text_are_alike():
    """D5: the cache that a call returns is the one that plain returns."""
    for family in (*FAMILIES, "gemma3"):
        runs = check(
            shared(family),
            prompt(20, repeat=4),
            max_new_tokens=24,
            do_sample=False,
            return_dict_in_generate=True,
        )
        assert_same_cache(cache_of(runs.fast), cache_of(runs.plain))
        for mine, right in zip(
            cache_of(runs.fast).layers, cache_of(runs.plain).layers, strict=True
        ):
            assert type(mine) is type(right)
            assert mine.keys.shape == right.keys.shape


def _pinned(lock):
    text = (ROOT / lock).read_text("utf-8")
    return Version(re.search(r"^transformers==(\S+)$", text, re.MULTILINE).group(1))


def _recipe(target):
    text = (ROOT / "Makefile").read_text("utf-8")
    found = re.search(rf"^{target}:(.*)\n((?:\t.*\n)+)", text, re.MULTILINE)
    return found.group(1).split(), found.group(2)


def test_d9_parity_is_asked_at_both_ends_of_the_claimed_range():
    """D9: argmax runs differed on one release of the library, and not on the one before."""
    ends = {rule.operator: Version(rule.version) for rule in SUPPORTED if "*" not in rule.version}
    oldest, newest = _pinned("requirements-oldest.lock"), _pinned("requirements.lock")
    assert oldest == ends[">="]
    assert (newest.major, newest.minor + 1) == (ends["<"].major, ends["<"].minor)
    assert SUPPORTED.contains(oldest)
    assert SUPPORTED.contains(newest)
    needs, command = _recipe("test-oldest")
    assert needs == ["$(OLDEST)/.ready"]
    assert command.split()[-3:] == ["tests/equivalence", "tests/cases", "tests/hf"]
    assert "test-oldest" in _recipe("test-slow")[0]
    assert _recipe("test")[0] == ["$(READY)"]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_d9_parity_holds_in_the_release_that_is_installed(family, attention):
    """D9: whichever it is; nothing runs plain, and nothing is skipped."""
    check_version()
    assert SUPPORTED.contains(transformers.__version__, prereleases=True)
    model, ids = shared(family, attention=attention), prompt(18, repeat=5)
    plain = model.generate(ids, max_new_tokens=32, do_sample=False)
    with lookahead.accelerate(model, nodes=8, drafters=(Oracle(plain[0].tolist(), 4, 2),)):
        assert model.generate(ids, max_new_tokens=32, do_sample=False).tolist() == plain.tolist()
        assert lookahead.last_stats(model).accelerated
        assert lookahead.last_stats(model).passes < 32
