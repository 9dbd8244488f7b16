"""Checks of arguments, shared by both pools: every refusal says what was expected and what came."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngram_pool.layout import MAX_TOKEN, Float32Array, Int64Array

__all__ = ["Limits", "RowBatch", "bad_token", "check_limits", "plain", "row_batch", "token_array"]

NO_COSTS: Float32Array = np.empty(0, np.float32)
NO_NOISE: Float32Array = np.empty((0, 0), np.float32)


class RowBatch(NamedTuple):
    """Recycled rows, checked."""

    previous: Int64Array  # [rows], -1 where unknown
    tokens: Int64Array  # [rows]
    top_tokens: Int64Array  # [rows, any width]
    top_probs: Float32Array  # [rows, the same width]


class Limits(NamedTuple):
    """How far a tree may grow."""

    max_nodes: int
    max_depth: int
    min_probability: float
    costs: Float32Array  # [max_nodes + 1], or empty: no cut
    trust: float
    noise: Float32Array  # [depths, tokens], both 0 where nothing is drawn


def plain(values: ArrayLike, dtype: type[np.generic]) -> NDArray[Any]:
    """Make an array that kernels take: of that dtype, contiguous, writeable (they write none)."""
    array = np.asarray(values, dtype)
    return array if array.flags.carray else np.array(array, order="C")


def token_array(tokens: object) -> Int64Array:
    """Make a contiguous int64 array of a list or array of integers; the range is checked elsewhere.

    Raises
    ------
    ValueError
        If it is not one-dimensional or does not hold integers.
    """
    array = np.asarray(tokens)
    if array.ndim == 1:
        if array.dtype.kind in "iu":
            return plain(array, np.int64)
        if not array.size:
            return np.empty(0, np.int64)
    raise ValueError(
        "Expected a one-dimensional list or array of integer tokens, "
        f"received dtype {array.dtype} and shape {array.shape}."
    )


def bad_token(tokens: object, place: int) -> ValueError:
    """Describe the token at `place`, which is out of range."""
    value = np.asarray(tokens).reshape(-1)[place]
    return ValueError(f"Expected tokens from 0 to {MAX_TOKEN}, received {value} at place {place}.")


def row_batch(
    previous: ArrayLike, tokens: ArrayLike, top_tokens: ArrayLike, top_probs: ArrayLike
) -> RowBatch:
    """Check the arguments of ``recycle``.

    Raises
    ------
    ValueError
        If shapes do not fit one another or a key is not a token.
    """
    before = token_array(previous)
    last = token_array(tokens)
    wanted = np.asarray(top_tokens)
    probs = plain(top_probs, np.float32)
    fits = wanted.ndim == 2 and wanted.shape == probs.shape
    if not (fits and len(wanted) == len(last) == len(before) and wanted.dtype.kind in "iu"):
        raise ValueError(
            "Expected previous [n], tokens [n], integer top_tokens [n, k] and top_probs [n, k]; "
            f"received {before.shape}, {last.shape}, {wanted.dtype} {wanted.shape}, {probs.shape}."
        )
    if last.size:
        if last.min() < 0 or last.max() > MAX_TOKEN:
            raise bad_token(last, int(np.argmax((last < 0) | (last > MAX_TOKEN))))
        if before.min() < -1 or before.max() > MAX_TOKEN:
            raise ValueError(
                "Expected previous tokens from 0, or -1 where unknown, "
                f"received values from {before.min()} to {before.max()}."
            )
    return RowBatch(before, last, plain(wanted, np.int64), probs)


def check_limits(
    max_nodes: int,
    max_depth: int,
    min_probability: float,
    costs: ArrayLike | None,
    trust: float = 1.0,
    noise: ArrayLike | None = None,
) -> Limits:
    """Check the numeric arguments of ``propose``.

    Raises
    ------
    ValueError
        If one is negative, ``trust`` is above 1, ``costs`` is too short or not above 0, or
        ``noise`` has no rows of tokens.
    """
    if max_nodes < 0 or max_depth < 0 or not min_probability >= 0.0:
        raise ValueError(
            "Expected max_nodes, max_depth and min_probability from 0, "
            f"received {max_nodes}, {max_depth} and {min_probability}."
        )
    if not 0.0 <= trust <= 1.0:
        raise ValueError(f"Expected trust from 0 to 1, received {trust}.")
    draws = NO_NOISE if noise is None else plain(noise, np.float32)
    if draws.ndim != 2:
        raise ValueError(f"Expected noise as [depths, tokens], received shape {draws.shape}.")
    if costs is None:
        return Limits(max_nodes, max_depth, min_probability, NO_COSTS, trust, draws)
    times = plain(costs, np.float32)
    # Written so that NaN is refused as well.
    if times.ndim != 1 or times.size <= max_nodes or not times.min() > 0.0:
        raise ValueError(
            f"Expected costs above 0 for 0 to {max_nodes} nodes, received shape {times.shape}"
            + (f" with a minimum of {times.min()}." if times.size else ".")
        )
    return Limits(max_nodes, max_depth, min_probability, times, trust, draws)


def check_sizes(max_tokens: int, max_rows: int) -> None:
    """Check the arguments of a pool's constructor.

    Raises
    ------
    ValueError
        If a bound is too small to work with.
    """
    if max_tokens < 2 or max_rows < 2:
        raise ValueError(
            f"Expected max_tokens and max_rows of at least 2, received {max_tokens} and {max_rows}."
        )


def tokens_after(kept: int, added: int, max_tokens: int) -> int:
    """How many of `kept + added` tokens remain if every overflow keeps the most recent half.

    Independent of how the added tokens are grouped into calls.
    """
    if kept + added <= max_tokens:
        return kept + added
    half = max_tokens // 2
    left = kept + added - (max_tokens + 1)  # tokens that come after the first overflow
    return half + left % (max_tokens + 1 - half)


def first_bad(tokens: Sequence[int]) -> int | None:
    """Place of the first token out of range, or None."""
    for place, token in enumerate(tokens):
        if not 0 <= token <= MAX_TOKEN:
            return place
    return None
