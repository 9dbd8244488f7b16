"""A model that is changed between two calls: what was found out about it is asked again."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lookahead
from lookahead.hf import shape
from tests.helpers import fresh, make_model, new_ids, prompt


def hook_on_last_row(model: Any, strength: float = 2.0) -> Any:
    """Steer the newest position alone, as scripts do that rely on one token a pass."""

    def steer(_module: Any, _args: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        steered = hidden.clone()
        steered[:, -1] += strength
        return (steered, *output[1:]) if isinstance(output, tuple) else steered

    return model.model.layers[0].register_forward_hook(steer)


def hook_before_a_layer(model: Any) -> None:
    def mix(_module: Any, args: Any) -> Any:
        return args[0] + args[0].mean(dim=1, keepdim=True), *args[1:]

    model.model.layers[1].mlp.register_forward_pre_hook(mix)


def forward_of_ones_own(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    plain = mlp.forward
    mlp.forward = lambda x: plain(x) + x.cumsum(dim=1)


def other_type_of_layer(model: Any) -> None:
    layer = model.model.layers[0].mlp

    class Mixing(type(layer)):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x) + x.mean(dim=1, keepdim=True)

    layer.__class__ = Mixing


def dropout_in_a_part(model: Any) -> None:
    model.model.layers[0].self_attn.train()


def forward_of_a_class(model: Any) -> None:
    kind = type(model.model.layers[0].mlp)
    plain = kind.forward
    PATCH.setattr(kind, "forward", lambda self, x: plain(self, x) + x.cumsum(dim=1))


def hook_on_all_modules(_model: Any) -> None:
    def steer(module: Any, _args: Any, output: Any) -> Any:
        return output.cumsum(dim=1) if "MLP" in type(module).__name__ else None

    hook = torch.nn.modules.module.register_module_forward_hook(steer)
    PATCH.setattr(sys.modules[__name__], "HOOK", hook)


PATCH = pytest.MonkeyPatch()
HOOK: Any = None


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    if HOOK is not None:
        HOOK.remove()
    PATCH.undo()


#: These hold for all models of a kind at once.
EVERYWHERE = (forward_of_a_class, hook_on_all_modules)

CHANGES = [
    hook_on_last_row,
    hook_before_a_layer,
    forward_of_ones_own,
    other_type_of_layer,
    dropout_in_a_part,
    *EVERYWHERE,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_a_change_that_trees_cannot_bear_is_found_behind_a_first_call(
    change: Callable[[Any], None], sample: bool
):
    def made() -> Any:
        return make_model(attention_dropout=0.3)

    def answer(model: Any) -> list[int]:
        torch.manual_seed(5)
        return new_ids(model, prompt(repeat=6), do_sample=sample)

    plain, fast = made(), made()
    lookahead.accelerate(fast, nodes=8)
    assert answer(fast) == answer(plain)
    assert lookahead.last_stats(fast).plain_reason is None
    change(plain)
    if change not in EVERYWHERE:
        change(fast)
    with pytest.warns(lookahead.LookaheadWarning, match="runs plain"):
        found = answer(fast)
    assert found == answer(plain)
    reason = lookahead.last_stats(fast).plain_reason
    assert reason is not None
    hints = {dropout_in_a_part: "self_attn is in training mode"} | dict.fromkeys(
        CHANGES[:3], "has a hook or a forward of somebody's own"
    )
    assert hints.get(change, "") in reason


def test_a_change_that_is_taken_back_is_forgotten(llama):
    plain = new_ids(llama, prompt())
    lookahead.accelerate(llama, nodes=8)
    hook = hook_on_last_row(llama)
    with pytest.warns(lookahead.LookaheadWarning, match="runs plain"):
        new_ids(llama, prompt())
    hook.remove()
    assert new_ids(llama, prompt()) == plain
    assert lookahead.last_stats(llama).plain_reason is None


def test_a_change_that_trees_can_bear_stays_accelerated(llama):
    def louder(_module: Any, _args: Any, output: Any) -> Any:
        return output * 1.3

    plain = fresh("llama")
    lookahead.accelerate(llama, nodes=8)
    new_ids(llama, prompt())
    for model in (plain, llama):
        model.model.layers[0].mlp.register_forward_hook(louder)
        model.model.layers[1].mlp.eval()
    assert new_ids(llama, prompt()) == new_ids(plain, prompt())
    assert lookahead.last_stats(llama).plain_reason is None


def test_a_hook_made_anew_for_each_call_is_asked_about_once(llama, monkeypatch):
    asked = []
    find = shape._find_shape
    monkeypatch.setattr(shape, "_find_shape", lambda model: asked.append(1) or find(model))

    def hook_for(vector: torch.Tensor, name: str) -> Callable[..., Any]:
        return lambda _module, _args, output: output + vector * len(name)

    lookahead.accelerate(llama, nodes=8)
    for _ in range(3):
        hook = llama.model.layers[0].mlp.register_forward_hook(hook_for(torch.randn(64), "one"))
        new_ids(llama, prompt())
        hook.remove()
    assert len(asked) == 1
    hook = llama.model.layers[0].mlp.register_forward_hook(hook_for(torch.randn(64), "other"))
    new_ids(llama, prompt())
    hook.remove()
    assert len(asked) == 2


def test_a_hook_with_other_settings_is_another_one(llama):
    def hook(_module: Any, _args: Any, output: Any, *, last_only: bool) -> Any:
        return torch.cat([output[:, :-1], output[:, -1:] + 2], dim=1) if last_only else output + 2

    lookahead.accelerate(llama, nodes=8)
    for last_only in (False, True):
        bound = functools.partial(hook, last_only=last_only)
        put = llama.model.layers[0].mlp.register_forward_hook(bound)
        with pytest.warns(lookahead.LookaheadWarning) if last_only else contextlib.nullcontext():
            new_ids(llama, prompt())
        put.remove()


def test_hooks_that_hold_nothing_yet_and_hooks_that_are_objects_are_no_obstacle(llama):
    class Counter:
        calls = 0

        def __call__(self, *_args: Any) -> None:
            self.calls += 1

    counter = Counter()

    def hook(*args: Any) -> None:
        if len(args) > 3:
            later()

    llama.model.layers[0].register_forward_hook(counter)
    llama.model.layers[0].register_forward_hook(hook)
    lookahead.accelerate(llama, nodes=8)
    new_ids(llama, prompt())

    def later() -> None:
        """Was not there when the hook was looked at."""

    assert counter.calls > 0
    assert lookahead.last_stats(llama).plain_reason is None
