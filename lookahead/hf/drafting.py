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
from ngram_pool.layout import HEAD_OFFER

__all__ = ["node_drafters"]


def node_drafters(model: Any, config: Config, learnt: Learnt) -> dict[int, NodeDrafter]:
    """Make them for one sequence, by source number, as far as settings and model let them."""
    ends = ends_of(model) if "head" in config.sources and config.draft_budget else None
    if ends is None:
        return {}
    if learnt.sums is None:
        learnt.keep(HeadSums(ends))
    assert isinstance(learnt.sums, HeadSums)
    return {HEAD_OFFER: LeastSquaresHead(ends, Readout(ends, range(FIRST_TOKENS)), learnt.sums)}
