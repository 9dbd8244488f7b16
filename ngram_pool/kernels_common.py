"""How kernels are compiled, and open addressing on pairs of integers.

Entry points have explicit signatures and numba's on-disk cache; helpers are compiled into them.
Numba does not notice when a helper in another file changes: `ready.py` clears the cache whenever
any file of the package did.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core.options import DefaultOptions
from numba.extending import register_jitable

from ngram_pool import features
from ngram_pool.layout import Int32Array

__all__: list[str] = []

_F = TypeVar("_F", bound=Callable[..., Any])

INT64 = "i8[::1]"
INT32 = "i4[::1]"
FLOAT32 = "f4[::1]"
INT32_2D = "i4[:,::1]"
INT64_2D = "i8[:,::1]"
FLOAT32_2D = "f4[:,::1]"

_MASK = 2**63 - 1
_MIX = (0x1E3779B97F4A7C15, 0x42B2AE3D27D4EB4F, 0x165667B19E3779F9)


# Numba counts a reference whenever an array is taken out of a tuple, which would be most of the
# time of a growing tree. Helpers neither make nor keep arrays, so they do without, as numba's own
# sorting does. Nor are they called from Python, which saves a third of the time to compile. These
# options are numba's own affair: where one is missing, helpers are merely slower.
_HELPER_OPTIONS: dict[str, Any] = {
    name: value
    for name, value in {
        "_nrt": False,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }.items()
    if hasattr(DefaultOptions, name)
}


def helper(function: _F) -> _F:
    """Compile on first use inside an entry point; the function must not make arrays."""
    return cast("_F", numba.njit(nogil=True, error_model="numpy", **_HELPER_OPTIONS)(function))


def allocator(function: _F) -> _F:
    """Compile on first use inside an entry point; the function may make arrays."""
    return cast("_F", numba.njit(nogil=True, error_model="numpy")(function))


def entry(signatures: str | list[str]) -> Callable[[_F], _F]:
    """Compile now, or load from the disk cache."""

    def decorate(function: _F) -> _F:
        compiled = numba.njit(signatures, cache=True, nogil=True, error_model="numpy")(function)
        return cast("_F", compiled)

    return decorate


# The functions of features.py stay plain Python; this lets kernels call them too.
for _name in (
    "length_bucket",
    "share_bucket",
    "probability_bucket",
    "rank_bucket",
    "ngram_others",
    "recycled_others",
    "ngram_feature",
    "recycled_feature",
    "offer_feature",
    "hidden_bucket",
    "head_feature",
    "head_others",
    "exit_feature",
    "exit_others",
    "rate",
    "clip",
    "race_speed",
    "race_won",
    "drawn_alone",
    "joint_rate",
):
    register_jitable(getattr(features, _name))


@helper
def _hash(first: int, second: int, mask: int) -> int:
    # Kept within 63 bits, so that wrapping int64 and Python's long integers agree.
    h = ((int(first) * _MIX[0]) ^ (int(second) * _MIX[1])) & _MASK
    h = ((h ^ (h >> 31)) * _MIX[2]) & _MASK
    return (h ^ (h >> 29)) & mask


@helper
def _find(keys: Int32Array, slots: Int32Array, first: int, second: int) -> int:
    """Return the number of the entry with that key; 0 if there is none."""
    mask = slots.size - 1
    slot = _hash(first, second, mask)
    while True:
        entry_number = slots[slot]
        if entry_number == 0:
            return 0
        if keys[entry_number, 0] == first and keys[entry_number, 1] == second:
            return int(entry_number)
        slot = (slot + 1) & mask


@helper
def _insert(keys: Int32Array, slots: Int32Array, number: int) -> None:
    """Enter an entry whose key is not in the table yet."""
    mask = slots.size - 1
    slot = _hash(keys[number, 0], keys[number, 1], mask)
    while slots[slot] != 0:
        slot = (slot + 1) & mask
    slots[slot] = number


@helper
def _delete(keys: Int32Array, slots: Int32Array, number: int) -> None:
    """Take an entry out and close the gap by shifting back what probed past it."""
    mask = slots.size - 1
    gap = _hash(keys[number, 0], keys[number, 1], mask)
    while slots[gap] != number:
        gap = (gap + 1) & mask
    slot = gap
    while True:
        slot = (slot + 1) & mask
        other = slots[slot]
        if other == 0:
            break
        home = _hash(keys[other, 0], keys[other, 1], mask)
        # Movable if its home does not lie behind the gap, seen along the probe.
        if ((slot - home) & mask) >= ((slot - gap) & mask):
            slots[gap] = other
            gap = slot
    slots[gap] = 0


@entry(f"void({INT32_2D}, {INT32}, i8)")
def _fill_slots(keys: Int32Array, slots: Int32Array, last: int) -> None:
    """Enter entries 1 to `last` into an empty table."""
    for number in range(1, last + 1):
        _insert(keys, slots, number)
