"""The draft tree: tokens, parents, ancestors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead import DraftTree, TreeError
from lookahead.tree import ROOT


@st.composite
def parent_arrays(draw):
    size = draw(st.integers(1, 24))
    return [0, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


def _tree(parents, tokens=None):
    return DraftTree.from_parents(tokens or list(range(len(parents))), parents)


def test_an_empty_tree_has_a_root_and_no_nodes():
    tree = DraftTree.only_root(7)
    assert len(tree) == 0
    assert tree.tokens.tolist() == [7]
    assert tree.child(ROOT, 7) is None
    assert tree.ancestors().tolist() == [[True]]


def test_guesses_that_begin_alike_share_their_first_nodes():
    tree = DraftTree.from_paths(9, [[1, 2, 3], [1, 2, 4], [5], [1]])
    assert tree.tokens.tolist() == [9, 1, 2, 3, 4, 5]
    assert tree.parents.tolist() == [0, 0, 1, 2, 2, 0]
    assert tree.depths.tolist() == [0, 1, 2, 3, 3, 1]


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8))
def test_paths_go_in_and_come_out(paths):
    tree = DraftTree.from_paths(0, paths)
    found = {tuple(int(tree.tokens[n]) for n in tree.path(node)) for node in range(len(tree) + 1)}
    expected = {tuple(path[:n]) for path in [*paths, []] for n in range(len(path) + 1)}
    assert found == expected
    assert len(tree) == len(expected) - 1
    for path in paths:
        node = ROOT
        for token in path:
            node = tree.child(node, token)
            assert node is not None


@given(parent_arrays())
def test_ancestors_are_what_following_the_parents_finds(parents):
    tree = _tree(parents)
    seen = tree.ancestors()
    for node in range(len(parents)):
        ancestors, at = {node}, node
        while at != ROOT:
            at = parents[at]
            ancestors.add(at)
        assert set(np.flatnonzero(seen[node]).tolist()) == ancestors
        assert tree.depths[node] == len(ancestors) - 1
        assert [ROOT, *tree.path(node)] == sorted(ancestors)


@given(parent_arrays())
def test_children_are_the_inverse_of_parents(parents):
    tree = _tree(parents)
    for node in range(len(parents)):
        assert tree.children(node) == [n for n in range(1, len(parents)) if parents[n] == node]
        for child in tree.children(node):
            assert tree.child(node, int(tree.tokens[child])) == child


def test_of_two_siblings_with_one_token_the_first_is_found():
    tree = DraftTree.from_parents([0, 5, 5, 6], [0, 0, 0, 2])
    assert tree.child(ROOT, 5) == 1
    assert tree.child(1, 6) is None


@pytest.mark.parametrize("parents", [[0, 1], [0, 2, 1], [0, -1], [0, 0, 5]])
def test_a_parent_that_does_not_stand_before_its_child_is_refused(parents):
    with pytest.raises(TreeError, match="must be a node before it"):
        _tree(parents)
    size = len(parents)
    with pytest.raises(TreeError, match="must be a node before it"):
        DraftTree(np.arange(size), np.array(parents), np.zeros(size), np.ones(size, np.float32))


def test_arrays_of_different_lengths_are_refused():
    ones = np.ones(3, np.float32)
    with pytest.raises(TreeError, match="as many tokens as parents"):
        DraftTree(np.arange(3), np.zeros(2, np.int64), np.zeros(3, np.int64), ones)
    with pytest.raises(TreeError):
        DraftTree(np.arange(0), np.zeros(0), np.zeros(0), np.ones(0, np.float32))
    with pytest.raises(TreeError):
        DraftTree.from_parents([1, 2, 3], [0, 0])
    with pytest.raises(TreeError):
        DraftTree.from_parents([], [])
    with pytest.raises(TreeError):
        DraftTree(np.arange(3), np.zeros(3, np.int64), np.zeros(3, np.int64), ones[:2])


def test_a_tree_error_is_a_value_error():
    assert issubclass(TreeError, ValueError)
