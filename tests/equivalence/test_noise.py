"""Guesses that know the noise of the draws: the sample is that of plain, and takes fewer passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor

import lookahead
from lookahead.choose import NodeChooser
from tests.helpers import FAMILIES, fresh, prompt, shared
from tests.toys import decode, plain_decode

IDS = prompt(18, repeat=4)
NEW = 32
MODES = {
    "temperature-0.3": {"temperature": 0.3},
    "temperature-1": {"temperature": 1.0},
    "temperature-1.7": {"temperature": 1.7},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.8, "temperature": 1.5},
}
SOURCES = {
    "all": {},
    "exit": {"sources": ("exit",), "exit_layer": 1},
    "head": {"sources": ("head",)},
}


class Shaking(LogitsProcessor):
    """Draws numbers of its own from the default generator at every token."""

    def __call__(self, ids, scores):
        return scores + torch.rand_like(scores)


@pytest.fixture(params=[True, False], ids=["known", "unknown"])
def looks(request, monkeypatch):
    """How often noise was handed out; never, where it is unknown."""
    handed, original = [], NodeChooser.noise

    def noise(self, draws):
        found = original(self, draws) if request.param else None
        handed.append(found is not None)
        return found

    monkeypatch.setattr(NodeChooser, "noise", noise)
    yield handed
    assert any(handed) == request.param


def generate(model, **arguments):
    """A sample with a seed, and what the generator gives behind it."""
    torch.manual_seed(11)
    ids = model.generate(IDS, max_new_tokens=NEW, **({"do_sample": True, "top_k": 0} | arguments))
    return ids.tolist(), torch.get_rng_state()


def check(model, settings=None, **arguments):
    lookahead.forget(model)
    plain, behind = generate(model, **arguments)
    with lookahead.accelerate(model, **({"nodes": 16, "strict": True} | (settings or {}))):
        fast, behind_fast = generate(model, **arguments)
        stats = lookahead.last_stats(model)
    assert fast == plain
    assert torch.equal(behind_fast, behind), "one draw a token, and no other"
    assert not stats.notes, "no drafter was dropped"
    return stats


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("mode", MODES)
def test_the_sample_and_the_generator_are_those_of_plain(mode, sources):
    assert check(shared(), SOURCES[sources], **MODES[mode]).drafted


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("family", FAMILIES[1:])
def test_the_sample_is_that_of_plain_on_every_family(family):
    check(shared(family))


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("mode", MODES)
def test_a_processor_that_draws_from_the_generator_makes_guesses_wrong_and_nothing_else(mode):
    check(shared(), logits_processor=[Shaking()], **MODES[mode])


def test_sampled_and_greedy_calls_in_turn_stay_exact():
    model = fresh()
    greedy = {"do_sample": False, "top_k": None}
    calls = [greedy, *MODES.values(), greedy, *reversed(MODES.values())]
    plain = [generate(model, **call) for call in calls]
    with lookahead.accelerate(model, nodes=16, strict=True):
        for call, (ids, behind) in zip(calls, plain, strict=True):
            fast, behind_fast = generate(model, **call)
            assert fast == ids
            assert torch.equal(behind_fast, behind)


def soft_law(vocab, seed=0):
    """Several next tokens are possible; which, the last token alone decides."""
    laws = np.random.default_rng(seed).dirichlet(np.full(vocab, 0.3), vocab).tolist()
    return lambda context: laws[context[-1]]


def unknown(monkeypatch):
    monkeypatch.setattr(NodeChooser, "noise", lambda self, draws: None)


@pytest.mark.parametrize(
    ("sources", "share"),
    [(("ngrams",), 0.95), (("recycled",), 0.7), (("ngrams", "recycled"), 0.8)],
)
def test_a_toy_takes_fewer_passes_where_the_noise_is_known(sources, share, monkeypatch):
    law, settings = soft_law(24), {"nodes": 4, "sources": sources}
    texts, taken = [plain_decode(law, [0], 300)], []
    for _ in range(2):
        text, stats = decode(law, [0], 300, **settings)
        texts.append(text)
        taken.append(stats.passes)
        unknown(monkeypatch)
    assert texts[0] == texts[1] == texts[2]
    known, blind = taken
    assert known < share * blind


def passes(**settings):
    return sum(
        check(shared(), settings, temperature=temperature).passes for temperature in (0.7, 1.5)
    )


@pytest.mark.parametrize("sources", SOURCES)
def test_a_model_takes_fewer_passes_where_the_noise_is_known(sources, monkeypatch):
    known = passes(**SOURCES[sources])
    unknown(monkeypatch)
    blind = passes(**SOURCES[sources])
    assert known < 0.8 * blind
