"""What a machine is called: costs measured on one say nothing about another."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

import torch

__all__ = ["cpu_name", "machine_name"]


@functools.cache
def cpu_name() -> str:
    """Return the processor's name as its maker writes it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        with info.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine_name(device: torch.device) -> str:
    """Return what costs of passes on this device depend on: hardware, cores, release of torch."""
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        # In a container, the cores that this process may use matter, not those that are there.
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count()
        hardware = f"{device.type}, {cpu_name()}, {cores} cores"
    return f"{hardware}, torch {torch.__version__}"
