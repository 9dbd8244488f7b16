"""What happened in a run, and the definitions of the figures.

MAT, the mean acceptance length, counts the bonus token: plain decoding has 1.00. The token that
the prefill gives counts neither as a token nor as a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["PARTS", "DecodeStats", "SourceStats", "StepRecord"]

#: Parts of a run whose time is taken, in the order of the step.
PARTS = ("prefill", "draft", "verify", "accept", "commit", "learn")


@dataclass
class SourceStats:
    """Nodes that a source had a hand in: ``offered`` to verification, and ``accepted``.

    A node that two sources propose counts for both, so columns may add up to more than the tree.
    """

    offered: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class StepRecord:
    """One target pass for one sequence: nodes drafted, nodes accepted, tokens emitted."""

    drafted: int
    accepted: int
    emitted: int


@dataclass
class DecodeStats:
    """Statistics of one call of ``generate``.

    Attributes
    ----------
    accelerated : bool
        False for a plain run; ``plain_reason`` then says why.
    rows : int
        Sequences of the call.
    prompt_tokens, new_tokens : int
        Tokens of all sequences; padding is not counted.
    passes : int
        Target passes after the prefill.
    drafted : int
        Nodes verified, over all sequences and passes.
    window_rows : int
        Rows of the lookahead window, over all sequences and passes.
    rows_again : int
        Rows of committed tokens that had to be read again, over all sequences and passes.
    shape : str
        What a pass can verify: a "tree", or a "chain" of guesses.
    seconds, prefill_s : float
        Wall time of the call and of its prefill.
    by_source : dict of str to SourceStats
    accepted_by_depth : list of int
        ``[d]``: how often a node of depth ``d + 1`` was accepted.
    time_ms : dict of str to float
        Wall time by part, see :data:`PARTS`.
    prepacked_bytes : int
        Memory that prepacked copies of weights take beside the model.
    fused : bool
        Whether layers ran with their small operations fused.
    notes : list of str
        Faults that were survived and fall-backs that were taken.
    break_even : float or None
        MAT at which passes of this size pay.
    is_fixed : bool
        Whether the number of nodes was fixed by the settings.
    """

    accelerated: bool = True
    plain_reason: str | None = None
    rows: int = 1
    prompt_tokens: int = 0
    new_tokens: int = 0
    passes: int = 0
    drafted: int = 0
    window_rows: int = 0
    rows_again: int = 0
    shape: str = "tree"
    seconds: float = 0.0
    prefill_s: float = 0.0
    by_source: dict[str, SourceStats] = field(default_factory=dict)
    accepted_by_depth: list[int] = field(default_factory=list)
    time_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    prepacked_bytes: int = 0
    fused: bool = False
    notes: list[str] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    break_even: float | None = None
    is_fixed: bool = False

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept, bonus tokens not counted."""
        return sum(step.accepted for step in self.steps)

    @property
    def mean_acceptance_length(self) -> float:
        """MAT: tokens after the first of each row, divided by passes and rows."""
        row_passes = len(self.steps) or self.passes * self.rows
        if not row_passes:
            return 1.0
        return max(0, self.new_tokens - self.rows) / row_passes

    @property
    def nodes_per_pass(self) -> float:
        """Mean drafted nodes of a sequence in a pass."""
        return self.drafted / len(self.steps) if self.steps else 0.0

    @property
    def window_rows_per_pass(self) -> float:
        """Mean rows of the window of a sequence in a pass."""
        return self.window_rows / len(self.steps) if self.steps else 0.0

    @property
    def tokens_per_s(self) -> float:
        """New tokens divided by the seconds of the whole call, prefill included."""
        return self.new_tokens / self.seconds if self.seconds else 0.0

    def note(self, text: str) -> None:
        """Keep a sentence for the reader, once."""
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the wall time of a block to ``time_ms[part]``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.time_ms[part] += (time.perf_counter() - start) * 1000

    def record(self, step: StepRecord) -> None:
        """Count one pass of one sequence."""
        self.steps.append(step)
        self.drafted += step.drafted

    def count_depths(self, accepted: int) -> None:
        """Count an accepted path of the given length at each of its depths."""
        while len(self.accepted_by_depth) < accepted:
            self.accepted_by_depth.append(0)
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1

    def summary(self) -> str:
        """Say in one line what a person wants to know, advice included where drafting lost."""
        head = f"{self.new_tokens} tokens in {self.seconds:.2f} s, {self.tokens_per_s:.1f} tokens/s"
        if not self.accelerated:
            return f"{head}; plain, because {self.plain_reason}"
        sources = ", ".join(
            f"{name} {stats.accepted}/{stats.offered}" for name, stats in self.by_source.items()
        )
        window = ""
        if self.window_rows:
            window = f" and {self.window_rows_per_pass:.1f} window rows"
        line = (
            f"{head}; MAT {self.mean_acceptance_length:.2f} over {self.passes} passes "
            f"({self.nodes_per_pass:.1f} nodes{window} each); "
            f"accepted/offered: {sources or 'nothing'}"
        )
        if self.prepacked_bytes:
            line += f"; prepacked weights take {self.prepacked_bytes / 1e6:.0f} MB"
        if self.fused:
            line += "; small operations are fused"
        if self.break_even is not None:
            line += f"; break-even MAT {self.break_even:.2f}"
            if self.is_fixed and self.mean_acceptance_length < self.break_even:
                line += (
                    ": a pass with so many rows cost more than it returned; fewer nodes (0 is "
                    "plain decoding) may be faster for such text on this machine"
                )
        return line
