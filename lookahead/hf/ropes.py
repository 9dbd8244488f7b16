"""Ropes whose angles depend on how long the text is, and how far that lets guesses go.

Such a rope looks at the farthest position of a pass. Up to a limit that changes nothing. Beyond it
the rows of a tree would be turned by other angles than single steps are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["RopeLimit", "furthest_guess", "reason_for_rope", "rope_limit"]


class RopeLimit(NamedTuple):
    """Up to how many positions the angles of a rope are fixed ones.

    Parameters
    ----------
    kind : str
        ``"dynamic"``: beyond, each further position changes the angles. ``"longrope"``: beyond,
        they are others, but fixed ones.
    positions : int
    """

    kind: str
    positions: int


def rope_limit(config: Any) -> RopeLimit | None:
    """Return the limit of a text configuration; None where angles are fixed throughout."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(parameters, dict):
        return None
    limits = []
    for one in [parameters, *(p for p in parameters.values() if isinstance(p, dict))]:
        kind = str(one.get("rope_type", one.get("type")))
        if "dynamic" in kind:
            limits.append(RopeLimit("dynamic", config.max_position_embeddings))
        elif kind == "longrope":
            original = one.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            limits.append(RopeLimit(kind, original or config.max_position_embeddings))
    return min(limits, key=lambda limit: limit.positions, default=None)


def furthest_guess(config: Any, positions: Tensor) -> int | None:
    """Return the number of positions beyond which nothing may be guessed, or None.

    ``positions``, int64, [..., batch or 1, tokens], are those of the prompt.
    """
    limit = rope_limit(config)
    if limit is None or (limit.kind == "longrope" and _tokens(positions) > limit.positions):
        return None
    return limit.positions


def reason_for_rope(config: Any, positions: Tensor, num_new: int | None, batch: int) -> str | None:
    """Say why a call runs plain because of its rope, or None.

    Parameters
    ----------
    config : PreTrainedConfig
        Of the text decoder.
    positions : Tensor, int64, [..., batch or 1, tokens]
        Those of the prompt.
    num_new : int or None
        Most tokens that the call can add.
    batch : int
        Number of sequences.
    """
    limit = rope_limit(config)
    if limit is None:
        return None
    tokens = _tokens(positions)
    # The last token of a run goes through no pass.
    if num_new is not None and tokens + num_new - 1 <= limit.positions:
        return None
    alone = batch == 1
    if limit.kind == "longrope" and alone and tokens > limit.positions:
        return None  # long angles from the first pass to the last
    if limit.kind == "dynamic" and alone and tokens < limit.positions:
        return None  # nothing is guessed beyond the limit
    return (
        f"rope type {limit.kind!r} changes its angles behind {limit.positions} positions, and "
        "this call may pass them"
    )


def _tokens(positions: Tensor) -> int:
    return int(positions[..., -1].max()) + 1
