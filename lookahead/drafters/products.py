"""Products of a few rows with a matrix, as guesses need them: fast, and good to a few digits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

import ngram_pool

__all__ = [
    "ROWS",
    "FixedMatrix",
    "dtype_of_guesses",
    "has_products",
    "packed",
    "products",
    "without_autocast",
]

P = ParamSpec("P")
R = TypeVar("R")

#: Rows up to which the compiled kernel is faster than oneDNN's on a processor that has no products
#: of 16 bits, and up to which it is where the matrix would have to be widened first. Where there
#: are such products, this has not been measured.
FEW, FEW_TO_WIDEN = 8, 32

#: Rows that the order of a packed matrix is chosen for: those of a tree.
ROWS = 16


@functools.cache
def has_products(dtype: torch.dtype) -> bool:
    """Say whether this processor and oneDNN multiply in a type without widening it first."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float32:
        return True
    return dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def dtype_of_guesses(device: torch.device) -> torch.dtype:
    """Return in which type matrices that guesses are read from are multiplied fastest there.

    Guesses need no more than 16 bits, and these are half as much to read.
    """
    fast = device.type == "cpu" and (has_products(torch.bfloat16) or ngram_pool.kernels_ready())
    return torch.bfloat16 if fast else torch.float32


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Compute in the types that are written, whatever the model is run with.

    Sums of hidden states need their 32 bits, and operands of different types do not go together.
    """

    @functools.wraps(function)
    def compute(*args: P.args, **kwargs: P.kwargs) -> R:
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        with ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return compute


def products(
    rows: Tensor, matrix: Tensor, bias: Tensor | None = None, *, keeps_shape: bool = True
) -> Tensor:
    """Return ``rows @ matrix.T + bias``, the matrix in the type that it has.

    Parameters
    ----------
    rows : Tensor, float, [rows, in]
        A few; of any type.
    matrix : Tensor, float, [out, in]
        Contiguous.
    bias : Tensor, float, [out], optional
        In the type of the matrix.
    keeps_shape : bool
        Whether there will be many products with matrices of this shape: oneDNN prepares itself
        for each, and keeps that.

    Returns
    -------
    Tensor, float32, [rows, out]
    """
    if matrix.device.type != "cpu" or matrix.dtype not in (torch.float32, torch.bfloat16):
        return torch.nn.functional.linear(rows.to(matrix.dtype), matrix, bias).float()
    few = FEW if matrix.dtype == torch.float32 else FEW_TO_WIDEN
    is_ours = len(rows) <= few and not has_products(torch.bfloat16)
    if is_ours and ngram_pool.kernels_ready():
        found = torch.from_numpy(
            ngram_pool.products(rows.detach().float().numpy(), _numbers(matrix))
        )
        return found if bias is None else found.add_(bias)
    if not has_products(matrix.dtype):
        matrix, bias = matrix.float(), None if bias is None else bias.float()
    rows = rows.to(matrix.dtype)
    if keeps_shape and torch.backends.mkldnn.is_available():
        # Of a few rows, oneDNN's take half the time of torch's own.
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix, bias, "none", [], "")
    else:
        product = torch.nn.functional.linear(rows, matrix, bias)
    return product.float()


def packed(matrix: Tensor) -> Tensor:
    """Return a copy in oneDNN's order for about :data:`ROWS` rows."""
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous(), ROWS)
    return copy


class FixedMatrix:
    """A matrix and a bias that do not change, kept in the order in which products are fastest.

    Parameters
    ----------
    matrix : Tensor, float, [out, in]
        Copied.
    bias : Tensor, float, [out]
    """

    def __init__(self, matrix: Tensor, bias: Tensor) -> None:
        self.shape = matrix.shape
        self._bias = bias
        self._is_packed = (
            matrix.device.type == "cpu"
            and matrix.dtype == torch.bfloat16
            and has_products(torch.bfloat16)
        )
        self._matrix = packed(matrix) if self._is_packed else matrix.contiguous()

    def products(self, rows: Tensor) -> Tensor:
        """Return ``rows @ matrix.T + bias``, float, [rows, in] -> float32, [rows, out]."""
        if not self._is_packed:
            return products(rows, self._matrix, self._bias)
        rows = rows.to(torch.bfloat16)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._matrix, self._bias, "none", [], ""
        )
        return found.float()


def _numbers(matrix: Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.generic]]:
    """Return the numbers of a matrix, those of bfloat16 as their bits."""
    if matrix.dtype == torch.float32:
        return matrix.numpy()
    return matrix.view(torch.int16).numpy().view(np.uint16)
