"""Matrices in the order in which the processor reads them, beside those of the model.

oneDNN multiplies by blocks that fill a processor's registers. A weight that lies row by row is
brought into that order in every pass anew; one that was prepacked is only read, so that a pass
over sixteen rows costs about what one row did. The copies serve accelerated passes of their own
thread only; the model keeps its weights, and a copy of one that has changed is dropped.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from lookahead.config import Config
from lookahead.drafters.products import ROWS, has_products, packed
from lookahead.hf.compat import is_compiled
from lookahead.hf.layers import ROUNDING_16, ROUNDING_32
from lookahead.hf.parallel import ranks_of
from lookahead.session import Session
from lookahead.stats import DecodeStats

__all__ = [
    "Prepacked",
    "is_prepacked",
    "ordinary_weights",
    "prepacked_weights",
    "saved_by_prepacking",
]

#: Where nothing is said, matrices with fewer numbers are left alone, and models with fewer bytes:
#: they lie in the processor's cache, whatever their order.
FEWEST_NUMBERS, FEWEST_BYTES = 2**14, 2**23

#: Share of the memory now free that may be taken where nothing is said.
SHARE_OF_FREE = 0.25

#: Bytes that are packed while the call waits, in a fraction of a second; more are packed aside,
#: for later calls.
BYTES_AT_ONCE = 5 * 2**27

#: Layers that are asked whether packing pays, and how often each is timed.
NUM_ASKED, NUM_TIMES = 16, 3

#: Whole numbers of the same size: a bit pattern equals itself, which NaN does not.
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}

NOTHING: list[Any] = []

_linear: Any = (
    torch.ops.mkldnn._linear_pointwise.default if torch.backends.mkldnn.is_available() else None
)

_active: ContextVar[Prepacked | None] = ContextVar("lookahead_prepacked", default=None)


class PrepackedLayer:
    """Stands in for the ``forward`` of one layer during accelerated calls.

    Where no such call is active in the current context and thread, it does what the layer does. A
    copy that is made of the model in the meantime gets the layer's own ``forward``.
    """

    def __init__(self, module: nn.Module, owner: weakref.ref[Prepacked]) -> None:
        self.module = module
        self.packed: Tensor | None = None
        self._owner = owner
        self._plain = type(module).forward
        self._seal: tuple[object, ...] = ()
        self._sample: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that layers give it
        packed = self.packed
        if packed is None or _active.get() is not self._owner() or input.dtype is not packed.dtype:
            return self._plain(self.module, input)  # type: ignore[no-any-return]
        return _product(input, packed, self.module._parameters["bias"])

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (self._plain, self.module)

    @property
    def matrix(self) -> Tensor:
        """The layer's weight, [outputs, inputs]."""
        weight = self.module._parameters["weight"]
        assert weight is not None
        return weight.detach().t() if isinstance(self.module, Conv1D) else weight.detach()

    @property
    def num_bytes(self) -> int:
        """Memory of a copy."""
        weight = self.module._parameters["weight"]
        assert weight is not None
        return weight.nbytes

    def has_changed(self) -> bool:
        """Take note of the weight as it is now, and say whether it was another one before.

        Who writes into ``weight.data`` leaves no version behind, so numbers are compared, too:
        at least one of each row and one of each column.
        """
        matrix = self.matrix
        version = 0 if matrix.is_inference() else matrix._version
        seal = (matrix.data_ptr(), version, matrix.dtype, matrix.shape, matrix.stride())
        sample = _some_of_each(matrix).view(BITS[matrix.dtype])
        old_seal, old_sample = self._seal, self._sample
        self._seal, self._sample = seal, sample
        return seal != old_seal or old_sample is None or not torch.equal(sample, old_sample)

    def pack(self) -> None:
        """Make the copy."""
        self.packed = packed(self.matrix)


