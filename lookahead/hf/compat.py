"""Where releases of transformers differ, and the range that the tests run on."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
import transformers
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from torch import Tensor
from transformers import GenerationMixin, cache_utils, masking_utils

from lookahead.errors import VersionError

__all__ = [
    "COUNTS_SLOTS",
    "KNOWS_FIRST",
    "KNOWS_STATES",
    "OWN_MASK",
    "PREPARES_POSITIONS",
    "RELEASE",
    "SUPPORTED",
    "DummyLayer",
    "DynamicIndexedLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
    "LinearAttentionLayer",
    "begin_layer",
    "bidirectional_mask_function",
    "cache_argument",
    "check_version",
    "count_or_length",
    "cache_dropped_behind",
    "device_of",
    "drop_empty_cache",
    "first_place",
    "is_compiled",
    "length_argument",
    "length_of",
    "mark_given_cache",
    "pass_arguments",
    "positions_by_mask",
    "prefill",
    "set_length",
    "vocab_size",
]

#: Releases that the exactness matrix passes on, up to the first one that was not tried. In those
#: left out, caches that models make by themselves, static ones and chunks of a prompt are read
#: another way.
SUPPORTED = SpecifierSet(">=4.57.6,!=5.0.*,!=5.1.*,!=5.2.*,!=5.3.*,<5.25")

RELEASE = Version(transformers.__version__)

_PREPARE = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters

#: Whether slots are counted outside of the cache, and handed to models as ``cache_position``.
COUNTS_SLOTS = "cache_position" in _PREPARE

#: Whether a model is told, when it prepares a pass, that the prompt is still to be read.
KNOWS_FIRST = "is_first_iteration" in _PREPARE

#: Whether a call is prepared with positions, which then go on from the last one.
PREPARES_POSITIONS = hasattr(GenerationMixin, "_prepare_position_ids_for_generation")

#: The method in which many families of 4.57 make an attention mask of their own, from no rule.
OWN_MASK = "_update_causal_mask"

#: The rule of masks that hide nothing; before 5.0 there was none.
bidirectional_mask_function = getattr(masking_utils, "bidirectional_mask_function", None)


def _layer_kind(name: str, argument: str = "self") -> Any:
    """Return a kind of cache layer, or a stand-in that no layer is of.

    The stand-in is for releases that have no such kind, or make it without ``argument``.
    """
    kind = getattr(cache_utils, name, None)
    known = kind is not None and argument in inspect.signature(kind.__init__).parameters
    return kind if known else type(name, (), {})


DummyLayer = _layer_kind("DummyLayer")
DynamicIndexedLayer = _layer_kind("DynamicIndexedLayer")
#: Layers with states: before 5.13 they had one of each kind, and not by number.
LinearAttentionLayer = _layer_kind("LinearAttentionLayer", "number_of_states")
LinearAttentionAndFullAttentionLayer = _layer_kind(
    "LinearAttentionAndFullAttentionLayer", "number_of_states"
)
LinearAttentionAndSlidingWindowAttentionLayer = _layer_kind(
    "LinearAttentionAndSlidingWindowAttentionLayer", "number_of_states"
)
#: Whether models with recurrent states can be read at all.
KNOWS_STATES = LinearAttentionLayer is getattr(cache_utils, "LinearAttentionLayer", None)


def check_version() -> None:
    """Refuse a release of transformers outside the tested range.

    Raises
    ------
    VersionError
        Naming the release, the range, and the command that brings one within it.
    """
    found = transformers.__version__
    if not SUPPORTED.contains(found, prereleases=True):
        raise VersionError(
            f"lookahead is tested with transformers {SUPPORTED}, and found {found}: "
            f"run pip install 'transformers{SUPPORTED}'."
        )


def cache_argument(model: Any) -> str:
    """Return the name under which a model's forward takes its cache.

    It was ``past_key_values`` until 5.23 and is ``cache`` from 5.24 on. A wrapper such as an
    adapter hides it, so the innermost model is asked; one that takes whatever comes takes what the
    library hands on, and so does None.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    forward = getattr(inner, "forward", GenerationMixin.prepare_inputs_for_generation)
    for names in (forward, GenerationMixin.prepare_inputs_for_generation):
        for name in ("cache", "past_key_values"):
            if name in inspect.signature(names).parameters:
                return name
    return "cache"


def mark_given_cache(model: Any, arguments: dict[str, Any]) -> None:
    """Mark the cache among arguments as the caller's, who may read it after the call.

    From 5.18 on the library does so itself.
    """
    cache = arguments.get(cache_argument(model))
    if Version("5.18") > RELEASE and isinstance(cache, cache_utils.Cache):
        cache._is_user_defined = True


def prefill(model: Any, input_ids: Tensor, settings: Any, model_kwargs: dict[str, Any]) -> Any:
    """Run the prompts as the library's own loop does, and return the outputs of the last pass.

    From 5.0 on it has a method for that, from 5.2 on one that wants to know that it is the first
    pass. Before, it was a part of the loop.
    """
    kwargs = dict(model_kwargs) if COUNTS_SLOTS else model_kwargs  # the count is of one pass
    if (method := getattr(model, "_prefill", None)) is not None:
        told = "is_first_iteration" in inspect.signature(method).parameters
        first = {"is_first_iteration": True} if told else {}
        return method(input_ids, settings, kwargs, **first)
    kwargs = model._get_initial_cache_position(input_ids.shape[1], input_ids.device, kwargs)
    if settings.prefill_chunk_size is not None:
        kwargs = model._prefill_chunking(input_ids, settings, **kwargs)
    return model(**model.prepare_inputs_for_generation(input_ids, **kwargs), return_dict=True)


