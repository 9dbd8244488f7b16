"""Where the time of a step goes, part by part, beside what memory alone would need.

Shares one call of the benchmark out among draft, inputs, the parts of the pass, walk, commit and
learning. What is between the parts is a part of its own, so that they add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lookahead.hf.pass_clock import PASS_PARTS, PassClock

__all__ = ["STEP_PARTS", "Anatomy", "dissect"]

#: Parts of a step, in order. `inputs` are ids, positions and masks; `between` is all that no part
#: counts: for plain decoding the library's own loop.
STEP_PARTS = ("draft", "inputs", *PASS_PARTS, "accept", "commit", "learn", "between")


@dataclass
class Anatomy:
    """The steps of some calls of one arm, taken apart.

    Attributes
    ----------
    passes : int
    seconds : dict of str to float
        By part, see :data:`STEP_PARTS`.
    read_bytes : dict of str to int
        Least that is read from memory, by part of a pass.
    own_s : float
        What the clock itself took.
    step_s : float
        Of one step without the clock, in calls of their own.
    """

    passes: int
    seconds: dict[str, float]
    read_bytes: dict[str, int]
    own_s: float
    step_s: float

    def as_json(self, bandwidth: float) -> dict[str, Any]:
        """Return milliseconds a pass, and the sum of the parts by the step without the clock.

        Parameters
        ----------
        bandwidth : float
            Bytes a second that memory gives.
        """
        each = 1000 / max(1, self.passes)
        return {
            "passes": self.passes,
            "ms": {part: seconds * each for part, seconds in self.seconds.items()},
            "memory_ms": {
                part: count / bandwidth * each for part, count in self.read_bytes.items() if count
            },
            "step_ms": self.step_s * 1000,
            "clock_ms": self.own_s * each,
            "sum_by_step": sum(self.seconds.values()) * each / 1000 / self.step_s,
        }


def dissect(
    clock: PassClock, time_ms: dict[str, float], clocked_s: float, step_s: float
) -> Anatomy:
    """Put together what the clock and the engine say of the same calls.

    Parameters
    ----------
    clock : PassClock
        Has seen all passes after the prefill.
    time_ms : dict of str to float
        By part of the engine; nothing but ``prefill`` and ``verify`` for other arms.
    clocked_s : float
        Seconds of these calls after the first token.
    step_s : float
        Of one step of the same calls without the clock.
    """
    seconds = dict.fromkeys(STEP_PARTS, 0.0)
    seconds.update(clock.seconds)
    own = clock.own_seconds
    in_pass = sum(seconds[part] for part in PASS_PARTS)
    if "draft" in time_ms:
        seconds.update(
            (part, time_ms.get(part, 0.0) / 1000) for part in ("draft", "accept", "commit", "learn")
        )
        seconds["inputs"] = time_ms["verify"] / 1000 - in_pass - own
    seconds["between"] = clocked_s - own - sum(seconds.values())
    return Anatomy(clock.passes, seconds, dict(clock.read_bytes), own, step_s)
