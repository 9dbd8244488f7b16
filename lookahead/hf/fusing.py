"""Which models have their small operations fused, when, and how their layers are recorded."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from lookahead.config import Config
from lookahead.errors import UnsupportedError
from lookahead.hf import libraries
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import device_of, is_compiled, vocab_size
from lookahead.hf.fused import FusedLayers, Written, ordinary_layers
from lookahead.hf.grouped import NAME as SDPA
from lookahead.hf.layers import functions_of
from lookahead.hf.masks import install
from lookahead.hf.parallel import ranks_of
from lookahead.hf.recording import (
    Program,
    Record,
    is_constant,
    products_of,
    program_of,
    recording,
)
from lookahead.hf.selftest import first_line, made_up_call, tokens_of, verdict_key
from lookahead.hf.shape import shape_of
from lookahead.hf.split import Instead, find_layers, instead
from lookahead.hf.target import HFTarget
from lookahead.session import Session
from lookahead.stats import DecodeStats
from lookahead.tree import DraftTree

__all__ = ["build_libraries", "fused_layers", "how_fused"]

#: Where nothing is said, smaller models are left alone, and compiling waits until so many seconds
#: were spent in accelerated calls: who generates once gets nothing from it.
FEWEST_BYTES, SECONDS_BEFORE = 2**23, 5.0

TOO_SMALL = "the model is so small that there is little to gain"

#: Batch and rows of the passes that are recorded: neither in step with the other.
RECORDED = ((3, 7), (3, 11), (5, 7))


def fused_layers(
    model: Any, config: Config, session: Session, stats: DecodeStats
) -> AbstractContextManager[None]:
    """Return a block in which the layers of a model run with their small operations fused.

    It does nothing where that is switched off, impossible, or not ready yet.

    Parameters
    ----------
    model : PreTrainedModel
        Whose passes can verify a tree.
    config : Config
        Its ``fuse`` says whether; True waits for the compiler.
    session : Session
        Keeps the functions between calls.
    stats : DecodeStats
        Gets a note where the settings ask in vain.
    """
    if not config.fuse:
        return nullcontext()
    asked = config.fuse is True
    fault = _fault_of(model)
    if fault is None and not asked and _num_bytes(model) < FEWEST_BYTES:
        return nullcontext()
    if fault is None:
        builds = asked or session.seconds >= SECONDS_BEFORE
        if not builds and not any(libraries.default_folder().glob("*.so")):
            return nullcontext()  # a record would be of no use yet
        key = _key(model)
        with session.lock:
            if session.fused is None or session.fused[0] != key:
                session.fused = (key, _fused(model))
            fused: FusedLayers = session.fused[1]
        if fused.get_ready(builds=builds, waits=asked):
            stats.fused = True
            return fused.in_use(always=asked)
        fault = fused.fault
    if asked and fault is not None:
        stats.note(f"small operations are not fused: {fault}")
    return nullcontext()


def build_libraries(model: Any) -> str | None:
    """Compile what the layers of a model need to run fused, and wait for it.

    Parameters
    ----------
    model : PreTrainedModel
        Not changed.

    Returns
    -------
    str or None
        Why that cannot be done, as half a sentence, or None once all is there.
    """
    fault = _fault_of(model)
    if fault is None and _num_bytes(model) < FEWEST_BYTES:
        fault = TOO_SMALL
    if fault is None:
        install()
        shape = shape_of(model, Session())
        fault = None if shape.name == "tree" else shape.reason
    if fault is not None:
        return fault
    fused = _fused(model)
    if fused.get_ready(builds=True, waits=True):
        return None
    return fused.fault or "another process is compiling them"


def how_fused(model: Any, config: Config) -> str:
    """Say whether calls would run fused layers: ``"used"``, ``"not yet: ..."`` or ``"off: ..."``.

    Parameters
    ----------
    model : PreTrainedModel
        Whose passes can verify a tree. Not changed.
    config : Config
        Its ``fuse`` says whether.
    """
    if not config.fuse:
        return "off: not asked for"
    fault = _fault_of(model)
    if fault is None and config.fuse == "auto" and _num_bytes(model) < FEWEST_BYTES:
        fault = TOO_SMALL
    if fault is None:
        fused = _fused(model)
        if fused.fault is None:
            return "not yet: they are compiled while the model is used" if fused.missing else "used"
        fault = fused.fault
    return f"off: {fault}"


def _fault_of(model: Any) -> str | None:
    """Say why the layers of a model cannot be fused, as far as no pass is needed for it."""
    text = model.config.get_text_config(decoder=True)
    if device_of(model).type != "cpu":
        return "that is done on a CPU only"
    if model.config.is_encoder_decoder:
        return "the model has an encoder"
    if text._attn_implementation != SDPA:
        return f"its attention is {text._attn_implementation!r}, not {SDPA!r}"
    if ranks_of(model) is not None:
        return "the model is spread over several processes"
    if torch.is_autocast_enabled("cpu") or any(map(is_compiled, model.modules())):
        return "the model is compiled, or computes in another type than that of its weights"
    layers = find_layers(model)
    if not layers or len(set(map(id, layers))) < len(layers):
        return "no list of decoder layers was found"
    for layer in layers:
        if any(map(functions_of, _small_parts(layer))):
            return "a part of a layer has a hook or a forward of somebody's own"
    return None


def _small_parts(layer: nn.Module) -> list[nn.Module]:
    """Return the modules of a layer that a fused one does not call."""
    called = {id(m) for product in products_of(layer).values() for m in product.modules()}
    return [m for m in layer.modules() if m is not layer and id(m) not in called]


def _key(model: Any) -> Hashable:
    """Return all that a record depends on: kinds and order of modules, and their settings."""
    settings = tuple(
        tuple((name, value) for name, value in vars(module).items() if is_constant(value))
        for layer in find_layers(model)
        for module in (layer, *_small_parts(layer))
    )
    text = model.config.get_text_config(decoder=True)
    config = tuple((n, v) for n, v in vars(text).items() if is_constant(v))
    return verdict_key(model), tuple(map(id, find_layers(model))), hash(settings), hash(config)


def _num_bytes(model: Any) -> int:
    return sum(p.nbytes for p in model.parameters())


def _fused(model: Any) -> FusedLayers:
    """Record the layers of a model, and make functions of them."""
    fault = None
    try:
        return FusedLayers(_written(model, find_layers(model)))
    except UnsupportedError as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001 - a model may fail in any way
        fault = f"recording them raised {type(error).__name__}: {first_line(error)}"
    unusable = FusedLayers([])
    unusable.fault = fault
    return unusable


def _written(
    model: Any, layers: list[nn.Module]
) -> list[tuple[nn.Module, Written, tuple[int, ...]]]:
    """Write the functions of all layers; those of one kind have one in common.

    The first and the last of a kind are recorded. Where they differ in more than their places in
    the cache, each layer is.
    """
    kinds: dict[Hashable, list[int]] = {}
    for index, layer in enumerate(layers):
        kinds.setdefault(_kind(layer, index), []).append(index)
    ends = sorted({index for kind in kinds.values() for index in (kind[0], kind[-1])})
    programs = _programs(model, [layers[index] for index in ends])
    of_index = dict(zip(ends, programs, strict=True))
    if not all(
        of_index[index].cache_layers == (index,)
        and replace(of_index[index], cache_layers=()) == replace(of_index[kind[0]], cache_layers=())
        for kind in kinds.values()
        for index in (kind[0], kind[-1])
    ):
        programs = _programs(model, layers)
        return [(x, Written(p), p.cache_layers) for x, p in zip(layers, programs, strict=True)]
    written = {index: Written(of_index[kind[0]]) for kind in kinds.values() for index in kind[:1]}
    first = {index: kind[0] for kind in kinds.values() for index in kind}
    return [(layer, written[first[index]], (index,)) for index, layer in enumerate(layers)]


def _kind(layer: nn.Module, index: int) -> Hashable:
    """Return what layers of one kind have in common, their place among the others left out."""
    kind = []
    for name, module in layer.named_modules():
        settings = (
            (key, value)
            for key, value in vars(module).items()
            if is_constant(value)
            and not ("layer" in key and value == index and not isinstance(value, bool))
        )
        tensors = (
            (key, None if tensor is None else (tensor.shape, tensor.dtype, tensor.is_contiguous()))
            for key, tensor in (*module._parameters.items(), *module._buffers.items())
        )
        kind.append((name, type(module), tuple(settings), tuple(tensors)))
    return tuple(kind)


def _programs(model: Any, layers: list[nn.Module]) -> list[Program]:
    """Record some layers in passes over trees; the products of none are computed for it."""
    zeros: dict[nn.Module, Instead] = {
        product: functools.partial(_zeros, product)
        for layer in find_layers(model)
        for product in products_of(layer).values()
    }
    head = model.get_output_embeddings()
    if isinstance(head, nn.Module):
        zeros[head] = lambda _forward, hidden: hidden[..., :1]
    with torch.no_grad(), torch.random.fork_rng([]), ordinary_layers(), instead(zeros):
        records = [_records(model, layers, batch, rows) for batch, rows in RECORDED]
    return [program_of([found[layer] for found in records]) for layer in layers]


def _records(model: Any, layers: list[nn.Module], batch: int, rows: int) -> dict[nn.Module, Record]:
    """Record layers in a pass over so many equal trees of so many rows."""
    prompt, tokens = tokens_of(vocab_size(model), rows)
    prompt = prompt[: 1 + rows % 5]  # a length of its own for each number of rows
    cache = SlotCache(DynamicCache(config=model.config.get_text_config(decoder=True)), batch)
    if not cache.is_plain:
        raise UnsupportedError("a layer keeps more than K/V")
    target = HFTarget(*made_up_call(model, prompt, cache, batch=batch))
    target.prefill()
    tree = DraftTree.from_parents(tokens, [0] * rows)
    with recording(layers, cache) as found:
        target.verify(range(batch), [tree] * batch)
    if len(found) != len(layers):
        raise UnsupportedError("a pass does not run each of its layers")
    return found


def _zeros(product: nn.Module, _forward: Instead, rows: Tensor) -> Tensor:
    """Return what a matrix layer could return."""
    width = getattr(product, "out_features", None) or product.nf
    return rows.new_zeros((*rows.shape[:-1], int(width)))  # type: ignore[arg-type]
