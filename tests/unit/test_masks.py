"""The mask rule, against sets of ancestors, for any tree and any lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from lookahead import DraftTree, UnsupportedError
from lookahead.hf import masks
from lookahead.hf.early import Corner
from lookahead.hf.target import HFTarget


def _window(size):
    """The library's rule for a sliding window."""

    def rule(batch, head, query, key):
        return (key <= query) & (key > query - size)

    return rule


@st.composite
def situations(draw):
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        nodes = draw(st.integers(0, 7))
        parents = [0, *(draw(st.integers(0, n - 1)) for n in range(1, nodes + 1))]
        padding = draw(st.integers(0, 3))
        rows.append((draw(st.integers(padding + 1, 9)), padding, parents))
    return rows, draw(st.sampled_from([None, 1, 2, 3, 5]))


@given(situations())
@settings(max_examples=150, deadline=None)
def test_a_row_sees_its_own_ancestors_and_the_live_context_and_nothing_else(situation):
    rows, window = situation
    trees = [DraftTree.from_parents(list(range(len(p))), p) for _, _, p in rows]
    num_rows = max(len(p) for _, _, p in rows)
    lengths = [length for length, _, _ in rows]
    prompt = min(lengths)
    target = object.__new__(HFTarget)
    target._cache = type("Lengths", (), {"lengths": lengths, "window": None})()
    target._input_ids = torch.zeros((len(rows), 1))
    live = torch.ones((len(rows), prompt), dtype=torch.bool)
    for row, (_, padding, _) in enumerate(rows):
        live[row, : min(padding, prompt)] = False
    target._live_prompt = live
    depths = np.zeros((len(rows), num_rows), dtype=np.int64)
    for row, tree in enumerate(trees):
        depths[row, : len(tree) + 1] = tree.depths
    corners = [Corner(tree.ancestors(), tree.depths) for tree in trees]
    visibility = target._visibility(corners, depths, num_rows)
    rule = masks._tree_rule(causal_mask_function if window is None else _window(window), visibility)
    past = max(lengths)
    for row, (length, padding, parents) in enumerate(rows):
        for node in range(len(parents)):
            ancestors, at = {node}, node
            while at:
                at = parents[at]
                ancestors.add(at)
            depth = len(ancestors) - 1
            for key in range(past + num_rows):
                seen = bool(rule(*map(torch.tensor, (row, 0, past + node, key))))
                if key < length:
                    expected = key >= min(padding, prompt)
                    distance = length + depth - key
                elif key < length + len(parents):
                    expected = key - length in ancestors
                    distance = depth - int(depths[row, key - length]) if expected else 0
                else:
                    expected, distance = False, 0
                if window is not None:
                    expected = expected and distance < window
                assert seen == expected, (row, node, key)


def test_no_row_of_a_pass_sees_nothing():
    """A row that sees nothing gives NaN, which a product carries on."""
    root = DraftTree.only_root(1)
    corners = [Corner(root.ancestors(), root.depths), None]
    target = object.__new__(HFTarget)
    target._cache = type("Lengths", (), {"lengths": [3, 5], "window": None})()
    target._input_ids = torch.zeros((2, 1))
    target._live_prompt = None
    visibility = target._visibility(corners, np.zeros((2, 4), dtype=np.int64), 4)
    assert visibility.may_see.any(-1).all()


def test_the_hook_is_put_in_once_and_delegates():
    masks.install()
    registry = AttentionMaskInterface._global_mapping
    hooks = {name: registry[name] for name in masks.SUPPORTED}
    masks.install()
    assert all(registry[name] is hook for name, hook in hooks.items())
    for hook in hooks.values():
        assert not hasattr(hook.lookahead_original, "lookahead_original")
    options = {
        "batch_size": 1,
        "q_length": 3,
        "kv_length": 3,
        "q_offset": 0,
        "kv_offset": 0,
        "mask_function": causal_mask_function,
        "attention_mask": None,
        "allow_is_causal_skip": False,
        "dtype": torch.float32,
        "device": "cpu",
    }
    for hook in hooks.values():
        one, other = hook(**options), hook.lookahead_original(**options)
        assert torch.equal(one, other)


def test_a_mask_made_in_an_unknown_way_is_refused_while_a_tree_is_active():
    masks.install()
    hook = AttentionMaskInterface._global_mapping["sdpa"]
    visibility = masks.Visibility(torch.ones(1, 1, 1), torch.zeros(1, 1), torch.zeros(1, 1))
    with masks.tree_attention(visibility), pytest.raises(UnsupportedError, match="a tree cannot"):
        hook(1, 2, 3)
    assert masks._active.get() is None


def test_the_block_ends_where_an_exception_leaves_it():
    visibility = masks.Visibility(torch.ones(1, 1, 1), torch.zeros(1, 1), torch.zeros(1, 1))
    with pytest.raises(KeyError), masks.tree_attention(visibility):  # noqa: PT012
        with masks.tree_attention(visibility):
            pass
        assert masks._active.get() is visibility
        raise KeyError
    assert masks._active.get() is None
