"""Versions of what is installed and the machine it runs on, for reports.

Knows how to ask; keeps no path, user or host name.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

PACKAGES = ("lookahead-decoding", "torch", "transformers", "tokenizers", "numpy", "numba")


def installed_version(package: str) -> str | None:
    """Version of an installed package, ``None`` where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that a figure depends on."""
    return {"python": platform.python_version()} | {
        package: installed_version(package) for package in PACKAGES
    }


def machine(device: str) -> dict[str, Any]:
    """Describe the machine in the words that a table of figures needs."""
    import torch

    from lookahead.machine import cpu_name

    described: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "memory_bytes": _memory_bytes(),
        "device": device,
    }
    if device.startswith("cuda") and torch.cuda.is_available():
        described["gpu"] = torch.cuda.get_device_name(torch.device(device))
    return described


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
