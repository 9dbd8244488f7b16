"""The slot cache: growth, limits, ragged rows, sliding windows, handing back."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache, QuantizedCache, StaticCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from lookahead import UnsupportedError
from lookahead.hf.cache import SlotCache
from tests.helpers import shared

HEADS, SIZE = 2, 3


def rows(start, count, batch=1, layer=0):
    """Rows whose values say where they came from."""
    row = torch.arange(start, start + count, dtype=torch.float32)[None, None, :, None]
    which = torch.arange(batch, dtype=torch.float32)[:, None, None, None]
    return (row + 1000 * which + 0.25 * layer).expand(batch, HEADS, count, SIZE).clone()


def _update(cache, start, count, batch=1):
    for layer in range(2):
        new = rows(start, count, batch, layer)
        cache.update(new, new + 0.5, layer)


def _held(cache, slot=0, layer=0):
    one = cache.layers[layer]
    length = cache.lengths[slot]
    return one.keys[slot, 0, : length - one.start, 0].tolist()


def test_the_prompt_counts_once_it_is_read():
    cache = SlotCache(DynamicCache(), 1)
    _update(cache, 0, 5)
    assert cache.lengths == [0]
    assert cache.get_seq_length() == 5
    _update(cache, 5, 2)  # a prompt in chunks
    cache.prompt_read()
    assert cache.lengths == [7]
    assert _held(cache) == [0, 1, 2, 3, 4, 5, 6]


def test_rows_of_a_pass_count_only_once_they_are_kept():
    cache = SlotCache(DynamicCache(), 1)
    _update(cache, 0, 4)
    cache.prompt_read()
    _update(cache, 100, 5)
    assert cache.get_seq_length() == 4
    cache.keep(0, [0, 2, 4])
    assert cache.lengths == [7]
    assert _held(cache) == [0, 1, 2, 3, 100, 102, 104]
    assert _held(cache, layer=1) == [v + 0.25 for v in (0, 1, 2, 3, 100, 102, 104)]
    _update(cache, 200, 3)
    cache.keep(0, [0])
    assert _held(cache) == [0, 1, 2, 3, 100, 102, 104, 200]
    _update(cache, 300, 3)
    cache.keep(0, [0, 1, 2])
    assert _held(cache) == [0, 1, 2, 3, 100, 102, 104, 200, 300, 301, 302]


def test_update_hands_out_all_that_is_held_and_the_new_rows():
    cache = SlotCache(DynamicCache(), 1)
    _update(cache, 0, 4)
    cache.prompt_read()
    new = rows(50, 3)
    keys, values = cache.update(new, new + 0.5, 0)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 50, 51, 52]
    assert values[0, 0, :, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 50.5, 51.5, 52.5]
    assert cache.get_mask_sizes(3, 0) == (7, 0)


def test_growth_doubles_so_that_copies_are_few():
    cache = SlotCache(DynamicCache(), 1)
    _update(cache, 0, 4)
    cache.prompt_read()
    capacities = []
    for step in range(200):
        _update(cache, 10 + step, 1)
        cache.keep(0, [0])
        capacities.append(cache.layers[0].keys.shape[-2])
    assert len(set(capacities)) <= 8
    assert _held(cache) == [0, 1, 2, 3, *range(10, 210)]


def test_buffers_never_grow_past_the_limit():
    cache = SlotCache(DynamicCache(), 1, limit=30)
    _update(cache, 0, 4)
    cache.prompt_read()
    for step in range(26):
        _update(cache, 10 + step, min(3, 26 - step))
        cache.keep(0, [0])
        assert cache.layers[0].keys.shape[-2] <= 30
    assert cache.lengths == [30]


def test_a_limit_that_is_too_small_costs_no_row():
    cache = SlotCache(DynamicCache(), 1, limit=5)
    _update(cache, 0, 4)
    cache.prompt_read()
    _update(cache, 10, 6)
    cache.keep(0, [0, 1, 2, 3, 4, 5])
    assert _held(cache) == [0, 1, 2, 3, 10, 11, 12, 13, 14, 15]


def test_new_room_holds_zeros():
    cache = SlotCache(DynamicCache(), 1)
    _update(cache, 1, 4)
    cache.prompt_read()
    _update(cache, 10, 3)
    keys = cache.layers[0].keys
    assert torch.isfinite(keys).all()
    assert not keys[:, :, 7:].any()


def test_rows_of_a_batch_have_their_own_lengths():
    cache = SlotCache(DynamicCache(), 3)
    _update(cache, 0, 4, 3)
    cache.prompt_read()
    _update(cache, 100, 4, 3)
    cache.keep(0, [0])
    cache.keep(1, [0, 1, 3])
    cache.keep(2, [0, 2])
    assert cache.lengths == [5, 7, 6]
    assert cache.get_seq_length() == 7
    assert _held(cache, 0) == [0, 1, 2, 3, 100]
    assert _held(cache, 1) == [1000 + v for v in (0, 1, 2, 3, 100, 101, 103)]
    assert _held(cache, 2) == [2000 + v for v in (0, 1, 2, 3, 100, 102)]
    _update(cache, 200, 2, 3)
    cache.keep(0, [0, 1])
    cache.keep(2, [0])
    assert _held(cache, 0) == [0, 1, 2, 3, 100, 200, 201]
    assert _held(cache, 1) == [1000 + v for v in (0, 1, 2, 3, 100, 101, 103)]
    assert _held(cache, 2) == [2000 + v for v in (0, 1, 2, 3, 100, 102, 200)]
    assert cache.get_mask_sizes(2, 0) == (9, 0)


def _sliding():
    model = shared("mistral")
    return DynamicCache(config=model.config), model.config.sliding_window


def test_a_sliding_layer_lets_go_of_what_no_later_row_can_see():
    given, window = _sliding()
    assert isinstance(given.layers[0], DynamicSlidingWindowLayer)
    cache = SlotCache(given, 1)
    _update(cache, 0, 20)
    cache.prompt_read()
    kept = list(range(20))
    for step in range(300):
        _update(cache, 1000 + 10 * step, 3)
        path = [[0], [0, 2], [0, 1, 2]][step % 3]
        cache.keep(0, path)
        kept += [1000 + 10 * step + row for row in path]
        layer = cache.layers[0]
        assert cache.lengths == [len(kept)]
        assert layer.start <= len(kept) - window + 1
        assert _held(cache) == kept[layer.start :]
        assert cache.get_mask_sizes(3, 0) == (len(kept) + 3 - layer.start, layer.start)
    assert layer.keys.shape[-2] < 400
    assert layer.start > 400


def test_a_sliding_layer_keeps_what_the_slowest_row_needs():
    given, window = _sliding()
    cache = SlotCache(given, 2)
    _update(cache, 0, 4, 2)
    cache.prompt_read()
    for step in range(200):
        _update(cache, 10 + step, 1, 2)
        cache.keep(0, [0])
        if step % 50 == 0:
            cache.keep(1, [0])
    assert cache.lengths == [204, 8]
    assert cache.layers[0].start <= 8 - window + 1


@pytest.mark.parametrize("steps", [1, 5, 100])
def test_what_is_handed_back_is_what_plain_generation_leaves(steps):
    given, window = _sliding()
    plain = DynamicCache(config=shared("mistral").config)
    cache = SlotCache(given, 1)
    _update(cache, 0, 6)
    _update(plain, 0, 6)
    cache.prompt_read()
    for step in range(steps):
        _update(cache, 10 + step, 4)
        cache.keep(0, [0])
        _update(plain, 10 + step, 1)
    returned = cache.give_back()
    assert returned is given
    assert given.get_seq_length() == plain.get_seq_length() == 6 + steps
    for mine, right in zip(given.layers, plain.layers, strict=True):
        assert type(mine) is type(right)
        rows_held = min(mine.keys.shape[-2], window - 1)
        assert torch.equal(mine.keys[:, :, -rows_held:], right.keys[:, :, -rows_held:])
        assert torch.equal(mine.values[:, :, -rows_held:], right.values[:, :, -rows_held:])


def test_nothing_is_changed_before_it_is_handed_back():
    given = DynamicCache()
    _update(given, 0, 3)
    cache = SlotCache(given, 1)
    _update(cache, 3, 2)
    cache.prompt_read()
    _update(cache, 5, 4)
    cache.keep(0, [0, 3])
    assert given.get_seq_length() == 3
    assert given.layers[0].keys[0, 0, :, 0].tolist() == [0, 1, 2]
    assert cache.give_back().layers[0].keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 5, 8]
    assert given.layers[0].keys.is_contiguous()


def test_what_is_handed_back_goes_on_growing():
    given = DynamicCache()
    cache = SlotCache(given, 1)
    _update(cache, 0, 3)
    cache.prompt_read()
    _update(cache, 3, 2)
    cache.keep(0, [0])
    cache.give_back()
    _update(given, 9, 1)
    assert given.layers[1].values[0, 0, :, 0].tolist() == [v + 0.75 for v in (0, 1, 2, 3, 9)]


def test_a_filled_cache_is_gone_on_from():
    given = DynamicCache()
    _update(given, 0, 5)
    cache = SlotCache(given, 1)
    assert cache.get_seq_length() == 5
    _update(cache, 5, 1)
    cache.prompt_read()
    assert _held(cache) == [0, 1, 2, 3, 4, 5]


def test_a_filled_sliding_cache_is_gone_on_from():
    given, window = _sliding()
    _update(given, 0, 30)
    cache = SlotCache(given, 1)
    assert cache.get_seq_length() == 30
    _update(cache, 30, 1)
    cache.prompt_read()
    layer = cache.layers[0]
    assert _held(cache) == list(range(31))[layer.start :]
    assert layer.start >= 31 - 2 * window


class _OwnStatic(StaticCache):
    def get_seq_length(self, *_):
        return 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: QuantizedCache("fp8", shared().config),
        type("Mine", (DynamicCache,), {"update": lambda *_: None}),
        lambda: _OwnStatic(config=shared().config, max_cache_len=20),
        lambda: DynamicCache(config=shared().config, offloading=True),
    ],
)
def test_a_cache_of_another_kind_is_refused_by_name(make):
    static = {"config": shared().config, "max_cache_len": 20}
    try:
        given = (
            make(**static) if isinstance(make, type) and issubclass(make, StaticCache) else make()
        )
    except (AssertionError, RuntimeError, ValueError) as error:
        pytest.skip(f"the library cannot make it here: {error}")
    with pytest.raises(UnsupportedError, match=r"quantised cache|a Mine|a _OwnStatic|offloaded"):
        SlotCache(given, 1)


def test_a_copy_of_a_layer_belongs_to_the_same_sequences():
    """Dory runs layers several times, and appends copies of them to the cache that it is given."""
    cache = SlotCache(DynamicCache(), 1)
    _update(cache, 0, 4)
    cache.layers.append(copy.deepcopy(cache.layers[1]))
    cache.prompt_read()
    for layer in range(3):
        new = rows(100, 5, 1, layer)
        cache.update(new, new, layer)
    cache.keep(0, [0, 2])
    assert [one.get_seq_length() for one in cache.layers] == [6, 6, 6]
    assert _held(cache, layer=2) == [0.25, 1.25, 2.25, 3.25, 100.5, 102.5]
