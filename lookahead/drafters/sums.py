"""What the head has learnt from other texts of a model: sums, and the linear map fitted to them."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookahead.drafters.products import without_autocast
from lookahead.drafters.readout import ModelEnds
from lookahead.drafters.regression import sketch

__all__ = ["HeadSums", "head_inputs"]

#: Ridge on inputs whose halves have unit length.
RIDGE = 0.5
#: Most inputs that are summed up one by one; wider ones are sketched down to so many.
MOST_INPUTS = 2048
#: Shorter vectors than that are not stretched to unit length.
LEAST_LENGTH = 1e-12
#: The map is fitted anew when so many times more rows have been seen than at the last fit.
GROWTH = 1.3


def head_inputs(ends: ModelEnds, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Join unit vectors of hidden states and of the tokens that came next.

    Parameters
    ----------
    ends : ModelEnds
        Embedding of the target.
    hidden : Tensor, float32, [rows, width]
        What the output layer was given.
    tokens : Tensor, int64, [rows]
        The token after each.

    Returns
    -------
    Tensor, float32, [rows, 2 * width]
    """
    embedded = ends.embed(tokens).to(hidden.device, torch.float32)
    if embedded.shape != hidden.shape:
        return torch.cat([normalize(hidden, dim=-1), normalize(embedded, dim=-1)], dim=-1)
    # Both at once: a few rows cost by the operator.
    both = torch.stack([hidden, embedded], dim=1)
    lengths = torch.linalg.vector_norm(both, dim=-1, keepdim=True).clamp_min_(LEAST_LENGTH)
    return both.div_(lengths).flatten(1)


class HeadSums:
    """Sums of products over pairs of inputs and outputs; no text can be read out of them.

    Shared by all calls on one model; thread-safe.

    Parameters
    ----------
    ends : ModelEnds

    Attributes
    ----------
    rows : int
        Pairs seen.
    """

    def __init__(self, ends: ModelEnds) -> None:
        self._ends = ends
        self.rows = 0
        self._lock = threading.Lock()
        self._size = min(ends.embedding_width + ends.width, MOST_INPUTS)
        self._squares: Tensor | None = None  # [inputs + 1, inputs + 1], wide ones sketched
        self._products: Tensor | None = None  # [inputs + 1, out]
        self._map: Tensor | None = None
        self._rows_of_map = 0

    def add_text(self, tokens: Tensor, hidden: Tensor) -> None:
        """Add a whole text: int64, [positions], and float, [positions, width]."""
        hidden = hidden.float()
        self.add(head_inputs(self._ends, hidden[:-1], tokens[1:]), hidden[1:])

    @without_autocast
    def add(self, inputs: Tensor, outputs: Tensor) -> None:
        """Add pairs, float32, [rows, 2 * width] and [rows, out]; those not finite are left out."""
        finite = torch.isfinite(inputs).all(dim=-1) & torch.isfinite(outputs).all(dim=-1)
        inputs, outputs = inputs[finite], outputs[finite]
        if not len(inputs):
            return
        ones = inputs.new_ones((len(inputs), 1))
        x = torch.cat([sketch(inputs, self._size), ones], dim=-1)
        with self._lock:
            if self._squares is None or self._products is None:
                self._squares = x.new_zeros((x.shape[1], x.shape[1]))
                self._products = x.new_zeros((x.shape[1], outputs.shape[1]))
            self._squares.addmm_(x.T, x)
            self._products.addmm_(x.T, outputs)
            self.rows += len(inputs)

    @without_autocast
    def map(self) -> Tensor | None:
        """Return the least-squares map on (inputs, 1), [inputs + 1, out].

        None without rows, or where rounding has left sums that no map belongs to.
        """
        with self._lock:
            if self._squares is None or self._products is None:
                return None
            if self._map is None or self.rows > GROWTH * self._rows_of_map:
                ridge = RIDGE * torch.eye(len(self._squares), device=self._squares.device)
                factor, fault = torch.linalg.cholesky_ex(self._squares + ridge)
                if int(fault):
                    return None
                self._map = torch.cholesky_solve(self._products, factor)
                self._rows_of_map = self.rows
            return self._map

    def state(self) -> Mapping[str, Tensor]:
        """Return the sums by name; states of one model add up, array by array."""
        with self._lock:
            if self._squares is None or self._products is None:
                return {}
            return {
                "squares": self._squares.clone(),
                "products": self._products.clone(),
                "rows": torch.tensor(self.rows),
            }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`state` returned.

        Raises
        ------
        ValueError
            If the sums are of another model, or none.
        """
        squares, products = state.get("squares"), state.get("products")
        size = 1 + self._size
        shapes = [None if a is None else tuple(a.shape) for a in (squares, products)]
        if shapes != [(size, size), (size, self._ends.width)] or "rows" not in state:
            raise ValueError(f"expected sums of {size} inputs, received shapes {shapes}")
        assert squares is not None
        assert products is not None
        if not (torch.isfinite(squares).all() and torch.isfinite(products).all()):
            raise ValueError("expected finite sums")
        # Sums are stored on the CPU and used where the hidden states are.
        device = self._ends.output_rows(torch.zeros(1, dtype=torch.int64))[0].device
        with self._lock:
            self._squares = squares.to(device, copy=True)
            self._products = products.to(device, copy=True)
            self.rows = int(state["rows"])
            self._map, self._rows_of_map = None, 0
