"""Kernels run as plain Python, where every index is checked and integers do not wrap silently."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import ngram_pool

ROOT = str(Path(ngram_pool.__file__).parents[1])

PLAIN = """
import sys, warnings
import numpy as np
import ngram_pool
from ngram_pool import kernels, ready
from tests.ngram_pool.oracles import assert_same_proposal, random_offers
assert not hasattr(kernels._propose, "py_func")
ready._readiness.kernels = kernels
rng = np.random.default_rng(0)
fast = ngram_pool.NgramPool(max_tokens=90, max_rows=30)
slow = ngram_pool.DictPool(max_tokens=90, max_rows=30)
for step in range(25):
    text = rng.integers(0, 5, 9)
    batch = (rng.integers(-1, 5, 4), rng.integers(0, 5, 4), rng.integers(-1, 6, (4, 8)),
             rng.random((4, 8), np.float32))
    offers = random_offers(rng, step % 8)
    for pool in (fast, slow):
        pool.extend(text)
        pool.recycle(*batch)
    costs = np.linspace(1, 3, 13, dtype=np.float32) if step % 2 else None
    noise = rng.exponential(size=(step % 4, 3 + step % 3)) if step % 3 else None
    proposal = fast.propose(12, offers=offers, costs=costs, noise=noise)
    assert_same_proposal(proposal, slow.propose(12, offers=offers, costs=costs, noise=noise))
    for pool in (fast, slow):
        pool.learn(proposal, [0], [2])
    assert fast.stats()[:3] == slow.stats()[:3]
logits = rng.normal(0, 3, (2, 600)).astype(np.float32)
tokens, probs = ngram_pool.top_rows(logits)
from ngram_pool.top import _top_rows
wanted, wanted_probs = _top_rows(logits, 8)
np.testing.assert_array_equal(tokens, wanted)
np.testing.assert_allclose(probs, wanted_probs, rtol=1e-4)
print("same")
"""


def test_kernels_as_plain_python_agree_with_the_reference():
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLAIN],
        env=os.environ | {"PYTHONPATH": ROOT, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout.strip() == "same", result.stderr


def wrapped(helper):
    """Make a helper callable from Python."""
    return numba.njit(lambda *arguments: helper(*arguments))  # noqa: PLW0108


def test_hash_of_a_pair_is_the_same_compiled_and_plain():
    from ngram_pool.kernels_common import _hash as helper

    _hash = wrapped(helper)
    rng = np.random.default_rng(0)
    for first, second in rng.integers(-1, 2**31 - 1, (50, 2)).tolist():
        assert _hash(first, second, 4095) == helper.py_func(first, second, 4095)


@pytest.mark.parametrize("size", [16, 64])
def test_open_addressing_survives_any_order_of_deletions(size):
    from ngram_pool import kernels_common as common

    helpers = common._delete, common._find, common._insert
    _delete, _find, _insert = (wrapped(helper) for helper in helpers)
    rng = np.random.default_rng(size)
    used = size * 2 // 3
    keys = np.zeros((used + 1, 2), np.int32)
    slots = np.zeros(size, np.int32)
    known = {}
    for step in range(600):
        number = int(rng.integers(1, used + 1))
        if number in known:
            _delete(keys, slots, number)
            del known[number]
        else:
            keys[number] = (step, int(rng.integers(0, 5)))
            _insert(keys, slots, number)
            known[number] = tuple(keys[number].tolist())
        for other, key in known.items():
            assert _find(keys, slots, *key) == other
        assert np.count_nonzero(slots) == len(known)
        assert _find(keys, slots, 10_000, 1) == 0
