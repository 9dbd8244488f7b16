"""Where two runs part, and whether rounding explains it.

In 16 bits a pass over several rows rounds differently from a pass over one. Ids may then differ
where the two best logits lie closer together than that rounding; anything else is a fault. Both
runs are asked for their logits, so the rounding is measured on the very text in question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lookahead.errors import UnsupportedError

__all__ = ["Difference", "find_difference"]


@dataclass(frozen=True)
class Difference:
    """The first token that differs between a plain and an accelerated run.

    Attributes
    ----------
    index : int
        Its place among the new tokens, from 0.
    plain, fast : int
        The token of either run.
    plain_logits, fast_logits : tuple of two float
        Logits of ``plain`` and of ``fast``, in this order, in either run.
    gap : float
        How far the two tokens' logits lie apart in the plain run.
    rounding : float
        Largest difference between the two runs' logits up to there, over all tokens.
    """

    index: int
    plain: int
    fast: int
    plain_logits: tuple[float, float]
    fast_logits: tuple[float, float]
    gap: float
    rounding: float

    @property
    def is_rounding(self) -> bool:
        """True if the logits' rounding is large enough to swap the two tokens."""
        return self.gap <= 2 * self.rounding

    def __str__(self) -> str:
        verdict = "rounding" if self.is_rounding else "a fault, please report it"
        return (
            f"new token {self.index} is {self.plain} in the plain run and {self.fast} in the "
            f"accelerated one; their logits lie {self.gap:.4g} apart, and the logits of the two "
            f"runs differ by up to {self.rounding:.4g}: {verdict}"
        )


def find_difference(model: Any, ids: Tensor, **options: Any) -> Difference | None:
    """Generate plainly and accelerated, greedily, and compare.

    Parameters
    ----------
    model : PreTrainedModel
        Accelerated (see :func:`lookahead.accelerate`).
    ids : Tensor, int64, [1, tokens]
        A prompt.
    **options
        Passed to ``generate`` both times.

    Returns
    -------
    Difference or None
        None if the ids are the same.

    Raises
    ------
    UnsupportedError
        If the model is not accelerated, or the options ask for sampling.
    """
    fast_generate = vars(model).get("generate")
    plain_generate = getattr(fast_generate, "original", None)
    if fast_generate is None or plain_generate is None:
        raise UnsupportedError("call lookahead.accelerate(model) first: both ways are compared.")
    if options.get("do_sample"):
        raise UnsupportedError("only greedy runs can be compared token by token.")
    options |= {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    plain, fast = plain_generate(ids, **options), fast_generate(ids, **options)
    ours = [result.sequences[0, ids.shape[1] :].tolist() for result in (plain, fast)]
    pairs = enumerate(zip(*ours, strict=False))
    index = next((i for i, (one, other) in pairs if one != other), None)
    if index is None:
        return None
    logits = [torch.cat(result.logits[: index + 1]).float() for result in (plain, fast)]
    token, other = ours[0][index], ours[1][index]
    one, two = ((float(run[index, token]), float(run[index, other])) for run in logits)
    return Difference(
        index=index,
        plain=token,
        fast=other,
        plain_logits=one,
        fast_logits=two,
        gap=abs(one[0] - one[1]),
        rounding=float((logits[0] - logits[1]).abs().max()),
    )
