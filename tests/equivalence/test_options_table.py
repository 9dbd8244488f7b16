"""Every row of the table of options does what it says, and no option is without a row."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers

import lookahead
from tests.helpers import CACHE, fresh, prompt, skip_if_earlier
from tests.options_table import (
    FAST,
    MODEL_INPUTS,
    PAGE,
    PLAIN,
    REFUSED,
    TABLE,
    Option,
    accepted,
    document,
)

NEWEST = pytest.mark.skipif(CACHE != "cache", reason="the table is that of the newest release")

LENGTH = {"max_new_tokens": 8, "do_sample": False}
IDS = prompt(18, repeat=4)
BATCH = torch.cat([prompt(18, seed=s, repeat=4) for s in (1, 2)])


def _generate(model, option, ids, sample):
    if not option.is_known:
        pytest.skip(f"transformers {transformers.__version__} has no {option.name} of this kind")
    arguments = option.arguments()
    if "generation_config" in arguments:
        arguments["generation_config"].do_sample = sample
        arguments["generation_config"].pad_token_id = 0
    else:
        arguments = LENGTH | {"do_sample": sample} | arguments
    alone = {"inputs", "input_ids", "inputs_embeds"} & set(arguments)
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="transformers")
        found = model.generate(*([] if alone else [ids]), **arguments)
    return (found if isinstance(found, torch.Tensor) else found.sequences).tolist()


def _ways(option: Option) -> list[bool]:
    """Greedy and sampled, unless the call says which."""
    return [False] if "do_sample" in option.call or option.verdict == REFUSED else [False, True]


@pytest.mark.parametrize("option", [o for o in TABLE if o.verdict == FAST], ids=str)
def test_it_is_exact_and_fast(option):
    model = fresh(option.family)
    for sample in _ways(option):
        plain = _generate(model, option, IDS, sample)
        with lookahead.accelerate(model, nodes=8, strict=True), skip_if_earlier():
            assert _generate(model, option, IDS, sample) == plain
            assert lookahead.last_stats(model).accelerated


@pytest.mark.parametrize("option", [o for o in TABLE if not o.runs], ids=str)
def test_what_does_not_run_everywhere_is_named_before_anything_runs(option):
    model = fresh(option.family)
    if "offloaded" in str(option):
        # A torch that is built for a GPU which is not here fails while the library makes the cache.
        try:
            torch.Stream()
        except RuntimeError as error:
            pytest.skip(f"offloading needs a device with streams: {error}")
    with lookahead.accelerate(model, strict=True):
        for ids in (IDS, BATCH):
            with pytest.raises(lookahead.UnsupportedError, match=option.says):
                _generate(model, option, ids, sample=False)


@pytest.mark.parametrize("option", [o for o in TABLE if o.verdict == PLAIN and o.runs], ids=str)
def test_it_is_exact_and_plain_with_one_warning(option):
    model = fresh(option.family)
    for sample in _ways(option):
        plain = _generate(model, option, IDS, sample)
        with lookahead.accelerate(model, nodes=8):
            _runs_plain(model, option, IDS, sample, plain, option.says)
        lookahead.restore(model)


@pytest.mark.parametrize("option", [o for o in TABLE if o.verdict == REFUSED], ids=str)
def test_it_is_refused_as_in_plain(option):
    model = fresh(option.family)
    for ids in (IDS, BATCH):
        with pytest.raises(Exception, match=option.says) as plain:
            _generate(model, option, ids, sample=False)
        with lookahead.accelerate(model), warnings.catch_warnings():
            warnings.simplefilter("ignore", lookahead.LookaheadWarning)
            with pytest.raises(type(plain.value)) as fast:
                _generate(model, option, ids, sample=False)
        assert str(fast.value) == str(plain.value)


@pytest.mark.parametrize(
    "option", [o for o in TABLE if o.verdict == FAST and o.batch is not None], ids=str
)
def test_in_a_batch_it_is_exact_and_as_fast_as_it_says(option):
    model = fresh(option.family)
    plain = _generate(model, option, BATCH, sample=False)
    if option.batch:
        with lookahead.accelerate(model, nodes=8):
            _runs_plain(model, option, BATCH, False, plain, option.batch)
    else:
        with lookahead.accelerate(model, nodes=8, strict=True):
            assert _generate(model, option, BATCH, sample=False) == plain


def _runs_plain(model, option, ids, sample, plain, reason):
    with pytest.warns(lookahead.LookaheadWarning, match=reason) as warned:  # noqa: PT031
        for _ in range(2):
            assert _generate(model, option, ids, sample) == plain
    assert sum(issubclass(w.category, lookahead.LookaheadWarning) for w in warned) == 1
    assert not lookahead.last_stats(model).accelerated
    assert reason in lookahead.last_stats(model).plain_reason
    with (
        lookahead.accelerate(model, strict=True),
        pytest.raises(lookahead.UnsupportedError, match=reason),
    ):
        _generate(model, option, ids, sample)


@NEWEST
def test_every_option_of_the_library_has_a_row():
    missing = accepted() - {option.name for option in TABLE}
    assert not missing, f"add rows to tests/options_table.py for {sorted(missing)}"


@NEWEST
def test_an_option_with_a_row_exists_or_is_a_model_input():
    assert {option.name for option in TABLE} <= accepted() | MODEL_INPUTS


def test_the_calls_of_a_row_name_its_option():
    for option in TABLE:
        if option.name != "an unknown name":
            assert f"{option.name}=" in option.call


def test_the_document_is_that_of_the_table():
    assert PAGE.read_text("utf-8") == document(), "run python -m tests.options_table"


@pytest.mark.slow
def test_a_paged_cache_is_left_to_continuous_batching():
    model = fresh()
    options = {"cache_implementation": "paged", "max_new_tokens": 4, "do_sample": False}
    plain = model.generate(IDS, **options)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="continuous batching"),
    ):
        assert model.generate(IDS, **options).tolist() == plain.tolist()
