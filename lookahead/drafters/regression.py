"""Kernel ridge regression that learns row by row: the closed form behind the head and the lens.

A linear map known beforehand gives a first guess; what it leaves over on the rows seen so far is
interpolated. Every new row counts at once: the inverse of the Cholesky factor grows by a row, and
nothing is solved anew.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lookahead.drafters.products import FixedMatrix, products, without_autocast

__all__ = ["RunningRegression", "sketch"]

#: Weight of the linear kernel x.x', and of the Gaussian one, relative to a noise of 1, for vectors
#: scaled to length 24 as in docs/log.md.
LINEAR = 0.01 * 24**2
GAUSSIAN = 20.0
#: Of exp(-g |u - v|^2) on vectors of unit length, one term for each half of the input.
NARROWNESS = 0.7


class RunningRegression:
    """Predicts y from two unit vectors u = (a, b), given all pairs seen so far.

    The prediction is ``prior(u) + k(u, U) (K + N)^-1 (Y - prior(U))`` with the kernel
    ``k = linear * (1 / 24^2 + a.a' + b.b') + gaussian * exp(-g (|a - a'|^2 + |b - b'|^2))``.

    Parameters
    ----------
    prior : Tensor, float32, [inputs + 1, out], or None
        Linear map on (a, b, 1) fitted to other text; None for zero. One of fewer inputs is that of
        sketched ones, see :func:`sketch`.
    max_rows : int
        Rows remembered; when they are full, the older half goes.
    dtype : dtype
        In which the prior is computed, which is known to fewer digits than 16 bits have.

    Notes
    -----
    Source: Rasmussen and Williams 2006, sections 2.2 and 2.7 (a Gaussian process with an explicit
    mean); the factor is extended as in Golub and Van Loan, section 4.2.
    """

    def __init__(
        self,
        prior: Tensor | None = None,
        max_rows: int = 768,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.has_prior = prior is not None
        self.max_rows = max_rows
        self.num_rows = 0
        self._prior_map: FixedMatrix | None = None  # [out, inputs]
        if prior is not None:
            self._prior_map = FixedMatrix(prior[:-1].T.to(dtype), prior[-1].to(dtype))
        self._inputs: Tensor | None = None  # [max_rows, 2 * width], both halves of unit length
        self._outputs: Tensor | None = None  # [max_rows, out], what the prior leaves over
        self._noise: Tensor | None = None  # [max_rows]
        self._inverse: Tensor | None = None  # [max_rows, max_rows], of the lower Cholesky factor
        self._weights: Tensor | None = None  # [max_rows, out], (K + N)^-1 outputs

    @without_autocast
    def add(self, inputs: Tensor, outputs: Tensor, noise: Tensor) -> None:
        """Learn rows.

        Parameters
        ----------
        inputs : Tensor, float32, [rows, 2 * width]
            Halves of unit length.
        outputs : Tensor, float32, [rows, out]
            What goes with them.
        noise : Tensor, float32, [rows]
            Variance of each, relative to that which kernels are scaled to; less counts more.
        """
        newest = slice(-self.max_rows, None)
        inputs, outputs, noise = inputs[newest], outputs[newest], noise[newest]
        if not len(inputs):
            return
        if self._inputs is None:
            self._allocate(inputs, outputs)
        if self.num_rows + len(inputs) > self.max_rows:
            self._forget(len(inputs))
        residual = outputs - self._prior(inputs) if self.has_prior else outputs
        self._append(inputs, residual, noise)

    @without_autocast
    def predict(self, inputs: Tensor) -> Tensor:
        """Return what is expected for inputs, float32, [rows, 2 * width] -> [rows, out]."""
        expected = self._prior(inputs) if self.has_prior else None
        if not self.num_rows:
            assert expected is not None
            return expected
        assert self._weights is not None
        near = self._kernel(inputs, self._seen)
        if expected is None:
            return torch.mm(near, self._weights[: self.num_rows])
        return torch.addmm(expected, near, self._weights[: self.num_rows])

    @property
    def _seen(self) -> Tensor:
        assert self._inputs is not None
        return self._inputs[: self.num_rows]

    def _prior(self, inputs: Tensor) -> Tensor:
        assert self._prior_map is not None
        return self._prior_map.products(sketch(inputs, self._prior_map.shape[1]))

    def _kernel(self, left: Tensor, right: Tensor) -> Tensor:
        """Return k between rows, [left, right]."""
        # Both halves together: 2 where the inputs are the same.
        cosines = products(left, right, keeps_shape=False)
        return (
            torch.exp((2 * NARROWNESS) * (cosines - 2))
            .mul_(GAUSSIAN)
            .add_(cosines + 1 / 24**2, alpha=LINEAR)
        )

    def _allocate(self, inputs: Tensor, outputs: Tensor) -> None:
        rows = self.max_rows
        self._inputs = inputs.new_zeros((rows, inputs.shape[1]))
        self._outputs = outputs.new_zeros((rows, outputs.shape[1]))
        self._weights = outputs.new_zeros((rows, outputs.shape[1]))
        self._inverse = inputs.new_zeros((rows, rows))
        self._noise = inputs.new_zeros(rows)

    def _append(self, inputs: Tensor, residual: Tensor, noise: Tensor) -> None:
        assert self._inputs is not None
        assert self._outputs is not None
        assert self._noise is not None
        assert self._inverse is not None
        assert self._weights is not None
        old, new = slice(0, self.num_rows), slice(self.num_rows, self.num_rows + len(inputs))
        own = self._kernel(inputs, inputs) + torch.diag(noise)
        if self.num_rows:
            # The factor becomes [[L, 0], [B, C]] with B = K' L^-T and C C' = own - B B'.
            below = self._kernel(inputs, self._seen) @ self._inverse[old, old].T
            corner = _inverse_factor(own - below @ below.T)
            self._inverse[new, old] = -corner @ (below @ self._inverse[old, old])
        else:
            corner = _inverse_factor(own)
        self._inverse[new, new] = corner
        # (K + N)^-1 is the sum over the rows of the inverse factor: these are what is new.
        whitened = torch.addmm(corner @ residual, self._inverse[new, old], self._outputs[old])
        self._weights[new] = corner.T @ whitened
        self._weights[old].addmm_(self._inverse[new, old].T, whitened)
        self._inputs[new], self._outputs[new], self._noise[new] = inputs, residual, noise
        self.num_rows += len(inputs)

    def _forget(self, coming: int) -> None:
        """Keep the newest rows that leave room, and factorise anew."""
        assert self._inputs is not None
        assert self._outputs is not None
        assert self._noise is not None
        kept = min(self.max_rows // 2, self.max_rows - coming)
        rows = slice(self.num_rows - kept, self.num_rows)
        inputs, outputs = self._inputs[rows].clone(), self._outputs[rows].clone()
        noise = self._noise[rows].clone()
        self.num_rows = 0
        if kept:
            self._append(inputs, outputs, noise)


def _inverse_factor(matrix: Tensor) -> Tensor:
    """Return the inverse of the lower Cholesky factor of a matrix, [rows, rows]."""
    factor = torch.linalg.cholesky(matrix)
    unit = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    inverse: Tensor = torch.linalg.solve_triangular(factor, unit, upper=False)
    return inverse


def sketch(inputs: Tensor, size: int) -> Tensor:
    """Add up coordinates with random signs until ``size`` are left; fewer stay as they are.

    Products of vectors are kept on average, and the sums of squares of a model of width 4,096 need
    17 MB in place of 270.

    Notes
    -----
    Source: Charikar, Chen and Farach-Colton 2002 (count sketch); Clarkson and Woodruff 2013, as a
    projection for least squares.
    """
    rows, width = inputs.shape
    if width <= size:
        return inputs
    groups = -(-width // size)
    # The signs are a function of the width alone: sums of several processes must fit together.
    generator = torch.Generator().manual_seed(width)
    signs = torch.randint(0, 2, (width,), generator=generator).mul_(2).sub_(1)
    padded = torch.nn.functional.pad(inputs * signs.to(inputs), (0, groups * size - width))
    return padded.view(rows, groups, size).sum(1)
