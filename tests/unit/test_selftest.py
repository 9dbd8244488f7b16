"""The self-test: finds no fault where there is none, and one where there is."""

from __future__ import annotations

import pytest
import torch

import lookahead
from lookahead.hf import chain, masks, places, selftest, shape
from lookahead.hf.cache import SlotLayer
from lookahead.session import Session
from tests.drafters import Oracle
from tests.helpers import FAMILIES, VOCAB, check, fresh, make_gpt_neo, new_ids, prompt, shared
from tests.zoo.build import build

IDS = prompt(18, repeat=4)


@pytest.fixture(autouse=True)
def _installed():
    masks.install()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_it_finds_no_fault_in_a_right_model(family, attention, dtype):
    model = fresh(family, attention=attention).to(dtype)
    assert selftest.find_fault(model) is None


@pytest.mark.parametrize("model_type", ["roberta", "xmod"])
def test_it_counts_positions_as_plain_generation_does(model_type):
    """Left to itself, such a model counts from behind its padding id; ``generate`` does not."""
    assert selftest.find_fault(build(model_type)) is None


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_it_finds_a_mask_that_ignores_the_tree(family, monkeypatch):
    monkeypatch.setattr(masks, "_tree_rule", lambda rule, visibility: rule)
    assert "differ from plain ones" in selftest.find_fault(shared(family))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_finds_a_wrong_mask_in_half_precision(dtype, monkeypatch):
    monkeypatch.setattr(masks, "_tree_rule", lambda rule, visibility: rule)
    assert "wrong mask" in selftest.find_fault(fresh().to(dtype))


@pytest.mark.parametrize("family", FAMILIES)
def test_it_finds_a_cache_that_keeps_the_wrong_rows(family, monkeypatch):
    monkeypatch.setattr(SlotLayer, "keep", lambda self, slot, base, source: None)
    assert "differ" in selftest.find_fault(shared(family))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_it_finds_positions_that_are_not_passed_on(family, monkeypatch):
    from lookahead.hf.target import HFTarget

    inputs = HFTarget._inputs

    def without(self, tokens, positions, first_slot):
        found = inputs(self, tokens, positions, first_slot)
        found["position_ids"] = positions[:, :1] + torch.arange(positions.shape[1])
        return found

    monkeypatch.setattr(HFTarget, "_inputs", without)
    assert "differ" in selftest.find_fault(shared(family))


def test_a_model_that_raises_is_a_fault_in_one_line(monkeypatch):
    def broken(rule, visibility):
        raise ValueError("first line\nsecond line")

    monkeypatch.setattr(masks, "_tree_rule", broken)
    fault = selftest.find_fault(shared())
    assert fault == "a pass over a tree raised ValueError: first line"


@pytest.mark.parametrize(
    ("rule", "takes_mask"),
    [(lambda rule, _: rule, True), (lambda *_: lambda b, h, q, k: q + k >= 0, False)],
    ids=["causal", "none"],
)
def test_a_model_that_reads_no_tree_may_read_a_chain(rule, takes_mask, monkeypatch):
    monkeypatch.setattr(masks, "_tree_rule", rule)
    model = fresh()
    text = IDS[0].tolist() + new_ids(model, IDS, 12)
    with lookahead.accelerate(model, strict=True, drafters=(Oracle(text),), sources=()):
        fast = model.generate(IDS, max_new_tokens=12, do_sample=False)
        stats = lookahead.last_stats(model)
    assert fast[0].tolist() == text
    assert (stats.shape, stats.mean_acceptance_length > 3) == ("chain", True)
    assert "differ from plain ones" in stats.notes[0]
    found = shape.shape_of(model, Session())
    assert (found.name, found.takes_mask) == ("chain", takes_mask)


