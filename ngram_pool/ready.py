"""Getting the kernels ready without anybody waiting for a compiler.

Compiling takes a process of its own for some seconds (in a thread it would hold the GIL), and fills
numba's on-disk cache. A stamp beside that cache says that it is complete for exactly these sources,
this numba and this processor. With a stamp, kernels are loaded where they are asked for, which
takes about as long as importing numba.
"""

import contextlib
import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Final

from ngram_pool.layout import DEFAULT_MAX_ROWS, DEFAULT_MAX_TOKENS

if TYPE_CHECKING:
    from ngram_pool.base import Pool
    from ngram_pool.calibration import Calibration

__all__ = ["kernels_ready", "new_pool", "ready_kernels", "require_kernels", "stand_back", "warm_up"]

FOLDER: Final = Path(__file__).parent
STAMP_PREFIX: Final = "ngram_pool-"
STAMP_SUFFIX: Final = ".ready"
LOCK_NAME: Final = "ngram_pool.lock"
CACHE_PATTERN: Final = "kernels_*.nb?"
# Everything that compiled code is made of.
SOURCE_PATTERNS: Final = ("kernels*.py", "layout.py", "features.py")
# What the child runs: the same modules as here, nothing of the program that started it.
CHILD: Final = (
    "import sys; sys.path[:] = {path!r}; import ngram_pool.ready as r; r.compile_kernels()"
)


