"""Kind H: sampling. Laws on toy targets are in equivalence/test_distribution.py."""

from __future__ import annotations

import pytest
import torch

import lookahead
from tests.drafters import ALL, WELL_BEHAVED, Fixed, Oracle
from tests.helpers import FAMILIES, check, prompt, shared

IDS = prompt(18, repeat=4)


@pytest.mark.parametrize("drafter", WELL_BEHAVED)
@pytest.mark.parametrize("seed", range(2))
def test_h1_no_drafter_moves_a_sample(seed, drafter):
    """H1: a greedy draft was judged with its soft probability."""
    torch.manual_seed(seed)
    text = shared().generate(IDS, max_new_tokens=20, do_sample=True, top_k=0)[0].tolist()
    check(
        shared(),
        IDS,
        seed=seed,
        settings=ALL[drafter](text),
        max_new_tokens=20,
        do_sample=True,
        top_k=0,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_h2_the_generator_is_left_as_plain_leaves_it(family):
    """H1: one draw per token, no more: what a program draws next is the same, too."""
    model = shared(family)
    torch.manual_seed(5)
    plain = model.generate(IDS, max_new_tokens=15, do_sample=True, top_k=0)
    behind = torch.rand(3)
    with lookahead.accelerate(model, nodes=8, drafters=(Oracle(plain[0].tolist()),), strict=True):
        torch.manual_seed(5)
        fast = model.generate(IDS, max_new_tokens=15, do_sample=True, top_k=0)
    assert fast.tolist() == plain.tolist()
    assert torch.equal(torch.rand(3), behind)


def test_h2_greedy_decoding_draws_nothing():
    """H1: neither the self-test nor the drafting touches the generator."""
    model = shared()
    lookahead.restore(model)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with lookahead.accelerate(model, nodes=8, strict=True):
        model.generate(IDS, max_new_tokens=15, do_sample=False)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("allowed", [False, True])
def test_h3_an_impossible_token_is_never_accepted_and_a_certain_one_always(allowed):
    """H3: a wrong match count accepted every draft when sampling."""
    runs = check(
        shared(),
        IDS,
        settings={"sources": (), "drafters": (Fixed([77, 77, 77]),)},
        max_new_tokens=17,
        do_sample=True,
        top_k=0,
        prefix_allowed_tokens_fn=lambda b, ids: [77] if allowed else list(range(3, 77)),
    )
    steps = runs.stats.steps
    assert sum(s.accepted for s in steps) == (12 if allowed else 0)


def test_h7_two_samples_with_other_seeds_differ():
    """H7: nothing of a draft or of an earlier run decides what is drawn."""
    model = shared()
    seen = set()
    with lookahead.accelerate(model, nodes=8, strict=True):
        for seed in range(8):
            torch.manual_seed(seed)
            seen.add(
                tuple(model.generate(IDS, max_new_tokens=12, do_sample=True, top_k=0)[0].tolist())
            )
    assert len(seen) == 8


def test_h8_the_scheme_is_named_where_tokens_are_drawn():
    """H7: the documentation says which of the valid schemes is used."""
    from lookahead import choose

    assert "drawn without sight of the guesses" in " ".join(choose.NodeChooser.__doc__.split())