def test_a_faulty_model_runs_plain_with_that_reason(monkeypatch):
    monkeypatch.setattr(masks, "_tree_rule", lambda rule, visibility: rule)
    monkeypatch.setattr(chain.ChainTarget, "keep", lambda self, slot, path: None)
    model = fresh()
    plain = model.generate(IDS, max_new_tokens=12, do_sample=False)
    with lookahead.accelerate(model):
        with pytest.warns(lookahead.LookaheadWarning, match="differ from plain ones"):
            fast = model.generate(IDS, max_new_tokens=12, do_sample=False)
        assert not lookahead.last_stats(model).accelerated
    assert fast.tolist() == plain.tolist()
    with (
        lookahead.accelerate(model, strict=True),
        pytest.raises(lookahead.UnsupportedError, match="differ from plain ones"),
    ):
        model.generate(IDS, max_new_tokens=12)


@pytest.mark.parametrize(("family", "reason"), [("mamba", "recurrent state")])
def test_families_that_cannot_bear_a_tree_run_plain_with_a_reason(family, reason):
    model = fresh(family)
    text = IDS[0].tolist() + new_ids(model, IDS)
    plain = model.generate(IDS, max_new_tokens=12, do_sample=False)
    with (  # noqa: PT031
        lookahead.accelerate(model, drafters=(Oracle(text),)),
        pytest.warns(lookahead.LookaheadWarning, match=reason) as warned,
    ):
        for _ in range(2):
            fast = model.generate(IDS, max_new_tokens=12, do_sample=False)
    assert fast.tolist() == plain.tolist()
    assert len(warned) == 1


def test_it_is_asked_once_for_each_attention_and_dtype(monkeypatch):
    asked = []
    monkeypatch.setattr(shape, "find_fault", lambda model: asked.append(model.dtype))
    model = fresh()
    with lookahead.accelerate(model, strict=True):
        for dtype in (torch.float32, torch.float32, torch.bfloat16, torch.float32):
            model.to(dtype)
            model.generate(IDS, max_new_tokens=2)
        model.set_attn_implementation("eager")
        model.generate(IDS, max_new_tokens=2)
    assert len(asked) == 3


def test_it_changes_neither_the_model_nor_the_generator():
    model = fresh()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    selftest.find_fault(model)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not model.base_model._forward_hooks


@pytest.mark.parametrize("vocab", [3, 7, 11])
def test_a_tiny_vocabulary_is_enough(vocab):
    from tests.helpers import make_model

    model = make_model("llama", vocab_size=vocab)
    assert selftest.find_fault(model) is None
    check(model, torch.tensor([[1, 2, 1, 2, 1]]), max_new_tokens=20, do_sample=False)


@pytest.mark.parametrize("window", [4, 16, 256])
def test_a_model_that_cuts_its_window_by_slot_in_code_of_its_own_gives_itself_away(
    window, monkeypatch
):
    """GPT-Neo gave other ids than plain generation once its local layers' window was exceeded."""
    model = make_gpt_neo(window)
    assert selftest.find_fault(model) is None
    monkeypatch.setattr(places, "_BY_CLASS", {})
    assert shape.shape_of(model, Session()).name == "chain"
    assert "differ from plain ones" in selftest.find_fault(model)


def test_the_gap_is_wider_than_the_window_and_ends_where_positions_do():
    assert selftest._gap(shared("mistral"), 6) > shared("mistral").config.sliding_window
    short = fresh("llama", max_position_embeddings=16)
    assert selftest._gap(short, 6) == 2
    assert selftest.find_fault(short) is None


def test_a_model_that_returns_other_rows_than_it_was_given_runs_plain(monkeypatch):
    """ProphetNet does in 4.57."""
    model = fresh()
    plain = selftest.plain_logits
    for module in (selftest, shape):
        monkeypatch.setattr(module, "plain_logits", lambda *args: plain(*args)[-1:])
    with lookahead.accelerate(model), pytest.warns(lookahead.LookaheadWarning):
        model.generate(IDS, max_new_tokens=4, do_sample=False)
    said = lookahead.last_stats(model).plain_reason
    assert said == f"a tree pass gives logits of shape {[5, VOCAB]}, and not {[2, VOCAB]}"


def test_a_plain_pass_that_raises_is_a_fault(monkeypatch):
    def fails(*_):
        raise RuntimeError("only ids of one token")

    monkeypatch.setattr(selftest, "plain_logits", fails)
    fault = selftest.find_fault(fresh())
    assert fault == "a pass over a tree raised RuntimeError: only ids of one token"
