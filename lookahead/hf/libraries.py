"""Segments of layers as native libraries: found on disk, built aside by another process, loaded.

Tracing and compiling are torch's own (torch.export, AOTInductor) and take seconds a segment; a
library on disk is loaded in a few milliseconds. A process of its own builds them, at the lowest
priority: in a thread it would hold up every operation of the calls that go on meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import platformdirs
import torch
from filelock import Timeout
from torch import Tensor, nn

from lookahead.hf.segments import Segment
from lookahead.locks import file_lock
from lookahead.machine import cpu_name
from ngram_pool.ready import stand_back
from ngram_pool.storage import write_aside

__all__ = ["Builder", "Library", "default_folder", "find", "main"]

#: Runs a segment: tensors in, tensors out.
Library: TypeAlias = Callable[[list[Tensor]], list[Tensor]]

SUFFIX = ".so"
LOCK = "building.lock"

#: All libraries of a folder together; those that were not used for the longest time go first.
TOTAL_BYTES = 128 << 20

#: Batch and rows of the example by which a segment is traced, and the most of each.
EXAMPLE, MOST = {"batch": 3, "rows": 29}, {"batch": 1 << 16, "rows": 1 << 16}

#: Rounding in 16 bits is that of single operations, so that a fused layer gives the very numbers
#: of the layer as it is. Segments are small: a second thread would cost more than it brings.
SETTINGS = {"emulate_precision_casts": True, "cpp.threads": 1}


def default_folder() -> Path:
    """Return where libraries are kept; beside the embedded model."""
    return platformdirs.user_cache_path("lookahead-decoding", False) / "segments"


def find(segment: Segment, folder: Path) -> Library | None:
    """Load the library of a segment; None if there is none that is whole.

    Parameters
    ----------
    segment : Segment
        Built here, with this release of torch.
    folder : Path
        Where libraries are.
    """
    for path in sorted(folder.glob(f"{_name(segment)}.*{SUFFIX}")):
        with contextlib.suppress(OSError, RuntimeError):
            # A library that was cut short would bring the process down, not raise.
            if _digest(path.read_bytes()) == path.name.split(".")[1]:
                os.utime(path)
                library: Library = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1).run
                return library
    return None


class Builder:
    """Another process that builds libraries, at most one at a time.

    It goes on when this process ends: what it builds is there the next time.

    Parameters
    ----------
    folder : Path
        Where libraries are put.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._told: IO[bytes] | None = None  # what the process has to say
        self.fault: str | None = None

    def start(self, segments: Sequence[Segment]) -> None:
        """Begin to build; what other processes are building is left to them."""
        with tempfile.TemporaryFile() as texts:  # a pipe could be full
            texts.write(json.dumps([segment.text for segment in segments]).encode())
            texts.seek(0)
            told = tempfile.TemporaryFile()  # noqa: SIM115 - as long-lived as the process
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(self._folder)],
                    stdin=texts,
                    stdout=subprocess.DEVNULL,
                    stderr=told,
                    # A Ctrl-C is for the caller. No session of its own: Linux shares processors
                    # out among sessions first, and a low priority counts only within one.
                    process_group=0,
                )
            except OSError as error:
                told.close()
                self.fault = f"no process can be started to compile them ({error.strerror})"
            else:
                self._told = told
                weakref.finalize(self, told.close)

    def is_at_work(self) -> bool:
        """Say whether the process still runs; :attr:`fault` is known once it does not."""
        if self._process is None or self._told is None:
            return False
        if self._process.poll() is None:
            return True
        if self._process.returncode:
            self._told.seek(0)
            said = self._told.read().decode(errors="replace").strip().splitlines() or ["nothing"]
            self.fault = f"they could not be compiled: {said[-1][:200]}"
        self._told.close()
        self._process = self._told = None
        return False

    def wait(self) -> None:
        """Wait until the process has ended."""
        if self._process is not None:
            self._process.wait()
        self.is_at_work()


def main(folder: Path, segments: Sequence[Segment]) -> None:
    """Build what is missing of some libraries, unless another process is building already."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(Timeout), file_lock(folder / LOCK, timeout=0, mode=0o600):
        for segment in segments:
            if find(segment, folder) is None:
                data = _compiled(segment)
                write_aside(folder / f"{_name(segment)}.{_digest(data)}{SUFFIX}", data)
        _evict(folder)


def _compiled(segment: Segment) -> bytes:
    """Compile a segment; return the file of the library."""
    from torch._inductor import aoti_compile_and_package

    namespace: dict[str, Any] = {"torch": torch}
    exec(segment.source, namespace)  # our own text, written from a record
    counts = {name: torch.export.Dim(name, min=1, max=most) for name, most in MOST.items()}
    example, dynamic = [], []
    for shape, dtype in segment.sizes:
        sizes = [eval(str(size), {}, EXAMPLE) for size in shape]
        example.append(torch.ones(sizes, dtype=getattr(torch, dtype)))
        depends = {d: size for d, size in enumerate(shape) if isinstance(size, str)}
        dynamic.append({d: eval(size, {}, counts) for d, size in depends.items()} or None)
    with torch.no_grad(), tempfile.TemporaryDirectory() as aside:
        program = torch.export.export(
            _Function(namespace["segment"]), tuple(example), dynamic_shapes=(tuple(dynamic),)
        )
        package = aoti_compile_and_package(
            program, package_path=str(Path(aside) / "made.pt2"), inductor_configs=dict(SETTINGS)
        )
        with zipfile.ZipFile(package) as parts:
            library = next(name for name in parts.namelist() if name.endswith(SUFFIX))
            return parts.read(library)


class _Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: Tensor) -> Any:
        """Call it."""
        return self._function(*tensors)


def _name(segment: Segment) -> str:
    """Return the name of a segment's library, without what is in it: for this machine."""
    here = f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    return _digest(f"{segment.key}, {here}, {SETTINGS}".encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _evict(folder: Path) -> None:
    """Remove what was not used for the longest time, until the bound holds."""
    paths = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    total = sum(path.stat().st_size for path in paths)
    for path in paths:
        if total <= TOTAL_BYTES:
            return
        total -= path.stat().st_size
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    stand_back()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
        given = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8").read()
        main(Path(sys.argv[1]), [Segment.from_text(text) for text in json.loads(given)])
