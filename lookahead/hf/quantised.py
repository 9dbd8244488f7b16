"""Decoder layers with weights of 8 or 4 bits, for those who ask for it.

A pass over a few rows is bound by how fast weights are read, and fewer bits are read faster. Inputs
and sums stay as they are, and each row is computed by itself, so what is generated is exactly what
plain decoding of the quantised model generates. That is another model than the one with all its
bits. The products are torch's own kernels for weights of few bits.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from lookahead.errors import ConfigError
from lookahead.hf.layers import functions_of, is_plain_matrix
from lookahead.hf.split import find_layers

__all__ = ["Quantised", "QuantisedLinear", "quantise", "quantised_kind"]

#: Inputs that have a scale in common, of 4 bits.
GROUP = 32
#: Rows beyond which it takes less time to widen the weights first: prompts, and large trees. In
#: other types than bfloat16 torch's kernel for 8 bits is slow with any number of rows.
MANY_ROWS = 16
#: Smallest step between two values of a row that is all zeros.
LEAST_STEP = 1e-8


class QuantisedLinear(nn.Module):
    """A linear layer with weights of a few bits.

    Parameters
    ----------
    matrix : Tensor, float, [outputs, inputs]
    bias : Tensor, float, [outputs], or None
        Kept as it is.
    """

    kind: ClassVar[str]
    numbers: Tensor
    scales: Tensor

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = matrix.shape
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @staticmethod
    def takes(matrix: Tensor) -> bool:
        """Say whether the kernels can do with a matrix of this shape."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that layers give it
        """Return the product, float, [..., inputs] -> [..., outputs]."""
        rows = input.reshape(-1, self.in_features)
        found = self._product(rows if rows.is_contiguous() else rows.contiguous())
        if self.bias is not None:
            found = found + self.bias
        return found.view(*input.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Describe it as a linear layer."""
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.kind}"


class Int8Linear(QuantisedLinear):
    """Weights of 8 bits, from -127 to 127, with a scale for each output."""

    kind = "int8"

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        super().__init__(matrix, bias)
        wide = matrix.detach().float()
        step = (wide.abs().amax(dim=1, keepdim=True) / 127).clamp_(min=LEAST_STEP)
        step = step.to(matrix.dtype).float()  # what rows will be multiplied by
        self.register_buffer("numbers", (wide / step).round_().clamp_(-127, 127).to(torch.int8))
        self.register_buffer("scales", step[:, 0].to(matrix.dtype))

    @staticmethod
    def takes(matrix: Tensor) -> bool:
        """Say whether the kernels can do with a matrix of this shape."""
        return matrix.ndim == 2 and matrix.numel() > 0

    def _product(self, rows: Tensor) -> Tensor:
        numbers, scales = self.numbers, self.scales
        is_few = len(rows) <= MANY_ROWS and rows.dtype == scales.dtype == torch.bfloat16
        if is_few and rows.device.type == "cpu":
            return torch._weight_int8pack_mm(rows, numbers, scales)
        # Eight bits are exact in every type of float.
        return linear(rows, numbers.to(rows.dtype)) * scales.to(rows.dtype)


class Int4Linear(QuantisedLinear):
    """Weights of 4 bits, with a scale and an offset for every 32 inputs of an output."""

    kind = "int4"

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        super().__init__(matrix, bias)
        outputs, inputs = matrix.shape
        groups = matrix.detach().float().view(outputs, inputs // GROUP, GROUP)
        low, high = groups.amin(dim=2, keepdim=True), groups.amax(dim=2, keepdim=True)
        step = ((high - low) / 15).clamp_(min=LEAST_STEP)
        numbers = ((groups - low) / step).round_().clamp_(0, 15)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            numbers.view(outputs, inputs).to(torch.int32), 1
        )
        # The kernel's value of a number n is (n - 8) * scale + offset.
        both = torch.cat([step, low + 8 * step], dim=2).to(matrix.dtype)
        self.register_buffer("numbers", packed)
        self.register_buffer("scales", both.transpose(0, 1).contiguous())

    @staticmethod
    def takes(matrix: Tensor) -> bool:
        """Say whether the kernels can do with a matrix of this shape."""
        fits = matrix.ndim == 2 and matrix.numel() > 0 and matrix.device.type == "cpu"
        return fits and matrix.shape[0] % 16 == 0 and matrix.shape[1] % GROUP == 0

    def _product(self, rows: Tensor) -> Tensor:
        own = rows.to(self.scales.dtype)
        found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            own, self.numbers, GROUP, self.scales
        )
        return found.to(rows.dtype)


KINDS: dict[str, type[QuantisedLinear]] = {cls.kind: cls for cls in (Int8Linear, Int4Linear)}


class Replaced(NamedTuple):
    """A layer that another one stands in for."""

    parent: nn.Module
    name: str
    own: nn.Module
    other: nn.Module


class Quantised:
    """The quantised layers of a model, and what they stand in for.

    Parameters
    ----------
    kind : str
        ``"int8"`` or ``"int4"``.
    replaced : list of Replaced
    """

    def __init__(self, kind: str, replaced: list[Replaced]) -> None:
        self.kind = kind
        self._replaced = replaced

    def undo(self) -> None:
        """Put the layers back, where nobody has put in another one since."""
        for parent, name, own, other in self._replaced:
            if parent._modules.get(name) is other:
                parent._modules[name] = own
        self._replaced = []


def quantise(model: nn.Module, kind: str) -> Quantised:
    """Put quantised layers in the place of the matrix layers of all decoder layers.

    Embedding and output layer stay as they are, and so does what has a hook, a forward of its own,
    or weights of a kind that the kernels cannot do with.

    Parameters
    ----------
    model : PreTrainedModel
        Changed in place; nothing is changed if this raises.
    kind : str
        ``"int8"`` or ``"int4"``.

    Raises
    ------
    ConfigError
        If there is no such layer.
    """
    cls = KINDS[kind]
    made: dict[int, QuantisedLinear] = {}  # a layer with two places gets one stand-in
    replaced = []
    with torch.no_grad():
        for parent in (part for layer in find_layers(model) for part in layer.modules()):
            for name, own in parent._modules.items():
                matrix = None if own is None else _matrix(own)
                if own is None or matrix is None or not cls.takes(matrix):
                    continue
                if id(own) not in made:
                    made[id(own)] = cls(matrix, own._parameters["bias"]).train(own.training)
                replaced.append(Replaced(parent, name, own, made[id(own)]))
    if not replaced and quantised_kind(model) != kind:
        raise ConfigError(
            f"quantize={kind!r} found nothing to quantise in {type(model).__name__}: expected "
            "decoder layers with torch.nn.Linear of ordinary float weights on a CPU. Leave it out, "
            "or load the model in that form."
        )
    for parent, name, _, other in replaced:
        parent._modules[name] = other
    return Quantised(kind, replaced)


def quantised_kind(model: nn.Module) -> str | None:
    """Return of what kind the quantised layers of a model are, or None if it has none."""
    for layer in find_layers(model)[:1]:
        for module in layer.modules():
            if isinstance(module, QuantisedLinear):
                return module.kind
    return None


def _matrix(module: nn.Module) -> Tensor | None:
    """Return the weight of a layer that can be quantised, [outputs, inputs]."""
    if functions_of(module):
        return None
    weight: Any = module._parameters.get("weight")
    if type(module) is nn.Linear and is_plain_matrix(module):
        found = weight
    elif type(module) is Conv1D and type(weight) is nn.Parameter:
        found = weight.t()
    else:
        return None
    is_float = found.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return found if is_float and found.device.type == "cpu" else None
