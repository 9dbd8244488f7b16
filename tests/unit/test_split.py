"""A model taken apart: two passes give what one gives, and nothing stays on the model."""

from __future__ import annotations

import threading

import pytest
import torch
from transformers import DynamicCache

from lookahead.errors import UnsupportedError
from lookahead.hf import masks
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_argument
from lookahead.hf.selftest import exit_verdict, find_exit_fault, find_fault
from lookahead.hf.split import LayerSplit
from lookahead.hf.target import HFTarget
from lookahead.session import Session
from lookahead.tree import DraftTree
from tests.families import EXIT_FAMILIES, make_family
from tests.helpers import make_bloom, prompt, shared

IDS = prompt(18, repeat=4)
DEEP = {"num_hidden_layers": 4}


@pytest.fixture(autouse=True)
def _installed():
    masks.install()


def make_target(model, split=None):
    """Return a target that has read the prompt, as a call makes it."""
    name = cache_argument(model)
    cache = SlotCache(DynamicCache(config=model.config), 1)
    kwargs = {
        name: cache,
        "position_ids": torch.arange(IDS.shape[1])[None],
        "attention_mask": None,
        "use_cache": True,
    }
    settings = type("Settings", (), {"prefill_chunk_size": None, "_mask_length": IDS.shape[1]})
    target = HFTarget(model, IDS, IDS.tolist(), settings, kwargs, cache, name, split)
    with torch.no_grad():
        target.prefill()
    return target, cache


def rows_of(cache):
    """Return K/V of all committed rows, by layer."""
    length = cache.lengths[0]
    return [
        (x.keys[:, :, : length - x.start].clone(), x.values[:, :, : length - x.start].clone())
        for x in cache.layers
    ]


TREE = DraftTree.from_parents([5, 7, 9, 11, 13, 9], [0, 0, 1, 0, 3, 3])
#: The same nodes in another order, one that is given up, and how they are looked at.
FIRST = DraftTree.from_parents([5, 11, 7, 100, 9, 9], [0, 0, 0, 2, 1, 2])
LOOKS = {
    "root": [(FIRST, [0])],
    "leaf": [(FIRST, [4])],
    "unwanted": [(FIRST, [3])],
    "several": [(FIRST, [0]), (FIRST, [2, 1]), (TREE, [2]), (FIRST, [3, 4, 5])],
    "all": [(TREE, list(range(6)))],
    "all but the root's line": [(TREE, [4, 5])],
}


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("family", EXIT_FAMILIES)
def test_a_tree_that_was_peeked_at_is_verified_as_if_it_was_not(family, looks):
    """P1: at every exit layer, the same logits, hidden states and K/V, step after step."""
    model = make_family(family)
    split = LayerSplit(model)
    assert split.reason is None
    with torch.no_grad():
        for layer in range(1, split.num_layers):
            plain, plain_cache = make_target(model)
            early, early_cache = make_target(model, split)
            for path in ([0, 3, 5], [0, 1], [0]):
                for tree, nodes in LOOKS[looks]:
                    early.peek(0, tree, nodes, layer)
                right, found = plain.verify([0], [TREE])[0], early.verify([0], [TREE])[0]
                torch.testing.assert_close(found.logits, right.logits, atol=2e-4, rtol=1e-4)
                torch.testing.assert_close(found.hidden, right.hidden, atol=2e-4, rtol=1e-4)
                plain.keep(0, path)
                early.keep(0, path)
                for one, other in zip(rows_of(early_cache), rows_of(plain_cache), strict=True):
                    torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", EXIT_FAMILIES)
def test_what_a_peek_returns_is_what_leaves_the_layer(family):
    model = make_family(family)
    split = LayerSplit(model)
    with torch.no_grad():
        for layer in range(1, split.num_layers):
            whole, _ = make_target(model, split)
            whole.watch([layer])
            whole.verify([0], [TREE])
            early, _ = make_target(model, split)
            early.watch([layer])
            found = early.peek(0, FIRST, [5, 0, 1], layer)
            right = whole.left(0, layer)
            torch.testing.assert_close(found, right[[2, 0, 3]], atol=2e-4, rtol=1e-4)
            early.verify([0], [TREE])
            torch.testing.assert_close(early.left(0, layer), right, atol=2e-4, rtol=1e-4)


