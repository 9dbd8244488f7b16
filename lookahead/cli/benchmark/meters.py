"""What is measured around a call: target passes and the peak of memory."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


class PassMeter:
    """Counts passes of the whole model, and their input rows, through a hook on that one object.

    Passes of a shortened model (a draft from its own early layers) are not counted. The first pass
    is the prefill.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config = model.config.get_text_config()
        self._num_layers = self._config.num_hidden_layers
        self._rows: list[int] = []
        self._handle: Any = None

    @property
    def num_passes(self) -> int:
        """Passes after the prefill."""
        return max(0, len(self._rows) - 1)

    @property
    def num_drafted(self) -> int:
        """Input rows of those passes beyond the one that every pass has."""
        return sum(self._rows[1:]) - self.num_passes

    def __enter__(self) -> Self:
        self._rows.clear()
        self._handle = self._model.register_forward_pre_hook(self._count, with_kwargs=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handle.remove()

    def _count(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._config.num_hidden_layers == self._num_layers:
            ids = kwargs.get("input_ids", args[0] if args else None)
            self._rows.append(1 if ids is None else int(ids.shape[1]))


class MemoryMeter:
    """Peak resident memory of this process during a block.

    Where the system lets a process reset its own peak (Linux), the peak is that of the block; else
    it is that of the whole process so far.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if _is_linux() else None

    def begin(self) -> None:
        """Hand back freed memory, so that one arm does not count what another left, and reset."""
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        try:
            RESET.write_text("5")
        except OSError:
            return

    def peak_bytes(self) -> int:
        """Highest resident memory since :meth:`begin`."""
        found = _status_bytes("VmHWM")
        if found is not None:
            return found
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def current_bytes(self) -> int:
        """Resident memory now."""
        return _status_bytes("VmRSS") or self.peak_bytes()


def _is_linux() -> bool:
    return sys.platform.startswith("linux")


def _status_bytes(field: str) -> int | None:
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text("utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
