"""The largest logits of a row and their softmax probabilities, in two passes over memory.

The first pass skips a block of logits at a time by its maximum, the second sums exponentials; both
are written so that LLVM turns them into vector code, which is why maxima are taken on integers and
the exponential is spelled out.
"""

from typing import Final

import numba
import numpy as np

from ngram_pool.kernels_common import FLOAT32_2D, INT32_2D, entry, helper
from ngram_pool.layout import NONE, Float32Array, Int32Array

__all__: list[str] = []

BLOCK: Final = 256
LARGEST: Final = np.float32(3.4028235e38)
SMALLEST_EXPONENT: Final = np.float32(-87.0)
LOG2_E: Final = np.float32(1.4426950408889634)
HALF: Final = np.float32(0.5)
ONE: Final = np.float32(1.0)
INFINITY_BITS: Final = np.int32(0x7F800000)
MAGNITUDE: Final = np.int32(0x7FFFFFFF)
LOWEST_KEY: Final = np.int32(-(2**31))

# 2**f for -0.5 <= f <= 0.5, Taylor coefficients ln(2)**n / n!; relative error below 2e-7.
C1: Final = np.float32(0.6931471805599453)
C2: Final = np.float32(0.2402265069591007)
C3: Final = np.float32(0.05550410866482158)
C4: Final = np.float32(0.009618129107628477)
C5: Final = np.float32(0.0013333558146428443)
C6: Final = np.float32(0.0001540353039338161)


@helper
def _key(bits: np.int32) -> np.int32:
    """Order the bits of floats as integers; NaN comes below everything."""
    key = np.int32(bits ^ ((bits >> np.int32(31)) & MAGNITUDE))
    return LOWEST_KEY if key > INFINITY_BITS else key


@helper
def _block_key(bits: Int32Array) -> np.int32:
    largest = LOWEST_KEY
    for i in range(bits.size):
        largest = max(largest, _key(bits[i]))
    return largest


@helper
def _top(row: Float32Array, bits: Int32Array, tokens: Int32Array, values: Float32Array) -> None:
    """Find the largest logits, the lower id first among equals; -inf and NaN are left out."""
    width = tokens.size
    for rank in range(width):
        tokens[rank] = NONE
        values[rank] = -np.inf
    for start in range(0, row.size, BLOCK):
        stop = min(start + BLOCK, row.size)
        threshold = _key(values[width - 1 :].view(np.int32)[0])
        if _block_key(bits[start:stop]) <= threshold:
            continue
        for i in range(start, stop):
            if row[i] > values[width - 1]:
                rank = width - 1
                while rank > 0 and values[rank - 1] < row[i]:
                    values[rank] = values[rank - 1]
                    tokens[rank] = tokens[rank - 1]
                    rank -= 1
                values[rank] = row[i]
                tokens[rank] = i


@numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _sum_of_exponentials(row: Float32Array, largest: np.float32) -> np.float32:
    """Sum exp(row - largest), largest finite."""
    total = np.float32(0.0)
    for i in range(row.size):
        x = row[i] if row[i] < LARGEST else LARGEST  # +inf and NaN, the latter caught below
        x = x - largest if row[i] == row[i] else SMALLEST_EXPONENT
        x = x if x > SMALLEST_EXPONENT else SMALLEST_EXPONENT
        power = x * LOG2_E
        whole = np.int32(power - HALF)  # rounds to nearest: power is not positive
        f = power - np.float32(whole)
        y = C6 * f + C5
        y = y * f + C4
        y = y * f + C3
        y = y * f + C2
        y = y * f + C1
        y = y * f + ONE
        total += y * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)
    return total


@entry(f"void({FLOAT32_2D}, {INT32_2D}, {FLOAT32_2D})")
def _top_rows(logits: Float32Array, tokens: Int32Array, probs: Float32Array) -> None:
    """Fill tokens and probs, [rows, k] each; places beyond the finite logits become NONE and 0."""
    for i in range(logits.shape[0]):
        row, out = logits[i], probs[i]
        _top(row, row.view(np.int32), tokens[i], out)
        if tokens[i, 0] == NONE:
            out[:] = 0.0
            continue
        largest = min(out[0], LARGEST)
        total = _sum_of_exponentials(row, largest)
        for rank in range(out.size):
            if tokens[i, rank] == NONE:
                out[rank] = 0.0
            else:
                out[rank] = np.exp(min(out[rank], LARGEST) - largest) / total
