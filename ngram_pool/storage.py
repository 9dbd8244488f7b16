"""One file per pool: a line of magic, a checksum, and an npz archive without pickle.

The automaton is not stored: it is a function of the tokens kept.
"""

import contextlib
import hashlib
import io
import os
import tempfile
import zipfile
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngram_pool.calibration import Calibration
from ngram_pool.checks import check_sizes
from ngram_pool.errors import PoolFileError
from ngram_pool.layout import ROW_WIDTH, Float32Array, Int32Array

__all__: list[str] = []

MAGIC: Final = b"ngram_pool file 1\n"
CHECKSUM_SIZE: Final = hashlib.sha256().digest_size
CALIBRATION_PREFIX: Final = "calibration_"


class SavedPool(NamedTuple):
    """What a file holds, the calibration aside."""

    max_tokens: int
    max_rows: int
    tokens: Int32Array  # [tokens]
    keys: Int32Array  # [rows, 2], entered first comes first; -1 for no previous token
    row_tokens: Int32Array  # [rows, ROW_WIDTH]
    row_probs: Float32Array  # [rows, ROW_WIDTH]


def write(path: str | PathLike[str], saved: SavedPool, calibration: Calibration) -> None:
    """Write aside, flush to disk, rename.

    Raises
    ------
    OSError
        If the file cannot be written; nothing is left behind then.
    """
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in saved._asdict().items()}
    for name, array in calibration.snapshot().items():
        arrays[CALIBRATION_PREFIX + name] = array
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **arrays)
    payload = archive.getvalue()
    write_aside(path, MAGIC + hashlib.sha256(payload).digest() + payload)


def write_aside(path: str | PathLike[str], payload: bytes) -> None:
    """Write, flush to disk, rename: never half a file, and readable for its owner only.

    Raises
    ------
    OSError
        If the file cannot be written; nothing is left behind then.
    """
    target = Path(path)
    handle, aside = tempfile.mkstemp(prefix=target.name + ".", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        Path(aside).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(aside).unlink()
        raise


def read(path: str | PathLike[str]) -> tuple[SavedPool, Calibration]:
    """Read and check a file.

    Raises
    ------
    PoolFileError
        If it cannot be read, is no pool, or is damaged.
    """
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PoolFileError(f"Cannot read {name!r}: {error.strerror}.") from error
    if not data.startswith(MAGIC):
        raise PoolFileError(f"{name!r} is not a file of this version of ngram_pool.")
    checksum, payload = data[len(MAGIC) :][:CHECKSUM_SIZE], data[len(MAGIC) + CHECKSUM_SIZE :]
    if hashlib.sha256(payload).digest() != checksum:
        raise PoolFileError(f"{name!r} is damaged: its checksum does not fit its content.")
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            return _unpack(dict(archive))
    except (KeyError, ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise PoolFileError(f"{name!r} does not hold a pool: {error}.") from error


def _unpack(arrays: dict[str, NDArray[Any]]) -> tuple[SavedPool, Calibration]:
    saved = SavedPool(
        int(arrays["max_tokens"]),
        int(arrays["max_rows"]),
        *(arrays[name] for name in ("tokens", "keys", "row_tokens", "row_probs")),
    )
    rows = len(saved.keys)
    check_sizes(saved.max_tokens, saved.max_rows)
    wanted = {
        "tokens": (saved.tokens.shape[:1], np.int32),
        "keys": ((rows, 2), np.int32),
        "row_tokens": ((rows, ROW_WIDTH), np.int32),
        "row_probs": ((rows, ROW_WIDTH), np.float32),
    }
    for name, (shape, dtype) in wanted.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}")
    _check_values(saved)
    calibration = Calibration()
    calibration.restore(
        {
            name.removeprefix(CALIBRATION_PREFIX): array
            for name, array in arrays.items()
            if name.startswith(CALIBRATION_PREFIX)
        }
    )
    return saved, calibration


def _check_values(saved: SavedPool) -> None:
    if len(saved.tokens) > saved.max_tokens or len(saved.keys) > saved.max_rows:
        raise ValueError("more tokens or rows than its own bounds allow")
    if (saved.tokens < 0).any() or (saved.keys < -1).any() or (saved.keys[:, 1:] < 0).any():
        raise ValueError("negative tokens")
    if len(np.unique(saved.keys, axis=0)) != len(saved.keys):
        raise ValueError("the same key twice")
    inside = (saved.row_probs >= 0) & (saved.row_probs <= 1) & (saved.row_tokens >= -1)
    if not inside.all():
        raise ValueError("rows out of range")
