"""Recycled rows: a ring of rows, found by (previous, token) or by token alone."""

from ngram_pool.kernels_common import (
    FLOAT32_2D,
    INT32,
    INT32_2D,
    INT64,
    INT64_2D,
    _delete,
    _find,
    _insert,
    entry,
    helper,
)
from ngram_pool.layout import (
    MAX_TOKEN,
    NONE,
    NUM_ROWS,
    OLDEST,
    ROW_WIDTH,
    Float32Array,
    Int32Array,
    Int64Array,
    RowArrays,
)

__all__: list[str] = []


@helper
def _row_for(rows: RowArrays, previous: int, token: int, max_rows: int, renew: bool) -> int:
    """Row of a key: its own, a new one, or that of the oldest key, which is forgotten.

    0 if the key has a row that is not to be renewed.
    """
    number = _find(rows.keys, rows.slots, previous, token)
    if number != 0:
        return number if renew else 0
    if rows.header[NUM_ROWS] < max_rows:
        rows.header[NUM_ROWS] += 1
        number = rows.header[NUM_ROWS]
    else:
        number = rows.header[OLDEST]
        rows.header[OLDEST] = number + 1 if number < max_rows else 1
        _delete(rows.keys, rows.slots, number)
    rows.keys[number, 0] = previous
    rows.keys[number, 1] = token
    _insert(rows.keys, rows.slots, number)
    return int(number)


@helper
def _write_row(rows: RowArrays, number: int, tokens: Int64Array, probs: Float32Array) -> None:
    """Copy a row; what is no token or no probability becomes padding. Row 0 is none."""
    if number == 0:
        return
    for rank in range(ROW_WIDTH):
        rows.tokens[number, rank] = NONE
        rows.probs[number, rank] = 0.0
        # Written so that NaN is left out as well.
        if rank < tokens.size and 0 <= tokens[rank] <= MAX_TOKEN and probs[rank] > 0.0:
            rows.tokens[number, rank] = tokens[rank]
            rows.probs[number, rank] = min(probs[rank], 1.0)


@entry(
    f"void({INT64}, {INT32_2D}, {INT32_2D}, {FLOAT32_2D}, {INT32}, i8, b1, "
    f"{INT64}, {INT64}, {INT64_2D}, {FLOAT32_2D})"
)
def _recycle(
    header: Int64Array,
    keys: Int32Array,
    row_tokens: Int32Array,
    row_probs: Float32Array,
    slots: Int32Array,
    max_rows: int,
    renew: bool,
    previous: Int64Array,
    tokens: Int64Array,
    top_tokens: Int64Array,
    top_probs: Float32Array,
) -> None:
    """Store each row under its pair, where the previous token is known, and under its token."""
    rows = RowArrays(header, keys, row_tokens, row_probs, slots)
    for i in range(tokens.size):
        if previous[i] != NONE:
            number = _row_for(rows, previous[i], tokens[i], max_rows, renew)
            _write_row(rows, number, top_tokens[i], top_probs[i])
        number = _row_for(rows, NONE, tokens[i], max_rows, renew)
        _write_row(rows, number, top_tokens[i], top_probs[i])
