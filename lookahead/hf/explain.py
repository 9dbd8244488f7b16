"""Whether and how a model is accelerated, told without a call of ``generate``."""

from __future__ import annotations

import collections
import functools
from dataclasses import asdict, dataclass
from typing import Any

from lookahead.config import SOURCES, Config
from lookahead.cost_curve import CostCurve
from lookahead.hf.compat import vocab_size
from lookahead.hf.costs import cost_curve
from lookahead.hf.ends import ends_of
from lookahead.hf.fingerprint import identify, weights_key
from lookahead.hf.fusing import fused_layers, how_fused
from lookahead.hf.masks import install
from lookahead.hf.prepack import prepacked_weights
from lookahead.hf.shape import Shape, shape_of
from lookahead.hf.split import LayerSplit
from lookahead.hf.support import reason_for_model
from lookahead.session import Session
from lookahead.stats import DecodeStats

__all__ = ["Explanation", "curve_of", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What is known of a model before it is asked for anything.

    Attributes
    ----------
    model : str
        Name of its class.
    parameters, vocabulary, layers : int
    layer_types : dict of str to int
        How many layers there are of each kind; empty where the configuration does not say.
    dtype, device, attention : str
    way : str
        What a pass verifies: "tree", "chain" or "plain", which is nothing but the next token.
    reason : str or None
        Why it is no tree, as half a sentence.
    self_test : str
        ``"passed"``, what differed, or ``"not asked"`` where the reason was clear before.
    fused : str
        ``"used"`` where the small operations of layers run fused, ``"not yet: ..."`` before they
        are compiled, or ``"off: ..."`` with the reason.
    sources : dict of str to str
        Each source that guesses may come from, with ``"used"`` or why it is not.
    """

    model: str
    parameters: int
    vocabulary: int
    layers: int
    layer_types: dict[str, int]
    dtype: str
    device: str
    attention: str
    way: str
    reason: str | None
    self_test: str
    fused: str
    sources: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return asdict(self)


def explain(model: Any, config: Config) -> Explanation:
    """Say how a model would be accelerated with these settings; the self-test asks it now.

    Parameters
    ----------
    model : PreTrainedModel
        Not changed.
    config : Config
        Settings of its calls.

    Returns
    -------
    Explanation
    """
    text = model.config.get_text_config(decoder=True)
    shape, self_test = Shape("plain", reason_for_model(model)), "not asked"
    if shape.reason is None:
        install()
        shape = shape_of(model, Session())
        self_test = str(shape.reason) if shape.name == "plain" else "passed"
    return Explanation(
        model=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        vocabulary=vocab_size(model),
        layers=int(getattr(text, "num_hidden_layers", 0)),
        layer_types=dict(collections.Counter(getattr(text, "layer_types", None) or ())),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        attention=str(text._attn_implementation),
        way=shape.name,
        reason=shape.reason,
        self_test=self_test,
        fused=how_fused(model, config) if shape.name == "tree" else f"off: {shape.reason}",
        sources={name: _source(name, model, config, shape) for name in (*SOURCES, "window")},
    )


def curve_of(model: Any, session: Session, config: Config) -> CostCurve:
    """Return the cost curve that calls with these settings use and measure."""
    learnt = session.learnt(config.remember, weights_key(model), functools.partial(identify, model))
    with (
        prepacked_weights(model, config, session, DecodeStats()),
        fused_layers(model, config, session, DecodeStats()),
    ):
        return cost_curve(model, learnt)


def _source(name: str, model: Any, config: Config, shape: Shape) -> str:
    """Say that a source is used, or why it is not."""
    if shape.name == "plain":
        return "off: the model runs plain"
    if not config.draft_budget:
        return "off: no nodes are allowed"
    if name in {"window", "exit"} and shape.name == "chain":
        return "off: it needs a tree"
    if name == "window":
        return "off: not asked for" if config.window is None else "used"
    if name not in config.sources:
        return "off: not asked for"
    if name in {"head", "exit"} and ends_of(model) is None:
        return "off: embedding or output layer is no plain matrix"
    if name == "exit" and (fault := LayerSplit(model).reason):
        return f"off: {fault}"
    return "used"
