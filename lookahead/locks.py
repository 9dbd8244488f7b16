"""One process at a time, by a lock file that the system frees when a process dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["file_lock"]


@contextmanager
def file_lock(
    path: Path,
    timeout: float = -1,
    *,
    mode: int = 0o644,
    waiting: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold a lock file in the block.

    On a file system without locks the block runs all the same: who writes aside and renames keeps
    files whole there, too, but of two processes at once the later one wins.

    Parameters
    ----------
    path : Path
        Its folder exists.
    timeout : float
        Seconds to wait; below 0 for ever.
    mode : int
        Mode of the file.
    waiting : callable, optional
        Called once if another process holds the lock; then it is waited for for ever.

    Raises
    ------
    filelock.Timeout
        If another process held it for all that time.
    """
    lock = FileLock(path, timeout=timeout if waiting is None else 0, mode=mode)
    try:
        lock.acquire()
    except Timeout:
        if waiting is None:
            raise
        waiting()
        lock.acquire(timeout=-1)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        lock.release()
