"""What is sampled follows the target's law, whatever is drafted: toys of 2 to 10 tokens.

Every run goes through the engine itself, with a table in place of the model. Seeds are fixed, so
a test fails always or never.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from lookahead import DraftTree
from lookahead.choose import NodeChooser
from tests.drafters import Fixed, Random
from tests.toys import decode, plain_decode

NUM = 20_000
FIRST = [0]


def chi_square(counts, law, num):
    """Return the statistic and a bound that a right sampler passes but once in 10,000 times."""
    law = np.asarray(law)
    seen = np.array([counts[token] for token in range(len(law))])
    live = law > 0
    assert not seen[~live].any()
    statistic = (((seen - num * law) ** 2)[live] / (num * law[live])).sum()
    freedom = int(live.sum()) - 1
    # Wilson and Hilferty's cube root, at 3.719 sigma.
    share = 2 / (9 * freedom)
    return statistic, freedom * (1 - share + 3.719 * math.sqrt(share)) ** 3


def assert_follows(tokens, law):
    counts = Counter(tokens)
    statistic, bound = chi_square(counts, law, len(tokens))
    assert statistic < bound
    for token, probability in enumerate(law):
        sigma = math.sqrt(len(tokens) * probability * (1 - probability))
        assert abs(counts[token] - len(tokens) * probability) <= 3.9 * sigma


class Parrot:
    """Drafts a sample from a law of its own, which is not the target's."""

    name = "parrot"

    def __init__(self, law, seed=0, length=3):
        self.random, self.law, self.length = np.random.default_rng(seed), law, length

    def draft(self, context, max_nodes):
        return self.random.choice(len(self.law), self.length, p=self.law).tolist()


@pytest.mark.parametrize("says", [0, 2])
def test_h1_a_drafter_that_always_says_one_token_moves_nothing(says):
    """H1: a greedy draft was judged with its soft probability: 0.75 in place of 0.6."""
    law = [0.5, 0.3, 0.2]
    tokens, steps, accepted = [], 0, 0
    for seed in range(8):  # in parts: a text of 20,000 tokens would be copied at every step
        part, stats = decode(
            lambda context: law,
            FIRST,
            NUM // 8,
            seed=seed,
            sources=(),
            drafters=(Fixed([says] * 4),),
        )
        tokens += part
        steps += len(stats.steps)
        accepted += stats.accepted_by_depth[0]
    assert_follows(tokens, law)
    # A point mass is accepted as often as the target would have drawn it.
    assert accepted / steps == pytest.approx(law[says], abs=3 * math.sqrt(0.25 / steps))


@pytest.mark.parametrize(
    "law",
    [
        [0.5, 0.5],
        [0.9, 0.1],
        [0.7, 0.1, 0.1, 0.1],
        [0.1] * 10,
        [0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.02, 0.01],
    ],
)
@pytest.mark.parametrize("drafter", ["both", "random", "parrot", "tree"])
def test_h1_any_law_is_kept_with_any_drafter(law, drafter):
    """H1: on 2 to 10 tokens."""
    size = len(law)
    settings = {
        "both": {},
        "random": {"sources": (), "drafters": (Random(vocab=size),)},
        "parrot": {"drafters": (Parrot(law[::-1]),)},
        "tree": {"sources": (), "drafters": (Fixed([[0, 1], [1, 0], [0, 0], [1, 1]]),)},
    }[drafter]
    tokens, _ = decode(lambda context: law, FIRST, 2_000, **settings)
    assert_follows(tokens, law)


@pytest.mark.parametrize(("knows_noise", "least"), [(False, 4_000), (True, 300)])
def test_h3_a_token_of_probability_zero_never_comes(monkeypatch, knows_noise, least):
    """H3: a wrong match count accepted every draft when sampling."""
    if not knows_noise:
        monkeypatch.setattr(NodeChooser, "noise", lambda chooser, draws: None)
    law = [0.6, 0.4, 0.0]
    tokens, stats = decode(
        lambda context: law, FIRST, 4_000, sources=(), drafters=(Fixed([2, 2, 2]),)
    )
    assert 2 not in tokens
    assert stats.drafted > least, "where the noise is known, it is drafted where that favours it"
    assert stats.accepted == 0


