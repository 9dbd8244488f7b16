"""One file of named arrays: whole, or refused.

The safetensors format, with a checksum over all that the file says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from lookahead.errors import LookaheadError

__all__ = [
    "HEADER_BYTES",
    "Arrays",
    "MemoryFileError",
    "NewerFileError",
    "Stored",
    "UnusableFileError",
    "pack",
    "read_meta",
    "unpack",
    "unusable",
]

Arrays: TypeAlias = dict[str, Tensor]

#: Raised when the meaning of a file changes; files of other formats are not read.
FORMAT = 1
#: Longest header that is looked at: names, shapes and a few words for every array.
HEADER_BYTES = 1 << 20


class MemoryFileError(LookaheadError):
    """A file could not be used or written; the message says what is wrong and what to do."""


class NewerFileError(MemoryFileError):
    """A file is of a later format than this version knows, and is left alone."""


class UnusableFileError(MemoryFileError):
    """A file is of no use to anybody, so that another may take its place."""


class Stored(NamedTuple):
    """What a file holds: arrays by name, and a few words about them for people."""

    arrays: Arrays
    meta: dict[str, str]


def pack(stored: Stored, fingerprint: str, kind: str) -> bytes:
    """Return the content of a file."""
    tensors = {name: array.detach().cpu().contiguous() for name, array in stored.arrays.items()}
    words = {
        **stored.meta,
        "format": str(FORMAT),
        "fingerprint": fingerprint,
        "kind": kind,
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    words["checksum"] = _checksum(tensors, words)
    payload: bytes = save_tensors(tensors, metadata=words)
    return payload


def unpack(data: bytes, path: Path, fingerprint: str, kind: str) -> Stored:
    """Return what a file holds.

    Raises
    ------
    MemoryFileError
        If it is damaged, of another model or kind, or of another format.
    """
    try:
        words = _words(data)
    except ValueError as error:
        raise unusable(path, "is damaged") from error
    if "checksum" not in words or not words.get("format", "").isdecimal():
        raise unusable(path, "is no file of lookahead")
    if int(words["format"]) > FORMAT:
        raise NewerFileError(
            f"{path} was written by a newer version of lookahead and is ignored; update this one, "
            "or clear it with: lookahead memory clear."
        )
    if int(words["format"]) < FORMAT:
        raise unusable(path, "was written by an older version of lookahead")
    if (words.get("fingerprint"), words.get("kind")) != (fingerprint, kind):
        raise unusable(path, "belongs to another model")
    try:
        arrays: Arrays = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise unusable(path, "is damaged") from error
    if _checksum(arrays, words) != words["checksum"]:
        raise unusable(path, "is damaged")
    return Stored(arrays, words)


def read_meta(path: Path) -> dict[str, str]:
    """Return the words of a file, arrays unread; empty if they cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            size = min(int.from_bytes(start, "little"), HEADER_BYTES)
            return _words(start + file.read(size))
    except (OSError, ValueError):
        return {}


def _words(data: bytes) -> dict[str, str]:
    """Return what stands in the header about the whole file."""
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= min(HEADER_BYTES, len(data) - 8):
        raise ValueError("no header")
    header = json.loads(data[8 : 8 + size])
    words = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(words, dict):
        raise ValueError("no words")  # noqa: TRY004 - what is in a file has no type
    return {str(name): str(word) for name, word in words.items()}


def _checksum(arrays: Arrays, words: Mapping[str, str]) -> str:
    """Digest of all that a file says, in an order of its own."""
    digest = hashlib.blake2b(digest_size=16)
    rest = {name: word for name, word in words.items() if name != "checksum"}
    digest.update(json.dumps(rest, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\n{name} {array.dtype} {tuple(array.shape)}\n".encode())
        digest.update(array.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def unusable(path: Path, what: str) -> UnusableFileError:
    """Make the error for a file, saying in half a sentence what is wrong with it."""
    return UnusableFileError(
        f"{path} {what} and is ignored; it is replaced when something is saved, or remove it with: "
        "lookahead memory clear."
    )
