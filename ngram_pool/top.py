"""top_rows: the largest logits of each row as tokens and probabilities."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngram_pool import ready
from ngram_pool.checks import plain
from ngram_pool.layout import NONE, ROW_WIDTH, Float32Array, Int32Array

__all__ = ["top_rows"]


def top_rows(logits: ArrayLike, k: int = ROW_WIDTH) -> tuple[Int32Array, Float32Array]:
    """Find the k largest logits of each row and their softmax probabilities.

    Parameters
    ----------
    logits : array, float32, [rows, vocab]
        May hold -inf and NaN, which are never among the largest and weigh nothing.
    k : int
        How many.

    Returns
    -------
    tokens : array, int32, [rows, k]
        Largest first, the lower id first among equals; -1 where there are no more.
    probs : array, float32, [rows, k]
        Their probabilities over the whole vocabulary; 0 where there are no more.

    Raises
    ------
    ValueError
        If ``logits`` does not have two axes or ``k`` is below 1.

    Examples
    --------
    >>> import ngram_pool
    >>> tokens, probs = ngram_pool.top_rows([[0.0, 2.0, 1.0]], k=2)
    >>> tokens.tolist(), probs.round(3).tolist()
    ([[1, 2]], [[0.6650000214576721, 0.24500000476837158]])
    """
    rows = plain(logits, np.float32)
    if rows.ndim != 2 or k < 1:
        raise ValueError(
            f"Expected logits of shape [rows, vocab] and k from 1, received {rows.shape} and {k}."
        )
    kernels = ready.ready_kernels()
    if kernels is None:
        return _top_rows(rows, k)
    tokens: NDArray[Any] = np.empty((len(rows), k), np.int32)
    probs: NDArray[Any] = np.empty((len(rows), k), np.float32)
    kernels._top_rows(rows, tokens, probs)
    return tokens, probs


def _top_rows(logits: Float32Array, k: int) -> tuple[Int32Array, Float32Array]:
    """Do the same without kernels."""
    tokens = np.full((len(logits), k), NONE, np.int32)
    probs = np.zeros((len(logits), k), np.float32)
    width = min(k, logits.shape[1])
    if not width:
        return tokens, probs
    largest = np.finfo(np.float32).max
    values = np.where(np.isnan(logits), -np.inf, np.minimum(logits, largest))
    for i, row in enumerate(values):
        threshold = np.partition(row, -width)[-width]
        above = np.flatnonzero(row >= threshold)
        order = above[np.argsort(-row[above], kind="stable")][:width]
        order = order[row[order] > -np.inf]
        if order.size:
            weights = np.exp(row - row[order[0]], dtype=np.float32)
            tokens[i, : order.size] = order
            probs[i, : order.size] = weights[order] / weights.sum()
    return tokens, probs