def test_layers_below_and_above_the_exit_are_watched_in_the_order_of_the_tree():
    model = make_family("llama")
    split = LayerSplit(model)
    with torch.no_grad():
        whole, _ = make_target(model, split)
        whole.watch([1, 2, 3, 4])
        whole.verify([0], [TREE])
        early, _ = make_target(model, split)
        early.watch([1, 2, 3, 4])
        early.peek(0, FIRST, [3, 1], 2)
        early.verify([0], [TREE])
    for layer in (1, 2, 3, 4):
        torch.testing.assert_close(early.left(0, layer), whole.left(0, layer), atol=1e-4, rtol=1e-4)


def test_each_row_goes_through_each_layer_once():
    model = make_family("llama")
    split = LayerSplit(model)
    seen = [0] * split.num_layers
    for number, layer in enumerate(model.model.layers):

        def count(module, args, number=number):
            seen[number] += args[0].shape[1]

        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs, count=count: count(module, [kwargs["hidden_states"]]),
            with_kwargs=True,
        )
    with torch.no_grad():
        early, _ = make_target(model, split)
        seen[:] = [0] * split.num_layers
        early.peek(0, TREE, [0], 2)
        early.peek(0, TREE, [1, 0], 2)
        assert seen == [2, 2, 0, 0]
        early.verify([0], [TREE])
    assert seen == [6, 6, 6, 6]


def test_a_second_exit_layer_in_one_step_is_refused():
    model = make_family("llama")
    with torch.no_grad():
        target, _ = make_target(model, LayerSplit(model))
        target.peek(0, TREE, [0], 2)
        with pytest.raises(ValueError, match="layers up to 2 were run already"):
            target.peek(0, TREE, [0], 3)


@pytest.mark.parametrize("layer", [0, 4, 5, -1])
def test_an_exit_layer_out_of_range_is_refused(layer):
    """P3."""
    model = make_family("llama")
    with torch.no_grad():
        target, _ = make_target(model, LayerSplit(model))
        with pytest.raises(ValueError, match="from 1 to 3"):
            target.peek(0, TREE, [0], layer)
        right = make_target(model)[0].verify([0], [TREE])[0]
        torch.testing.assert_close(target.verify([0], [TREE])[0].logits, right.logits)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", EXIT_FAMILIES)
def test_the_model_is_found_fit_for_every_layer(family, attention):
    if attention == "sdpa" and family in ("gemma2", "gpt_oss"):
        pytest.skip("the library has no sdpa for it")
    model = make_family(family, attention=attention)
    split = LayerSplit(model)
    assert find_fault(model) is None
    assert [find_exit_fault(model, split, n) for n in range(1, split.num_layers)] == [None] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_no_fault_in_half_precision(dtype):
    model = make_family("llama").to(dtype)
    assert [find_exit_fault(model, LayerSplit(model), n) for n in (1, 2, 3)] == [None] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_the_wrong_place_are_found(dtype, monkeypatch):
    from lookahead.hf import target

    model = make_family("llama").to(dtype)
    monkeypatch.setattr(target.EarlyPath, "rows", property(lambda self: [0, 1]), raising=False)
    assert "differ from plain ones" in find_exit_fault(model, LayerSplit(model), 2)


def test_the_verdict_is_asked_once(monkeypatch):
    from lookahead.hf import selftest

    asked = []
    monkeypatch.setattr(selftest, "find_exit_fault", lambda m, s, layer: asked.append(layer))
    model, session = make_family("llama"), Session()
    split = LayerSplit(model)
    for layer in (1, 1, 2, 1):
        assert exit_verdict(model, session, split, layer) is None
    assert asked == [1, 2]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: shared("mamba"), "recurrent state"),
        (lambda: make_family("llama", num_hidden_layers=1), "one layer only"),
        (lambda: make_family("gemma3n"), "share K/V"),
    ],
)
def test_what_cannot_be_taken_apart_says_why(make, reason):
    model = make()
    split = LayerSplit(model)
    assert reason in split.reason
    assert reason in find_exit_fault(model, split, 1)
    with pytest.raises(UnsupportedError, match=reason), split.first(1):
        pass


def test_layers_that_hand_on_more_than_a_vector_a_row_are_refused():
    model = make_family("gemma3n", num_kv_shared_layers=0)
    fault = find_exit_fault(model, LayerSplit(model), 1)
    assert fault == "its layers return something else than one vector for each row"