def test_h3_a_token_of_probability_one_always_comes():
    """H3, the other way round."""
    law = [0.0, 1.0, 0.0]
    tokens, stats = decode(lambda context: law, FIRST, 400, sources=(), drafters=(Fixed([1] * 4),))
    assert tokens == [1] * 400
    assert stats.accepted == stats.drafted > 200


def test_h5_two_children_of_one_node_are_tried_without_favour():
    """H5: siblings were tried with one uniform draw, or without renormalising."""
    law = [0.5, 0.3, 0.2]
    tree = DraftTree.from_parents([0, 2, 1, 0, 1], [0, 0, 0, 1, 1], [1, 0.9, 0.8, 0.7, 0.6])
    tokens, stats = decode(lambda context: law, FIRST, 10_000, sources=(), drafters=(Fixed(tree),))
    assert_follows(tokens, law)
    share = stats.accepted_by_depth[0] / len(stats.steps)
    assert share == pytest.approx(0.5, abs=3 * math.sqrt(0.25 / len(stats.steps)))


def test_h5_all_children_proposed_are_accepted_always():
    """H5: with every token among the children the first level never fails."""
    law = [0.5, 0.3, 0.2]
    tokens, stats = decode(
        lambda context: law, FIRST, 3_000, sources=(), drafters=(Fixed([[0], [1], [2]]),)
    )
    assert_follows(tokens, law)
    assert all(step.accepted == 1 for step in stats.steps[2:-1] if step.drafted == 3)
    assert sum(step.drafted == 3 for step in stats.steps) > 1_000


def _second_order(context):
    """A law that depends on the last two tokens."""
    a, b = ([0, *context])[-2:]
    weights = np.array([1 + a, 2 + (a + b) % 3, 1 + b, 0.5 + (a * b) % 4])
    return (weights / weights.sum()).tolist()


@pytest.mark.parametrize("drafter", ["both", "fixed", "parrot", "none"])
def test_h7_a_law_that_looks_back_is_kept_after_accepted_and_after_rejected_tokens(drafter):
    """H7: biased where a draft was compared with a fresh sample."""
    settings = {
        "both": {},
        "fixed": {"sources": (), "drafters": (Fixed([[1, 2, 1], [3, 3]]),)},
        "parrot": {"drafters": (Parrot([0.7, 0.1, 0.1, 0.1]),)},
        "none": {"sources": ()},
    }[drafter]
    tokens, _ = decode(_second_order, [0, 0], 5_000, **settings)
    after = {}
    for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False):
        after.setdefault((a, b), []).append(c)
    assert len(after) == 16
    for (a, b), following in after.items():
        law = _second_order([a, b])
        statistic, bound = chi_square(Counter(following), law, len(following))
        assert statistic < bound


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("drafter", ["both", "fixed", "random"])
def test_h7_the_very_sample_of_plain_decoding_comes_out(drafter, seed):
    """H7: stronger than the law: the same draws from the same generator."""
    settings = {
        "both": {},
        "fixed": {"sources": (), "drafters": (Fixed([[1, 2, 1], [3, 3]]),)},
        "random": {"drafters": (Random(seed, vocab=4),)},
    }[drafter]
    tokens, _ = decode(_second_order, [0, 0], 60, seed=seed, **settings)
    assert tokens == plain_decode(_second_order, [0, 0], 60, seed=seed)


def test_one_draw_is_an_argmax_over_exponential_noise():
    """The identity that seed-equal batches rest on, held for every torch that is supported."""
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(3, 17, generator=generator).softmax(-1)
        torch.manual_seed(seed)
        drawn = torch.multinomial(scores, 1)[:, 0]
        torch.manual_seed(seed)
        noise = torch.empty_like(scores).exponential_(1)
        assert torch.equal(drawn, (scores / noise).argmax(-1))
