"""Sampled batches: each row is what plain batched decoding draws with the same seed."""

from __future__ import annotations

import pytest
import torch

import lookahead
from tests.drafters import ALL
from tests.helpers import FAMILIES, VOCAB, cache_of, fresh, prompt, shared

NEW = 24
MODES = {
    "temperature-1": {"temperature": 1.0},
    "temperature-0.4": {"temperature": 0.4},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.8, "temperature": 1.5},
    "min-p": {"min_p": 0.05, "temperature": 2.0, "repetition_penalty": 1.2},
}


def batch(rows=3, length=18, padding=0):
    ids = torch.cat([prompt(length, seed=seed, repeat=4) for seed in range(1, rows + 1)])
    mask = torch.ones_like(ids)
    if padding:
        ids[1, :padding], mask[1, :padding] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(model, seed=5, **arguments):
    """Ids, and what the generator gives behind them."""
    torch.manual_seed(seed)
    ids = model.generate(do_sample=True, **({"top_k": 0, "max_new_tokens": NEW} | arguments))
    return ids.tolist(), torch.get_rng_state()


def check(model, settings=None, **arguments):
    lookahead.forget(model)
    plain, behind = generate(model, **arguments)
    with lookahead.accelerate(model, **({"nodes": 12, "strict": True} | (settings or {}))):
        fast, behind_fast = generate(model, **arguments)
        stats = lookahead.last_stats(model)
    assert fast == plain
    assert torch.equal(behind_fast, behind), "one draw a step of the longest row"
    assert not stats.notes, "no drafter was dropped"
    return stats


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_every_family_draws_what_plain_draws(family, mode, padding):
    stats = check(shared(family), **batch(padding=padding), **MODES[mode])
    assert stats.rows == 3
    assert stats.drafted


@pytest.mark.parametrize("drafter", ["head", "no-head", "random", "oracle", "half", "all"])
@pytest.mark.parametrize("nodes", [3, 24, "auto"])
def test_every_drafter_leaves_the_sample_as_it_is(drafter, nodes):
    model, arguments = shared(), batch(padding=5)
    expected, _ = generate(model, **arguments)
    check(model, {"nodes": nodes} | ALL[drafter](expected[0]), **arguments)


def test_rows_go_their_own_speed():
    model, arguments = shared(), batch()
    expected, _ = generate(model, **arguments)
    stats = check(model, ALL["oracle"](expected[1]) | {"sources": ()}, **arguments)
    emitted = sorted(step.emitted for step in stats.steps)
    assert emitted[0] == 1, "a row without a right guess"
    assert emitted[-1] > 3, "a row with one"


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_end_at_different_places_leave_the_generator_as_plain_does(seed):
    model, arguments = fresh(), batch(rows=4, padding=4)
    ids, _ = generate(model, seed, **arguments)
    new = [row[18:] for row in ids]
    ends = [new[1][3], new[2][11]]
    stats = check(
        model, None, seed=seed, **arguments, eos_token_id=ends, pad_token_id=0, temperature=1.3
    )
    assert stats.rows == 4


@pytest.mark.parametrize("count", [2, 5])
def test_several_sequences_of_one_prompt(count):
    arguments = {"input_ids": prompt(18, repeat=4), "num_return_sequences": count}
    stats = check(shared(), **arguments)
    assert stats.rows == count


def test_two_batches_in_a_row_go_on_with_the_same_generator():
    model = shared()

    def both():
        torch.manual_seed(2)
        first = model.generate(**batch(), do_sample=True, top_k=0, max_new_tokens=9)
        second = model.generate(**batch(2), do_sample=True, top_k=0, max_new_tokens=9)
        return first.tolist(), second.tolist(), torch.rand(3).tolist()

    plain = both()
    with lookahead.accelerate(model, nodes=12, strict=True):
        assert both() == plain


@pytest.mark.parametrize("arrival", range(5))
def test_one_of_many_rows_is_never_another(arrival):
    """Field case J7, sampled."""
    order = torch.randperm(32, generator=torch.Generator().manual_seed(arrival))
    ids = torch.randint(3, VOCAB, (32, 12), generator=torch.Generator().manual_seed(9))[order]
    check(shared(), {"nodes": 64}, input_ids=ids, max_new_tokens=10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_what_is_returned_besides_ids_is_that_of_plain(family, seed):
    """Rows that have ended go on with padding, and draw nothing of their own there."""
    model = shared(family)
    arguments = batch(rows=4, padding=5) | {
        "max_new_tokens": 20,
        "temperature": 1.2,
        "eos_token_id": list(range(3, 20)),
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_scores": True,
    }

    def run():
        torch.manual_seed(seed)
        out = model.generate(do_sample=True, top_k=0, **arguments)
        return out, torch.get_rng_state()

    plain, behind = run()
    lookahead.forget(model)
    with lookahead.accelerate(model, nodes=12, strict=True):
        fast, behind_fast = run()
    assert fast.sequences.tolist() == plain.sequences.tolist()
    assert torch.equal(behind_fast, behind)
    assert len(fast.scores) == len(plain.scores)
    for mine, theirs in zip(fast.scores, plain.scores, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(cache_of(fast).layers, cache_of(plain).layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-4)