class Prepacked:
    """The prepacked copies of the matrices of one model.

    Parameters
    ----------
    modules : list of Module
        Layers that :func:`packable` found.
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        # Weakly: copies are large, and go as soon as nobody wants them.
        me = weakref.ref(self)
        self._layers = [PrepackedLayer(module, me) for module in modules]
        self._lock = threading.Lock()
        self._aside: threading.Thread | None = None
        self._is_new = True
        self._num_calls = 0

    def holds(self, modules: list[nn.Module]) -> bool:
        """Say whether these are the layers it was made for."""
        mine = [layer.module for layer in self._layers]
        return len(mine) == len(modules) and all(a is b for a, b in zip(mine, modules, strict=True))

    @property
    def num_bytes(self) -> int:
        """Memory of the copies that exist."""
        return sum(layer.num_bytes for layer in self._layers if layer.packed is not None)

    @functools.cached_property
    def fault(self) -> str | None:
        """Why copies cannot be used, asked of some of the layers once; None if they can."""
        if not self._layers:
            return "there is no plain matrix in main memory that oneDNN multiplies by"
        for layer in self._asked:
            made = _made_up_rows(layer.matrix)
            right = functional.linear(made, layer.matrix).float()
            error = _product(made, packed(layer.matrix)).float() - right
            limit = ROUNDING_32 if made.dtype == torch.float32 else ROUNDING_16
            if not error.norm() <= limit * right.norm():
                return "products with prepacked weights are not those with ordinary ones"
        return None

    @functools.cached_property
    def saved(self) -> tuple[float, float]:
        """Share of a product's time that a copy saves, of one row and of several; timed once."""
        matrices = [layer.matrix for layer in self._asked]
        copies = [packed(matrix) for matrix in matrices]
        made = [_made_up_rows(matrix) for matrix in matrices]
        one, several = (
            1
            - _seconds(_product, [r[:num] for r in made], copies)
            / _seconds(functional.linear, [r[:num] for r in made], matrices)
            for num in (1, ROWS)
        )
        return one, several

    @property
    def _asked(self) -> list[PrepackedLayer]:
        return self._layers[:: max(1, len(self._layers) // NUM_ASKED)]

    def why_too_large_or_small(self) -> str | None:
        """Say why copies of so many bytes are not worth it, or return None."""
        needed = sum(layer.num_bytes for layer in self._layers if layer.packed is None)
        if needed + self.num_bytes < FEWEST_BYTES:
            return "the model is small enough for the processor's cache"
        if needed > SHARE_OF_FREE * psutil.virtual_memory().available:
            return f"copies of {needed / 1e9:.1f} GB would take too much of the memory now free"
        return None

    def refresh(self) -> bool:
        """Drop copies of changed weights and make missing ones; say whether all can be used now.

        Where there is much to pack it is done aside, for later calls. Weights that change from
        call to call are not worth it: they have to be the same in two calls before they are
        packed again.
        """
        with self._lock:
            if self._aside is not None and self._aside.is_alive():
                return False
            missing = []
            for layer in self._layers:
                if layer.has_changed():
                    layer.packed = None
                    if not self._is_new:
                        continue
                if layer.packed is None:
                    missing.append(layer)
            self._is_new = False
            if sum(layer.num_bytes for layer in missing) <= BYTES_AT_ONCE:
                _pack(missing)
                return True
            # No daemon: one that computes while Python ends brings the process down.
            self._aside = threading.Thread(target=_pack, args=(missing,), name="lookahead-prepack")
            self._aside.start()
            return False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Compute with the copies, in this context and thread."""
        with self._lock:
            self._num_calls += 1
        token = _active.set(self)
        try:
            for layer in self._layers:
                layer.module.forward = layer
            yield
        finally:
            _active.reset(token)
            with self._lock:
                self._num_calls -= 1
                if not self._num_calls:
                    self._take_out()

    def _take_out(self) -> None:
        for layer in self._layers:
            if vars(layer.module).get("forward") is layer:
                del layer.module.forward


def is_prepacked() -> bool:
    """Say whether passes in this context use prepacked weights."""
    return _active.get() is not None


@contextmanager
def ordinary_weights() -> Iterator[None]:
    """Compute with the weights of the model, in a part of a block with copies.

    For prompts: of products of many rows the order of the weights takes a few percent, and in
    float32 oneDNN keeps half a megabyte for every shape, one for each length of a prompt.
    """
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def quick_call(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function that does what calling a module does in this context, hooks included.

    Valid for as long as the copies are in use; what is between a module and its product costs as
    much as a part of the product.
    """
    layer = vars(module).get("forward")
    prepacked = _active.get()
    if (
        not isinstance(layer, PrepackedLayer)
        or prepacked is None
        or prepacked is not layer._owner()
        or layer.packed is None
        or type(module).__call__ is not nn.Module.__call__
        or module._forward_hooks
        or module._forward_pre_hooks
    ):
        return module
    packed, bias = layer.packed, module._parameters["bias"]

    def product(rows: Tensor) -> Tensor:
        if rows.dtype is not packed.dtype:
            return module(rows)  # type: ignore[no-any-return]
        return _linear(rows, packed, bias, "none", NOTHING, "")  # type: ignore[no-any-return]

    return product


def saved_by_prepacking() -> float:
    """Return the share of a one-row product's time that is saved in this context, at least 0."""
    prepacked = _active.get()
    return 0.0 if prepacked is None else max(0.0, prepacked.saved[0])


def prepacked_weights(
    model: Any, config: Config, session: Session, stats: DecodeStats
) -> AbstractContextManager[None]:
    """Return a block in which a model computes with prepacked copies of its matrices.

    It does nothing where that is switched off, impossible, or does not pay.

    Parameters
    ----------
    model : PreTrainedModel
        Its weights stay what they are.
    config : Config
        Its ``prepack`` says whether.
    session : Session
        Keeps the copies between calls.
    stats : DecodeStats
        Gets the memory that the copies take, and a note where the settings ask in vain.
    """
    if not config.prepack:
        return nullcontext()
    with session.lock:
        modules = packable(model, FEWEST_NUMBERS if config.prepack == "auto" else 0)
        if session.prepacked is None or not session.prepacked.holds(modules):
            session.prepacked = Prepacked(modules)
        prepacked: Prepacked = session.prepacked
        # What needs no copies is asked first.
        fault = _fault_of_ranks(model)
        if config.prepack == "auto":
            fault = fault or prepacked.why_too_large_or_small()
        fault = fault or prepacked.fault
        if fault is None and config.prepack == "auto" and sum(prepacked.saved) <= 0:
            fault = "they are no faster here"
    if fault is not None:
        if config.prepack is True:
            stats.note(f"weights are not prepacked: {fault}")
        return nullcontext()
    is_ready = prepacked.refresh()
    stats.prepacked_bytes = prepacked.num_bytes
    return prepacked.in_use() if is_ready else nullcontext()


def _fault_of_ranks(model: Any) -> str | None:
    """Say why processes that hold a model between them make no copies, or return None.

    They would go by times and memory of their own, and a layer that each of them has as a whole
    would round in one as in none of the others: at a near tie they would choose different tokens.
    """
    return None if ranks_of(model) is None else "the model is spread over several processes"


def packable(model: nn.Module, fewest_numbers: int = 0) -> list[nn.Module]:
    """Return the layers of a model that can be prepacked.

    Parameters
    ----------
    model : Module
        With or without copies in use.
    fewest_numbers : int
        Weights with fewer are left out.
    """
    # Autocast computes in another type than that of the weights; a compiled forward has orders of
    # its own.
    if not torch.backends.mkldnn.is_available() or torch.is_autocast_enabled("cpu"):
        return []
    modules = list(model.modules())
    if any(map(is_compiled, modules)):
        return []
    return [module for module in modules if _is_packable(module, fewest_numbers)]


def _is_packable(module: nn.Module, fewest_numbers: int) -> bool:
    if type(module).forward not in (nn.Linear.forward, Conv1D.forward):
        return False
    # What has a forward of its own, such as one that fetches the weights first, keeps it.
    own = vars(module).get("forward")
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or not (own is None or isinstance(own, PrepackedLayer)):
        return False
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.device.type == "cpu"
        and weight.layout == torch.strided
        and weight.numel() >= max(1, fewest_numbers)
        and has_products(weight.dtype)
        and (bias is None or (type(bias) is type(weight) and bias.dtype == weight.dtype))
    )


def _pack(layers: list[PrepackedLayer]) -> None:
    for layer in layers:
        if not threading.main_thread().is_alive():  # the process has come to its end
            break
        layer.pack()


def _product(input: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    result: Tensor = _linear(input, packed, bias, "none", NOTHING, "")
    return result


def _some_of_each(matrix: Tensor) -> Tensor:
    """Return some numbers of a matrix, at least one of each row and of each column, 1-d.

    They stand on diagonals, one below another: views, for which no index has to be made.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.t()
    rows, columns = tall.shape
    down, right = tall.stride()
    diagonals = tall.as_strided((rows // columns, columns), (columns * down, down + right))
    return torch.cat([diagonals.reshape(-1), tall[rows - columns :].diagonal()])


def _made_up_rows(matrix: Tensor) -> Tensor:
    """Return rows that a matrix can be multiplied by, [ROWS, inputs]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn((ROWS, matrix.shape[1]), generator=generator).to(matrix.dtype)


def _seconds(
    product: Callable[[Tensor, Tensor], Tensor], rows: list[Tensor], matrices: list[Tensor]
) -> float:
    """Return the time that products take undisturbed.

    All are done in turn, as in a pass, so that a matrix is out of the processor's cache when its
    turn comes again; what a neighbour disturbs once is not disturbed the next time.
    """
    best = [float("inf")] * len(matrices)
    for _ in range(NUM_TIMES):
        for i, (some, matrix) in enumerate(zip(rows, matrices, strict=True)):
            start = time.perf_counter()
            product(some, matrix)
            best[i] = min(best[i], time.perf_counter() - start)
    return sum(best)
