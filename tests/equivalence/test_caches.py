"""Every kind of cache: read in and left as plain decoding leaves it, or plain with a reason."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    QuantizedCache,
    StaticCache,
    cache_utils,
)
from transformers.cache_utils import DynamicLayer

import lookahead
from lookahead.hf.kinds import LayerForm
from tests.cases.test_batches import ragged
from tests.drafters import ALL
from tests.helpers import (
    CACHE,
    FAMILIES,
    NEW_IDS_ALONE,
    WINDOW,
    cache_of,
    check,
    fresh,
    new_ids,
    prompt,
    quietly,
    shared,
)
from tests.oracles import assert_same_cache

IDS = prompt(18, repeat=4)


def assert_left_as_plain(found, plain):
    """Compare everything that a cache holds: kinds, sizes, counters, contents."""
    assert type(found) is type(plain)
    for mine, right in zip(found.layers, plain.layers, strict=True):
        assert type(mine) is type(right)
        for name, value in vars(right).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(vars(mine)[name], value, atol=1e-5, rtol=1e-4)
            else:
                assert vars(mine)[name] == value, name


@pytest.mark.parametrize("kind", ["bare", "typed", "filled", "filled-typed"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_a_cache_of_the_users_own_is_used_and_left_as_plain_leaves_it(family, kind):
    model, made = shared(family), []

    def make():
        cache = DynamicCache(config=model.config) if "typed" in kind else DynamicCache()
        if "filled" in kind:
            with torch.no_grad():
                model(input_ids=IDS[:, :11], **{CACHE: cache})
        made.append(cache)
        return {CACHE: cache}

    runs = check(model, IDS, make=make, max_new_tokens=20, do_sample=False)
    plain, fast = made
    assert_same_cache(fast, plain)
    assert fast.get_seq_length() == runs.fast.shape[1] - 1
    for mine, right in zip(fast.layers, plain.layers, strict=True):
        assert type(mine) is type(right)
        assert mine.keys.shape == right.keys.shape


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_cache_with_all_but_the_last_token_of_a_prompt_is_used(family):
    model = shared(family)

    def make():
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=IDS[:, :-1], **{CACHE: cache})
        return {CACHE: cache}

    for sample in (False, True):
        check(model, IDS, make=make, max_new_tokens=20, do_sample=sample)


@pytest.mark.parametrize("drafter", ["all", "half", "none"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_static_cache_is_left_as_plain_leaves_it(family, drafter):
    model = shared(family)
    for ids in (prompt(5), IDS, prompt(WINDOW)):
        text = ids[0].tolist() + new_ids(model, ids)
        for sample, chunk in ((False, None), (True, None), (False, 3)):
            made = []

            def make(made=made):
                made.append(StaticCache(config=model.config, max_cache_len=45))
                return {CACHE: made[-1]}

            check(
                model,
                ids,
                settings=ALL[drafter](text),
                make=make,
                max_new_tokens=20,
                do_sample=sample,
                prefill_chunk_size=chunk,
            )
            assert_left_as_plain(made[1], made[0])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_a_static_cache_is_made_and_returned_as_in_plain(family, attention):
    model = shared(family, attention=attention)
    size = {"max_cache_len": 99} if hasattr(GenerationConfig(), "max_cache_len") else {}
    for options in ({}, size | {"disable_compile": True}, {"do_sample": True}):
        arguments = {"max_new_tokens": 24, "do_sample": False} | options
        arguments |= {"cache_implementation": "static", "return_dict_in_generate": True}
        runs = check(model, IDS, **arguments)
        assert_left_as_plain(cache_of(runs.fast), cache_of(runs.plain))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=NEW_IDS_ALONE)])
def test_a_static_cache_is_brought_turn_after_turn(family, whole):
    model, ids = shared(family), IDS
    caches = [StaticCache(config=model.config, max_cache_len=90) for _ in range(2)]
    buffers = []
    for turn in range(3):
        left = list(caches)

        def make(left=left):
            return {CACHE: left.pop(0)}

        given = ids if whole or turn == 0 else ids[:, caches[0].get_seq_length() :]
        runs = check(
            model,
            given,
            make=make,
            max_new_tokens=9,
            do_sample=turn == 1,
            attention_mask=torch.ones_like(ids),
        )
        assert_left_as_plain(caches[1], caches[0])
        buffers.append([layer.keys.data_ptr() for layer in caches[1].layers])
        new = runs.plain[:, given.shape[1] :]
        ids = torch.cat([ids, new, prompt(5, seed=turn)], dim=1)
    assert buffers[0] == buffers[1] == buffers[2]  # a static buffer never moves


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_static_cache_of_a_batch(family):
    model = shared(family)
    ids, mask = ragged((12, 12, 12))
    end = int(model.generate(ids, max_new_tokens=9, do_sample=False)[1, -4])
    for options in ({}, {"eos_token_id": end}):
        made = []

        def make(made=made):
            made.append(StaticCache(config=model.config, max_cache_len=40))
            return {CACHE: made[-1]}

        check(model, ids, make=make, max_new_tokens=20, do_sample=False, **options)
        assert_left_as_plain(made[1], made[0])
    ids, mask = ragged((5, 19, 11))
    options = {"cache_implementation": "static", "max_new_tokens": 20, "do_sample": False}
    check(model, ids, attention_mask=mask, **options)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("options", [{"cache_implementation": "static"}, {}], ids=["static", ""])
def test_a_row_of_nothing_but_padding(options, attention):
    """What is computed for padding may depend on the slots there are, and is gone on from here."""
    model = shared("llama", attention=attention)
    ids = prompt(10, seed=3).repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[1] = 0
    for rows in (slice(0, 2), slice(1, 2)):
        arguments = {"attention_mask": mask[rows], "max_new_tokens": 20, "do_sample": False}
        settings = {"strict": False}
        quietly(partial(check, model, ids[rows], settings=settings, **arguments, **options))


def test_a_static_cache_that_is_too_small_fails_as_in_plain():
    model = fresh()

    def run(**more):
        cache = StaticCache(config=model.config, max_cache_len=30)
        return model.generate(IDS, **{CACHE: cache}, max_new_tokens=20, do_sample=False, **more)

    with pytest.raises(Exception) as plain:  # noqa: PT011 - whatever the library raises
        run()
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="may be too small"),
        pytest.raises(type(plain.value)),
    ):
        run()


def test_a_cache_for_which_passes_are_compiled_is_left_to_the_library():
    model = fresh()
    settings = CompileConfig()
    settings._compile_all_devices = True
    options = {"cache_implementation": "static", "max_new_tokens": 4, "compile_config": settings}
    with lookahead.accelerate(model, strict=True):
        with pytest.raises(lookahead.UnsupportedError, match="compiles single-token passes"):
            model.generate(IDS, **options)
        model.generate(IDS, **options, disable_compile=True)
        assert lookahead.last_stats(model).accelerated


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_a_cache_is_untouched_when_a_run_is_broken_off(kind):
    model = fresh("gemma3")
    size = {"max_cache_len": 60} if kind is StaticCache else {}
    cache = kind(config=model.config, **size)
    with torch.no_grad():
        model(input_ids=IDS[:, :9], **{CACHE: cache})
    before = copy.deepcopy(cache)

    class Stopped(Exception):
        pass

    def stop(ids, scores):
        if ids.shape[1] == 24:
            raise Stopped
        return scores

    with lookahead.accelerate(model, nodes=8, strict=True):
        with pytest.raises(Stopped):
            model.generate(IDS, **{CACHE: cache}, logits_processor=[stop], max_new_tokens=20)
        assert_left_as_plain(cache, before)
        fast = model.generate(IDS, **{CACHE: cache}, max_new_tokens=20, do_sample=False)
    plain = model.generate(IDS, **{CACHE: before}, max_new_tokens=20, do_sample=False)
    assert fast.tolist() == plain.tolist()
    assert_left_as_plain(cache, before)


class NamedCache(DynamicCache):
    """Adds to its parent and changes nothing."""

    def __init__(self, name, **kwargs):
        super().__init__(**kwargs)
        self.name = name

    def title(self):
        return self.name.title()


class CountingCache(DynamicCache):
    """Changes what its parent does."""

    updates = 0

    def update(self, *args, **kwargs):
        self.updates += 1
        return super().update(*args, **kwargs)


class NamedLayer(DynamicLayer):
    name = "layer"


def test_a_subclass_that_overrides_nothing_is_its_parent():
    model, made = shared(), []

    def make():
        made.append(NamedCache("mine", config=model.config))
        made[-1].layers[1] = NamedLayer()
        return {CACHE: made[-1]}

    check(model, IDS, make=make, max_new_tokens=20, do_sample=False)
    assert_left_as_plain(made[1], made[0])
    assert made[1].title() == "Mine"


def test_a_subclass_that_overrides_something_runs_plain():
    model = fresh()
    cache = CountingCache(config=model.config)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="the cache is a CountingCache"),
    ):
        fast = model.generate(IDS, **{CACHE: cache}, max_new_tokens=8, do_sample=False)
    assert cache.updates == 8 * len(model.model.layers)
    assert fast.tolist() == model.generate(IDS, max_new_tokens=8, do_sample=False).tolist()


@pytest.mark.skipif(
    not hasattr(DynamicCache, "activate_past_recording"), reason="caches record no past yet"
)
def test_a_cache_that_records_its_past_is_left_to_its_owner():
    model, caches = fresh("mistral"), []
    for _ in range(2):
        caches.append(DynamicCache(config=model.config))
        caches[-1].activate_past_recording()
    plain = model.generate(IDS, **{CACHE: caches[0]}, max_new_tokens=9, do_sample=False)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="layer 0 of the cache records its past"),
    ):
        fast = model.generate(IDS, **{CACHE: caches[1]}, max_new_tokens=9, do_sample=False)
    assert fast.tolist() == plain.tolist()
    assert_left_as_plain(caches[1], caches[0])
    assert caches[1].layers[0].keys.shape[2] == IDS.shape[1] + 8


@pytest.mark.skipif(
    not hasattr(cache_utils, "Fp8QuantizedLayer"), reason="no quantised cache without more packages"
)
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("way", ["implementation", "object"])
def test_a_quantised_cache_runs_plain_since_it_makes_steps_of_rounding(way, sample):
    model, caches = fresh(), []

    def options():
        if way == "implementation":
            return {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
        caches.append(QuantizedCache("fp8", model.config))
        return {CACHE: caches[-1]}

    def run():
        torch.manual_seed(3)
        return model.generate(IDS, max_new_tokens=12, do_sample=sample, **options())

    try:
        plain = run()
    except RuntimeError as error:
        pytest.skip(f"with this torch it is of no use to plain decoding either: {error}")
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="a quantised cache turns rounding"),
    ):
        fast = run()
    assert fast.tolist() == plain.tolist()
    if caches:
        kept = [c.layers[0]._quantized_keys[0].float() for c in caches]
        assert torch.equal(kept[0], kept[1])
    with (
        lookahead.accelerate(model, strict=True),
        pytest.raises(lookahead.UnsupportedError, match="quantised"),
    ):
        run()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("backend", "package", "axis"), [("quanto", "optimum.quanto", 0), ("hqq", "hqq", 1)]
)
def test_a_cache_quantised_by_others_runs_plain(backend, package, axis):
    """They quantise all rows anew when so many have come since the last time."""
    pytest.importorskip(package)
    settings = {"backend": backend, "nbits": 4, "q_group_size": 16, "residual_length": 8}
    settings |= {"axis_key": axis, "axis_value": axis}
    options = {"cache_implementation": "quantized", "cache_config": settings}
    model = fresh()
    plain = model.generate(IDS, max_new_tokens=20, do_sample=False, **options)
    with lookahead.accelerate(model):
        fast = model.generate(IDS, max_new_tokens=20, do_sample=False, **options)
        stats = lookahead.last_stats(model)
    assert fast.tolist() == plain.tolist()
    assert "a quantised cache turns rounding" in stats.plain_reason


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_an_offloaded_cache_runs_plain(kind):
    model = fresh()
    size = {"max_cache_len": 60} if kind is StaticCache else {}
    try:
        cache = kind(config=model.config, offloading=True, **size)
    except (AssertionError, RuntimeError) as error:
        pytest.skip(f"offloading needs a device with streams: {error}")
    with (
        lookahead.accelerate(model, strict=True),
        pytest.raises(lookahead.UnsupportedError, match="offloaded"),
    ):
        model.generate(IDS, **{CACHE: cache}, max_new_tokens=4)


@pytest.mark.parametrize(
    ("form", "end", "rows", "expected"),
    [
        (LayerForm(), 20, 1, (0, 0)),
        (LayerForm(window=8), 20, 1, (12, 0)),
        (LayerForm(window=8), 5, 1, (0, 0)),
        (LayerForm(window=8), 20, 3, (10, 0)),
        (LayerForm(size=30), 20, 1, (0, 10)),
        (LayerForm(window=8, size=8), 5, 1, (0, 3)),
        (LayerForm(window=8, size=8), 8, 1, (0, 0)),
        (LayerForm(window=8, size=8), 9, 1, (1, 0)),
        (LayerForm(window=8, size=8), 20, 20, (0, 0)),
    ],
)
def test_columns_of_a_layer(form, end, rows, expected):
    assert form.columns(end, rows) == expected
