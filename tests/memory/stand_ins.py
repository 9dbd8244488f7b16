"""Sums as simple as can be, and where a process of its own begins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

import lookahead
from lookahead.learnt import Identity

ROOT = Path(lookahead.__file__).parent.parent
PRINT = "0123456789abcdef"
IDENTITY = Identity(PRINT, "a model")


class Sums:
    """Sums products of hidden states."""

    def __init__(self, width: int = 4) -> None:
        self.products = torch.zeros(width, width)
        self.count = torch.zeros((), dtype=torch.int64)
        self.tokens: list[int] = []

    @property
    def rows(self) -> int:
        return int(self.count)

    def state(self) -> dict[str, Tensor]:
        return {"products": self.products, "count": self.count}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state["products"].shape != self.products.shape:
            raise ValueError("another width")
        self.products, self.count = state["products"], state["count"]

    def add(self, rows: int, value: float = 1.0) -> None:
        # In place, as sums of any size are kept.
        self.products += rows * value
        self.count += rows

    def add_text(self, tokens: Tensor, hidden: Tensor) -> None:
        assert hidden.shape == (len(tokens), len(self.products))
        self.tokens += tokens.tolist()
        self.products += hidden.float().T @ hidden.float()
        self.count += len(tokens)


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process of its own that runs ``code``."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