def pass_arguments(first_slot: int, num_rows: int, device: torch.device) -> dict[str, Any]:
    """Return what a model wants to know besides when it prepares a pass over trees.

    Before 5.4 that was which slots the rows are to have; since, it asks the cache. From 5.0 on it
    wants to know whether the prompt is still to be read; before, it compared numbers of rows, and
    the prompt must not be there any more.
    """
    no_prompt = {"inputs_embeds": None}
    arguments: dict[str, Any] = {"is_first_iteration": False} if KNOWS_FIRST else no_prompt
    if COUNTS_SLOTS:
        slots = torch.arange(first_slot, first_slot + num_rows, device=device)
        arguments["cache_position"] = slots
    return arguments


def first_place(bias: Any, low: int, high: int, device: torch.device) -> dict[str, Any]:
    """Return how the bias of T5 is told its first place; before 5.4 it was told all of its rows."""
    if "past_seen_tokens" in inspect.signature(bias).parameters:
        return {"past_seen_tokens": low}
    return {"cache_position": torch.arange(low, high + 1, device=device)}


def positions_by_mask(mask: Tensor | None) -> Tensor | None:
    """Return the positions that the library derives from a mask over tokens, [batch, tokens].

    Before 5.2 it did so in each step, and a call had none; since, they are prepared with the call.
    What comes behind padding on the right then counts on from the last token that is none.
    """
    if PREPARES_POSITIONS or mask is None:
        return None
    tokens = mask.long().cumsum(dim=-1)
    return (tokens - 1).masked_fill(tokens == 0, 1)


def cache_dropped_behind(config: Any) -> int | None:
    """Return behind how many tokens Phi-3 and its kin drop the cache for good, or None.

    There long ropes change. From 5.24 on such a model reads its whole text again; in 5.4 and 5.12,
    and we take it so for what lies between, it goes on from the last token alone.
    """
    if config.model_type not in ("phi3", "phimoe", "phi4_multimodal"):
        return None
    forgets = Version("5.0") <= RELEASE < Version("5.24")
    return getattr(config, "original_max_position_embeddings", None) if forgets else None


@functools.lru_cache(maxsize=256)
def length_argument(forward: Any) -> str | None:
    """Return the name under which what embeds positions takes the length of the cache, or None.

    It was ``past_key_values_length`` until 5.23 and is ``cache_length`` from 5.24 on.
    """
    names = inspect.signature(forward).parameters
    return next((n for n in ("cache_length", "past_key_values_length") if n in names), None)


def drop_empty_cache(model: Any) -> None:
    """Have the library make a new static cache in its next call, if nothing was read into the last.

    Until 5.15 it asks the one that it keeps for sizes, which only a filled one has.
    """
    kept = vars(model).get("_cache")
    if Version("5.16") > RELEASE and kept is not None:
        layers = getattr(kept, "self_attention_cache", kept).layers
        if not all(layer.is_initialized for layer in layers):
            vars(model).pop("_cache", None)  # another thread may have been here


def begin_layer(layer: Any, keys: Tensor, values: Tensor) -> None:
    """Let a cache layer of the library take sizes and type from K/V; before 5.0, from K alone."""
    both = len(inspect.signature(layer.lazy_initialization).parameters) > 1
    layer.lazy_initialization(*([keys, values] if both else [keys]))


def length_of(cache: Any, layer: Any) -> int:
    """Return the length of an initialised layer of a cache.

    Before 5.4 most static layers looked at their keys for zeros, and some text may give a zero;
    for all of them the library believed the first layer.
    """
    counts = hasattr(layer, "cumulative_length") or not isinstance(layer, cache_utils.StaticLayer)
    return int((layer if counts else cache).get_seq_length())


def set_length(layer: Any, length: int) -> None:
    """Tell a static layer how many rows it holds.

    Before 5.4 a sliding one counted by a number, and others looked at their keys for zeros.
    """
    if isinstance(getattr(layer, "cumulative_length", None), Tensor):
        layer.cumulative_length.fill_(length)
    elif hasattr(layer, "cumulative_length"):
        layer.cumulative_length = length


def vocab_size(model: Any) -> int:
    """Return the number of tokens that a model can read; its output layer may have more rows."""
    embeddings = model.get_input_embeddings()
    size = getattr(embeddings, "num_embeddings", None)
    return int(size or model.config.get_text_config(decoder=True).vocab_size)


def device_of(model: Any) -> torch.device:
    """Return where a model computes, even where its weights are fetched layer by layer."""
    device = torch.device(model.device)
    if device.type != "meta":
        return device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    found = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((d for d in found if d is not None), "cpu"))


def is_compiled(model: Any) -> bool:
    """Say whether a model's forward was given to ``torch.compile``."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        return True
    return hasattr(vars(model).get("forward"), "_torchdynamo_orig_callable")


def count_or_length(rows: Any) -> int:
    """Return a number of rows, given as a number or as their positions (before 5.4)."""
    return rows if isinstance(rows, int) else int(rows.shape[0])
