"""products: a few rows by a matrix, for readers of candidates who hold hidden states."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngram_pool import ready
from ngram_pool.checks import plain
from ngram_pool.layout import Float32Array

__all__ = ["products"]


def products(rows: ArrayLike, matrix: NDArray[Any]) -> Float32Array:
    """Return ``rows @ matrix.T``.

    Parameters
    ----------
    rows : array, float32, [rows, in]
        A few: up to eight are as fast as memory.
    matrix : array, float32 or uint16, [out, in]
        C-contiguous. Of uint16, the bits of bfloat16 numbers.

    Returns
    -------
    array, float32, [rows, out]

    Raises
    ------
    ValueError
        If shapes do not fit, or the matrix is of another type.

    Examples
    --------
    >>> import numpy as np
    >>> import ngram_pool
    >>> ngram_pool.products([[1.0, 2.0]], np.array([[3.0, 4.0], [5.0, 6.0]], np.float32)).tolist()
    [[11.0, 17.0]]
    """
    given = plain(rows, np.float32)
    is_matrix = matrix.ndim == 2 and matrix.dtype in (np.float32, np.uint16)
    if not is_matrix or given.ndim != 2 or given.shape[1] != matrix.shape[1]:
        raise ValueError(
            "Expected rows [rows, in] and a matrix [out, in] of float32 or uint16, received "
            f"{given.shape} and {matrix.shape} of {matrix.dtype}."
        )
    kernels = ready.ready_kernels()
    if kernels is None or not matrix.flags.c_contiguous:
        found: Float32Array = given @ _as_float32(matrix).T
        return found
    found = np.empty((len(given), len(matrix)), np.float32)
    kernels._products(given, matrix, found)
    return found


def _as_float32(matrix: NDArray[Any]) -> Float32Array:
    if matrix.dtype == np.float32:
        return matrix
    return (matrix.astype(np.uint32) << np.uint32(16)).view(np.float32)
