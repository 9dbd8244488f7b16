"""Kind I: scores, logits, hidden states."""

from __future__ import annotations

import pytest
import torch

from tests.drafters import ALL
from tests.helpers import check, new_ids, prompt, shared
from tests.oracles import assert_same_outputs

IDS = prompt(18, repeat=4)
OUTPUTS = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("drafter", ["oracle-wrong-at-0", "half", "oracle", "all", "none"])
def test_i1_scores_and_logits_are_there_for_every_token(drafter, family, sample):
    """I1: log-probabilities came back empty with speculation, right for the first token only."""
    model = shared(family)
    text = IDS[0].tolist() + new_ids(model, IDS)
    runs = check(
        model,
        IDS,
        settings=ALL[drafter](text),
        max_new_tokens=20,
        do_sample=sample,
        repetition_penalty=1.1,
        **OUTPUTS,
    )
    assert type(runs.fast) is type(runs.plain)
    for name in ("scores", "logits"):
        fast, plain = runs.fast[name], runs.plain[name]
        assert isinstance(fast, tuple)
        assert len(fast) == len(plain) == 20
        for one, other in zip(fast, plain, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("wanted", ["output_scores", "output_logits", None])
def test_i2_only_what_was_asked_for_is_returned(wanted):
    """I1: the other fields are None, as in plain."""
    options = {"return_dict_in_generate": True} | ({wanted: True} if wanted else {})
    runs = check(shared(), IDS, max_new_tokens=8, do_sample=False, **options)
    assert set(runs.fast.keys()) == set(runs.plain.keys())
    assert runs.fast.lookahead_stats is runs.stats


def test_i2_scores_without_a_dictionary_give_ids_alone():
    """I1: output_scores without return_dict_in_generate."""
    check(shared(), IDS, max_new_tokens=8, do_sample=False, output_scores=True)


def test_i3_transition_scores_work_without_change():
    """I3: sequence length and number of scores did not agree."""
    model = shared()
    runs = check(model, IDS, max_new_tokens=12, do_sample=False, **OUTPUTS)
    one, other = (
        model.compute_transition_scores(r.sequences, r.scores, normalize_logits=True)
        for r in (runs.fast, runs.plain)
    )
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("wanted", ["output_hidden_states", "output_attentions"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_i5_hidden_states_and_attentions_come_token_by_token(family, wanted):
    """I5: multi-token steps must not give block-shaped entries."""
    model = shared(family, attention="eager")
    text = IDS[0].tolist() + new_ids(model, IDS)
    arguments = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True}
    runs = check(model, IDS, settings=ALL["oracle"](text), **arguments, **{wanted: True})
    name = wanted.removeprefix("output_")
    assert_same_outputs(runs.fast, runs.plain, [name])
    assert all(layer.shape[-2] == 1 for step in runs.fast[name][1:] for layer in step)
    assert runs.stats.passes < 10


def test_i6_scores_of_a_batch_are_stacked_step_by_step():
    """I1: rows that have ended have theirs, too."""
    model, ids = shared(), torch.cat([prompt(9, seed=s) for s in (1, 2, 3)])
    end = int(model.generate(ids, max_new_tokens=12, do_sample=False)[0, 12])
    runs = check(model, ids, max_new_tokens=12, do_sample=False, eos_token_id=end, **OUTPUTS)
    for name in ("scores", "logits"):
        torch.testing.assert_close(runs.fast[name], runs.plain[name], atol=1e-4, rtol=1e-4)
    one, other = (
        model.compute_transition_scores(r.sequences, r.scores, normalize_logits=True)
        for r in (runs.fast, runs.plain)
    )
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
