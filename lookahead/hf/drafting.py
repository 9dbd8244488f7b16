"""The drafters that read a model's hidden states, made for one call."""

from __future__ import annotations

from typing import Any

from lookahead.config import Config
from lookahead.drafters import NodeDrafter
from lookahead.drafters.head import FIRST_TOKENS, LeastSquaresHead
from lookahead.drafters.readout import Readout
from lookahead.drafters.sums import HeadSums
from lookahead.hf.ends import ends_of
from lookahead.learnt import Learnt

__all__ = ["node_drafters"]


def node_drafters(model: Any, config: Config, learnt: Learnt) -> list[NodeDrafter]:
    """Make them for one sequence, as far as the settings ask for them and the model lets them."""
    ends = ends_of(model) if "head" in config.sources and config.draft_budget else None
    if ends is None:
        return []
    if learnt.sums is None:
        learnt.keep(HeadSums(ends))
    assert isinstance(learnt.sums, HeadSums)
    return [LeastSquaresHead(ends, Readout(ends, range(FIRST_TOKENS)), learnt.sums)]
