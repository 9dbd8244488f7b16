"""Products of a few rows with a matrix: each row of the matrix is read once, for all of them.

Sums are written one by one, so that LLVM keeps them in registers and makes vector code of the loop.
A matrix of 16 bits holds the upper halves of float32 numbers, which is what bfloat16 is: it is
widened by a shift, on any processor.
"""

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from numba import types
from numba.extending import overload

from ngram_pool.kernels_common import FLOAT32_2D, entry
from ngram_pool.layout import Float32Array

__all__: list[str] = []

UINT16_2D: Final = "u2[:,::1]"

_summing = numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


def _wide(number: Any) -> Any:
    """Return a number of the matrix as a float32."""


@overload(_wide, strict=False)
def _wide_of_type(number: Any) -> Callable[..., Any]:
    if number == types.uint16:
        return lambda number: np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)
    return lambda number: number


@_summing
def _one(line: Any, x: Float32Array) -> np.float32:
    a = np.float32(0.0)
    for k in range(line.size):
        a += _wide(line[k]) * x[k]
    return a


@_summing
def _two(line: Any, x: Float32Array, y: Float32Array) -> tuple[np.float32, np.float32]:
    a = b = np.float32(0.0)
    for k in range(line.size):
        number = _wide(line[k])
        a += number * x[k]
        b += number * y[k]
    return a, b


@_summing
def _four(
    line: Any, x: Float32Array, y: Float32Array, z: Float32Array, u: Float32Array
) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    a = b = c = d = np.float32(0.0)
    for k in range(line.size):
        number = _wide(line[k])
        a += number * x[k]
        b += number * y[k]
        c += number * z[k]
        d += number * u[k]
    return a, b, c, d


@entry([f"void({FLOAT32_2D}, {matrix}, {FLOAT32_2D})" for matrix in (FLOAT32_2D, UINT16_2D)])
def _products(rows: Float32Array, matrix: Any, found: Float32Array) -> None:
    """Fill found, [rows, lines], with the product of each row and each line of the matrix."""
    for n in range(matrix.shape[0]):
        line, i = matrix[n], 0
        while i + 4 <= rows.shape[0]:
            sums = _four(line, rows[i], rows[i + 1], rows[i + 2], rows[i + 3])
            found[i, n], found[i + 1, n], found[i + 2, n], found[i + 3, n] = sums
            i += 4
        if i + 2 <= rows.shape[0]:
            found[i, n], found[i + 1, n] = _two(line, rows[i], rows[i + 1])
            i += 2
        if i < rows.shape[0]:
            found[i, n] = _one(line, rows[i])
