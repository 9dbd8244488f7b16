"""The drafters of one call, those that read a model's hidden states among them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ngram_pool
from lookahead.config import Config
from lookahead.cost_curve import CostCurve
from lookahead.drafters import MergedDrafter, NodeDrafter
from lookahead.drafters.early_exit import EarlyExitDrafter, EarlyLayers
from lookahead.drafters.exits import ExitChooser, check_exit_layer
from lookahead.drafters.head import FIRST_TOKENS, LeastSquaresHead
from lookahead.drafters.readout import Readout
from lookahead.drafters.sums import HeadSums
from lookahead.hf.compat import vocab_size
from lookahead.hf.ends import ends_of
from lookahead.hf.selftest import exit_verdict
from lookahead.hf.split import LayerSplit
from lookahead.learnt import Learnt
from lookahead.session import Session
from lookahead.stats import DecodeStats
from ngram_pool.layout import EXIT_OFFER, HEAD_OFFER

__all__ = ["exit_fault", "layer_split", "merged_drafter"]


def layer_split(
    model: Any, config: Config, batch: int, stats: DecodeStats, *, whole_passes: bool = False
) -> LayerSplit | None:
    """Take the decoder apart where early exit is wanted; a note says why where that cannot be."""
    if "exit" not in config.sources or not config.draft_budget:
        return None
    if whole_passes:
        stats.note("early exit is off: hidden states or attentions of all layers are returned")
        return None
    if batch > 1:
        stats.note("early exit is off: it works on one sequence at a time")
        return None
    split = LayerSplit(model)
    if split.reason is not None:
        stats.note(f"early exit is off, because {split.reason}")
        return None
    if config.exit_layer != "auto":
        check_exit_layer(config.exit_layer, split.num_layers)
    return split


def exit_fault(
    model: Any, session: Session, split: LayerSplit | None
) -> Callable[[int], str | None] | None:
    """Return what tells why an exit layer cannot be used."""
    return None if split is None else functools.partial(exit_verdict, model, session, split)


def merged_drafter(
    model: Any,
    config: Config,
    session: Session,
    learnt: Learnt,
    target: EarlyLayers,
    slot: int,
    split: LayerSplit | None,
    curve: CostCurve,
    stats: DecodeStats,
    *,
    alone: bool,
) -> MergedDrafter:
    """Make the drafter of one sequence, before the prompt is read."""
    return MergedDrafter(
        config,
        ngram_pool.new_pool(calibration=session.calibration),
        stats,
        vocab_size(model),
        _node_drafters(model, config, session, learnt, target, slot, split, curve, stats),
        session.window_chooser,
        alone=alone,
    )


def _node_drafters(
    model: Any,
    config: Config,
    session: Session,
    learnt: Learnt,
    target: EarlyLayers,
    slot: int,
    split: LayerSplit | None,
    curve: CostCurve,
    stats: DecodeStats,
) -> dict[int, NodeDrafter]:
    """Make them for one sequence, by source number, as far as settings and model let them.

    Made before the prompt is read, since early exit says which layers are to be watched.
    """
    wanted = {"head", "exit"}.intersection(config.sources) and config.draft_budget
    ends = ends_of(model) if wanted else None
    if ends is None:
        if wanted:
            stats.note(
                "head and early exit are off: the output layer and the embedding are not two "
                "plain matrices in memory"
            )
        return {}
    drafters: dict[int, NodeDrafter] = {}
    readout = Readout(ends, range(FIRST_TOKENS))
    if "head" in config.sources:
        if learnt.sums is None:
            learnt.keep(HeadSums(ends))
        assert isinstance(learnt.sums, HeadSums)
        drafters[HEAD_OFFER] = LeastSquaresHead(ends, readout, learnt.sums)
    if split is not None:
        chooser = _exit_chooser(config, session, split.num_layers)
        drafters[EXIT_OFFER] = EarlyExitDrafter(
            target, slot, readout, chooser, functools.partial(_one_row, curve)
        )
    return drafters


def _one_row(curve: CostCurve) -> float | None:
    """Return the expected seconds of a pass over one row, if something was measured."""
    seconds = curve.seconds(1)
    return None if seconds is None else float(seconds[0])


def _exit_chooser(config: Config, session: Session, num_layers: int) -> ExitChooser:
    """Return the chooser of the model for these settings; a fixed layer is used in any case."""
    with session.lock:
        if config.exit_layer not in session.exit_choosers:
            layer = config.exit_layer
            session.exit_choosers[layer] = (
                ExitChooser(num_layers)
                if layer == "auto"
                else ExitChooser(num_layers, (layer,), never_off=True)
            )
        return session.exit_choosers[config.exit_layer]
