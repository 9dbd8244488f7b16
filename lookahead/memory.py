"""Files that outlive a process: named arrays by model and kind, in the user's cache.

A file is written aside and renamed, by one process at a time, and all files together have a bound.
What is in the arrays is the business of others; no text ever is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
from filelock import Timeout
from torch import Tensor

from lookahead.locks import file_lock
from lookahead.memory_file import (
    HEADER_BYTES,
    Arrays,
    MemoryFileError,
    Stored,
    UnusableFileError,
    pack,
    read_meta,
    unpack,
    unusable,
)
from ngram_pool.storage import write_aside

__all__ = ["Arrays", "Entry", "Memory", "MemoryFileError", "Stored", "default_folder"]

SUFFIX = ".safetensors"
LOCK = "memory.lock"
#: Bounds of one file, and of all files together.
FILE_BYTES = 96 << 20
TOTAL_BYTES = 256 << 20
LOCK_SECONDS = 10.0

_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")
_KIND = re.compile(r"[a-z0-9-]{1,64}")


class Entry(NamedTuple):
    """One file, for people to look at."""

    fingerprint: str
    kind: str
    path: Path
    num_bytes: int
    #: What was told when it was saved, or empty if the file cannot be read.
    meta: dict[str, str]


def default_folder() -> Path:
    """Return where files are kept unless another folder is named; beside the embedded model."""
    return platformdirs.user_cache_path("lookahead-decoding", False) / "memory"


class Memory:
    """A folder of small files, one folder in it for each model.

    Parameters
    ----------
    folder : Path, optional
        By default :func:`default_folder`. Made when something is saved.
    total_bytes : int
        When all files together are larger, the models that were not used for the longest time go.
    """

    def __init__(self, folder: Path | None = None, total_bytes: int = TOTAL_BYTES) -> None:
        self.folder = folder or default_folder()
        self._total_bytes = total_bytes

    def path(self, fingerprint: str, kind: str) -> Path:
        """Return where a file is, or would be."""
        if not _FINGERPRINT.fullmatch(fingerprint) or not _KIND.fullmatch(kind):
            raise ValueError(f"not the name of a file: {fingerprint!r}, {kind!r}")
        return self.folder / fingerprint / f"{kind}{SUFFIX}"

    def load(self, fingerprint: str, kind: str) -> Arrays | None:
        """Return the arrays of a file, or None if there is none; the model then counts as used.

        Raises
        ------
        MemoryFileError
            If the file is damaged, of another model, kind or format, or cannot be read.
        """
        stored = self._read(fingerprint, kind)
        if stored is None:
            return None
        with contextlib.suppress(OSError):
            os.utime(self.path(fingerprint, kind).parent)
        return stored.arrays

    def _read(self, fingerprint: str, kind: str) -> Stored | None:
        path = self.path(fingerprint, kind)
        try:
            if path.stat().st_size > FILE_BYTES + HEADER_BYTES:
                raise unusable(path, "is too large to be ours")
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MemoryFileError(
                f"What is in {path.parent} cannot be read ({_reason(error)}) and is ignored; make "
                "it readable, or pass remember=False."
            ) from error
        return unpack(data, path, fingerprint, kind)

    def save(
        self,
        fingerprint: str,
        kind: str,
        arrays: Mapping[str, Tensor],
        meta: Mapping[str, str] | None = None,
    ) -> Path:
        """Write a file, in place of an older one, and return its path.

        Raises
        ------
        MemoryFileError
            If nothing can be written here; the older file is as it was then.
        """
        new = Stored(dict(arrays), dict(meta or {}))
        return self.update(fingerprint, kind, lambda _old: new)

    def update(
        self,
        fingerprint: str,
        kind: str,
        change: Callable[[Stored | None], Stored],
    ) -> Path:
        """Write a file made from the one that is there, with no other process in between.

        Parameters
        ----------
        fingerprint, kind : str
            Which file.
        change : callable
            Is given what is stored, or None where nothing can be used; returns what is to be.

        Returns
        -------
        Path

        Raises
        ------
        MemoryFileError
            If nothing can be written here, or a later version wrote the file that is there.
        """
        path = self.path(fingerprint, kind)
        with self._locked():
            try:
                old = self._read(fingerprint, kind)
            except UnusableFileError:
                old = None
            payload = pack(change(old), fingerprint, kind)
            if len(payload) > FILE_BYTES:
                raise MemoryFileError(
                    f"{path} was not saved, because it would have {len(payload) >> 20} MiB, and "
                    f"{FILE_BYTES >> 20} is the limit; nothing has to be done."
                )
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._clear_leftovers()
            write_aside(path, payload)
            self._evict(path)
        return path

    def entries(self) -> list[Entry]:
        """Return all files, by model and kind."""
        return [
            Entry(path.parent.name, path.stem, path, path.stat().st_size, read_meta(path))
            for path in sorted(self.folder.glob(f"*/*{SUFFIX}"))
        ]

    def clear(self, fingerprint: str | None = None) -> int:
        """Remove the files of one model, or all; return how many bytes they had.

        Raises
        ------
        MemoryFileError
            If they cannot be removed.
        """
        if not self.folder.exists():
            return 0
        with self._locked():
            folders = [f for f in self._models() if fingerprint in {None, f.name}]
            num_bytes = sum(map(_folder_bytes, folders))
            for folder in folders:
                shutil.rmtree(folder)
        return num_bytes

    def _models(self) -> list[Path]:
        return [p for p in self.folder.iterdir() if p.is_dir() and _FINGERPRINT.fullmatch(p.name)]

    def _evict(self, written: Path) -> None:
        """Remove what was not used for the longest time, until the bound holds."""
        sizes = {folder: _folder_bytes(folder) for folder in self._models()}
        total = sum(sizes.values())
        for folder in sorted(sizes, key=lambda folder: folder.stat().st_mtime):
            if total <= self._total_bytes:
                return
            if folder != written.parent:
                total -= sizes[folder]
                shutil.rmtree(folder, ignore_errors=True)

    def _clear_leftovers(self) -> None:
        """Remove what a killed process left; we hold the lock, so nobody is writing."""
        for path in self.folder.glob("*/*.tmp"):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time write; turn errors of the system into one sentence."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file_lock(self.folder / LOCK, LOCK_SECONDS, mode=0o600):
                yield
        except Timeout as error:
            raise MemoryFileError(
                f"Nothing was saved in {self.folder}, because another process has been writing "
                "there for too long; if none is, restart what holds the lock."
            ) from error
        except OSError as error:
            raise MemoryFileError(
                f"Nothing can be saved in {self.folder} ({_reason(error)}): make it writable, free "
                "some space, or pass remember=False."
            ) from error


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _reason(error: OSError) -> Any:
    if error.errno in {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}:
        return "no space is left"
    return error.strerror or type(error).__name__