class _Readiness:
    """What this process knows about its kernels; every change happens under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kernels: ModuleType | None = None
        self.compiler: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None  # what the compiler had to say
        self.is_broken = False  # for good: DictPool serves

    def start(self) -> None:
        """Load the kernels if the cache is complete, else start a compiler, once."""
        with self.lock:
            if self.kernels is not None or self.is_broken or self.compiler is not None:
                return
            try:
                if stamp_is_valid():
                    self._load()
                else:
                    self._start_compiler()
            except Exception as error:  # noqa: BLE001 - without kernels everything still works
                self._give_up(f"{type(error).__name__}: {error}")

    def poll(self) -> ModuleType | None:
        """Kernels if they are there or have just become ready; never waits for a compiler."""
        if self.kernels is not None or self.compiler is None:
            return self.kernels
        with self.lock:
            if self.compiler is not None and self.compiler.poll() is not None:
                self._finish(self.compiler.returncode)
        return self.kernels

    def wait(self) -> ModuleType | None:
        """Wait for the compiler, if one runs."""
        compiler = self.compiler
        if compiler is not None:
            compiler.wait()
        return self.poll()

    def _start_compiler(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise RuntimeError("there is no Python executable to compile with")
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _finish
        self.compiler = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(path=sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            # An interrupt of this program must not leave half a cache. No session of its own: Linux
            # shares processors out among sessions first, and a low priority counts only within one.
            process_group=0,
        )

    def _finish(self, return_code: int) -> None:
        self.compiler = None
        said = b""
        if self.errors is not None:
            self.errors.seek(0)
            said = self.errors.read()
            self.errors.close()
        if return_code != 0:
            lines = said.decode(errors="replace").strip().splitlines()
            self._give_up(lines[-1] if lines else f"exit status {return_code}")
            return
        try:
            is_complete = stamp_is_valid()
            if is_complete:  # if not, loading would compile here
                self._load()
        except Exception as error:  # noqa: BLE001 - without kernels everything still works
            self._give_up(f"{type(error).__name__}: {error}")
            return
        if not is_complete:
            self._give_up("the compiler's cache is incomplete")

    def _load(self) -> None:
        self.kernels = importlib.import_module("ngram_pool.kernels")

    def _give_up(self, reason: str) -> None:
        self.is_broken = True
        warnings.warn(
            f"ngram_pool drafts in plain Python, which is slower: no compiled kernels ({reason}).",
            RuntimeWarning,
            stacklevel=4,
        )


_readiness = _Readiness()


def warm_up(block: bool = False) -> None:
    """Start getting the kernels ready; costs nothing if they are.

    The first call imports numba to find its cache. If the cache is complete, the kernels are
    loaded now, in this thread (0.3 s in all, of which numba is the larger part). If not, a
    process of its own compiles them (10 to 20 s), and a later ``new_pool`` or ``kernels_ready``
    finds them.

    Parameters
    ----------
    block : bool
        Wait until they are ready, or turn out not to be.

    Warns
    -----
    RuntimeWarning
        Once, if kernels are not to be had: ``DictPool`` serves then.
    """
    _readiness.start()
    if block:
        _readiness.wait()


def kernels_ready() -> bool:
    """Whether ``new_pool`` makes an ``NgramPool``; never waits for a compiler.

    Returns
    -------
    bool
        False until ``warm_up`` was called and has come to an end.
    """
    return _readiness.poll() is not None


def ready_kernels() -> ModuleType | None:
    """Return the kernels if they are ready."""
    return _readiness.poll()


def require_kernels() -> ModuleType:
    """Return the kernels, waiting for a compiler if need be.

    Raises
    ------
    RuntimeError
        If they cannot be had.
    """
    warm_up(block=True)
    kernels = _readiness.poll()
    if kernels is None:
        raise RuntimeError("Expected working kernels (numba and a writable cache); use DictPool.")
    return kernels


def new_pool(
    calibration: "Calibration | None" = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    max_rows: int = DEFAULT_MAX_ROWS,
) -> "Pool":
    """Make the fastest pool that is to be had at once.

    Parameters
    ----------
    calibration : Calibration, optional
        Shared by all pools of one model; a new one if left out.
    max_tokens, max_rows : int
        Bounds; see ``NgramPool``.

    Returns
    -------
    NgramPool or DictPool
        The former if ``kernels_ready()``.

    Raises
    ------
    ValueError
        If a bound is below 2.
    """
    # Late imports: both need this module.
    from ngram_pool.pool import NgramPool
    from ngram_pool.reference import DictPool

    kind = NgramPool if kernels_ready() else DictPool
    return kind(calibration, max_tokens, max_rows)


def stand_back() -> None:
    """Let this process run only where no other wants to."""
    with contextlib.suppress(AttributeError, OSError):
        os.nice(19)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def compile_kernels() -> None:
    """Fill numba's cache and leave a stamp: the whole life of the compiling process.

    Processes that start at once take turns; the later ones find the work done.
    """
    stand_back()  # the program that waits for its first tokens goes first
    folder, sources, machine = _identity()
    with _locked(folder):
        if not stamp_is_valid():
            _fill_cache(folder, sources, machine)


def _fill_cache(folder: Path, sources: str, machine: str) -> None:
    """Compile into the cache.

    Numba looks at one file per kernel and would keep code that calls an older helper, so kernels of
    other sources are removed first.
    """
    if not any(folder.glob(f"{STAMP_PREFIX}{sources}-*{STAMP_SUFFIX}")):
        for old in (*folder.glob(STAMP_PREFIX + "*" + STAMP_SUFFIX), *folder.glob(CACHE_PATTERN)):
            with contextlib.suppress(OSError):
                old.unlink()
    importlib.import_module("ngram_pool.kernels")
    files = sorted(file.name for file in folder.glob(CACHE_PATTERN))
    aside = folder / f"{STAMP_PREFIX}{os.getpid()}.tmp"
    aside.write_text(json.dumps(files))
    aside.replace(_stamp(folder, sources, machine))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the cache folder, where the system has locks; a dead process holds none."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / LOCK_NAME).open("w") as file:
        with contextlib.suppress(OSError):  # some network folders cannot lock
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stamp_is_valid() -> bool:
    """Whether the cache is complete for these sources and this machine."""
    folder, sources, machine = _identity()
    try:
        files = json.loads(_stamp(folder, sources, machine).read_text())
    except (OSError, ValueError):
        return False
    return bool(files) and all((folder / name).exists() for name in files)


def _stamp(folder: Path, sources: str, machine: str) -> Path:
    return folder / f"{STAMP_PREFIX}{sources}-{machine}{STAMP_SUFFIX}"


def _identity() -> tuple[Path, str, str]:
    """Numba's cache folder, a digest of our sources, one of the machine."""
    import numba
    from llvmlite import binding  # type: ignore[import-untyped]

    if getattr(numba.config, "DISABLE_JIT", False):
        raise RuntimeError("NUMBA_DISABLE_JIT is set")
    cache_path = numba.njit(cache=True)(_same_folder).stats.cache_path
    if cache_path is None:
        raise RuntimeError("numba has no cache folder")
    sources = hashlib.sha256()
    for file in sorted(file for pattern in SOURCE_PATTERNS for file in FOLDER.glob(pattern)):
        # Numba compares the time of the file, so a mere touch makes it compile again.
        sources.update(f"{file.name} {file.stat().st_mtime_ns}\n".encode())
        sources.update(file.read_bytes())
    machine = (
        numba.__version__,
        platform.python_version(),
        platform.python_implementation(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        getattr(numba.config, "CPU_NAME", None),
        getattr(numba.config, "CPU_FEATURES", None),
    )
    digest = hashlib.sha256(repr(machine).encode()).hexdigest()[:16]
    return Path(cache_path), sources.hexdigest()[:16], digest


def _same_folder() -> None:
    """Never called; numba's cache for it lies where that of the kernels does."""
