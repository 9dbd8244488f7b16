"""Generates with fused layers on a registered type, segments run as the source that they are.

No compiler is needed: what is tested is the record, and what is made of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from lookahead.hf import libraries
from lookahead.hf.segments import Segment
from tests.zoo.sweep import EXACT, NOT_BUILT, Verdict, look, make, name_of

WAYS = ("greedy-half", "greedy-right", "sample-alternating", "greedy-wrong")


def interpreted(segment: Segment, folder: Path | None = None) -> libraries.Library:
    """Return a segment as a library would run it."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(segment.source, namespace)

    def run(tensors: list[Tensor]) -> list[Tensor]:
        assert all(tensor.is_contiguous() for tensor in tensors), segment.source
        return list(namespace["segment"](*tensors))

    return run


def look_at_fused(name: str) -> Verdict:
    """Compare plain runs of a type and accelerated ones with fused layers."""
    try:
        model, given = make(name)
    except Exception as error:
        return Verdict(NOT_BUILT, name_of(error))
    with mock.patch.object(libraries, "find", interpreted):
        verdict = look(model, given, WAYS, settings={"fuse": True})
    if verdict.kind == EXACT:
        _, fused = vars(model)["_lookahead_session"].fused or (None, None)
        fault = "not asked" if fused is None else fused.fault
        return Verdict(EXACT, fault or "", "fused" if fault is None else verdict.mode, verdict.mat)
    return verdict