def test_layers_that_return_tuples_are_taken_apart():
    """Bloom makes no tree passes, but its layers return tuples: a chain is run in two parts."""
    model = make_bloom(attention="eager")
    split = LayerSplit(model)
    name = cache_argument(model)
    with torch.no_grad():
        right = model(IDS).logits
        cache = DynamicCache()
        with split.first(1) as left:
            model(IDS, **{name: cache})
        hidden = left[1]
        # The rows of the first layer are there: hide them where masks take their sizes from.
        cache = DynamicCache()
        with split.rest(1, hidden):
            found = model(IDS, **{name: cache}).logits
    torch.testing.assert_close(found, right)


def test_a_layer_that_was_found_at_fault_is_not_looked_through():
    model = make_family("llama")
    target, _ = make_target(model, LayerSplit(model))
    target._exit_fault = lambda layer: "it is cursed" if layer == 2 else None
    with pytest.raises(UnsupportedError, match="cursed"):
        target.peek(0, TREE, [0], 2)
    with torch.no_grad():
        assert target.peek(0, TREE, [0], 3).shape == (1, 64)


def test_a_batch_is_refused_with_a_reason():
    model = make_family("llama")
    target, _ = make_target(model, LayerSplit(model))
    target._contexts = target._contexts * 2
    with pytest.raises(UnsupportedError, match="batch"):
        target.peek(0, TREE, [0], 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
@pytest.mark.parametrize("where", range(4))
def test_whatever_is_raised_in_a_pass_leaves_nothing_on_the_model(error, where):
    model = make_family("llama")
    before = {name: dict(vars(m)) for name, m in model.named_modules()}
    split = LayerSplit(model)
    target, _ = make_target(model, split)
    right = make_target(model)[0].verify([0], [TREE])[0].logits

    def fail(module, args):
        raise error("stop here")

    hook = model.model.layers[where].mlp.register_forward_pre_hook(fail)

    def step():
        target.peek(0, TREE, [1], 2)
        target.verify([0], [TREE])

    with torch.no_grad(), pytest.raises(error, match="stop here"):
        step()
    hook.remove()
    for name, module in model.named_modules():
        assert vars(module).keys() == before[name].keys()
        assert vars(module).get("forward") is before[name].get("forward")
    if where < 2:  # the step goes on without the look
        with torch.no_grad():
            found = target.verify([0], [TREE])[0].logits
        torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)


def test_ctrl_c_while_forwards_are_given_back_waits_until_they_are(monkeypatch):
    from lookahead.hf import split as module

    model = make_family("llama")
    give_back, calls = module._give_back, []

    def interrupted(modules, name):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        give_back(modules, name)

    monkeypatch.setattr(module, "_give_back", interrupted)
    with pytest.raises(KeyboardInterrupt), LayerSplit(model).first(2):
        assert "forward" in vars(model.model.layers[2])
    assert not any("forward" in vars(m) for m in model.modules())


def test_a_forward_that_somebody_else_had_put_on_a_layer_is_put_back():
    """An offloading hook lives in the same place."""
    model = make_family("llama")
    layer = model.model.layers[3]
    original, calls = layer.forward, []

    def theirs(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    layer.forward = theirs
    split = LayerSplit(model)
    with torch.no_grad():
        target, _ = make_target(model, split)
        target.peek(0, TREE, [0], 2)
        calls.clear()
        target.verify([0], [TREE])
    assert calls == [1]
    assert vars(layer)["forward"] is theirs


def test_threads_that_pass_through_one_model_at_a_time_do_not_meet():
    """One is in the middle of a split pass while others run plain and split ones."""
    model = make_family("llama")
    split = LayerSplit(model)
    with torch.no_grad():
        right = model(IDS).logits
    inside, go_on = threading.Event(), threading.Event()
    main = threading.get_ident()
    found, failed = [], []

    def wait(module, args):
        if threading.get_ident() != main and not inside.is_set():
            inside.set()
            go_on.wait(60)

    def work():
        try:
            with torch.no_grad(), split.first(2) as left:
                model(IDS)
            found.append(left[2])
        except BaseException as error:
            failed.append(error)

    hook = model.model.layers[1].mlp.register_forward_pre_hook(wait)
    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, right)  # plain, in the meantime
        with split.first(3) as left:
            model(IDS)
        with split.rest(3, left[3]):
            torch.testing.assert_close(model(IDS).logits, right)
        torch.testing.assert_close(model(IDS).logits, right)
        assert any("forward" in vars(m) for m in model.modules())
    go_on.set()
    thread.join()
    hook.remove()
    assert not failed
    with torch.no_grad(), split.watching([2]) as left:
        model(IDS)
    torch.testing.assert_close(found[0], left[2])
    assert not any("forward" in vars(m) for m in model.modules())
