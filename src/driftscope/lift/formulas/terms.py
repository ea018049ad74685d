"""How sums and products round, said briefly; and how a formula shows the steps that it is made of."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch

from driftscope.lift.steps import Kind, Rounding

Number: TypeAlias = float | torch.Tensor
"""A number of a formula: a Python float, or a 0-dim float64 tensor where a caller replaced it."""

EXACT = Rounding(Kind.EXACT)
ROUND = Rounding(Kind.ROUND)
NARROWS = Rounding(Kind.ROUND, narrows=True)
FUNCTION = Rounding(Kind.FUNCTION)


class Show(Protocol):
    """Shows one step inside a fused operator to whoever observes the run, and gives what is to be used for it.

    ``stored`` says whether the kernel stores the step in the format of its result; else it is kept in the format the
    kernel accumulates in.
    """

    def __call__(
        self,
        name: str,
        output: torch.Tensor,
        rounding: Rounding,
        inputs: Sequence[torch.Tensor | None] = (),
        /,
        *,
        stored: bool = True,
    ) -> torch.Tensor: ...


def dot(length: int, squares: Callable[[], torch.Tensor] | None = None) -> Rounding:
    """Rounding of sums of ``length`` products."""
    return Rounding(Kind.DOT, max(int(length), 1), squares)


def summed(length: int, squares: Callable[[], torch.Tensor] | None = None) -> Rounding:
    """Rounding of sums of ``length`` terms."""
    return Rounding(Kind.SUM, max(int(length), 1), squares)


def multiplied(factors: int | torch.Tensor, result: torch.Tensor, stored: bool = False) -> Rounding:
    """Rounding of products of so many factors: every multiplication rounds the whole once, in whatever order.

    ``stored`` says whether the kernel keeps the product on the way in the format of its result.
    """
    more = torch.as_tensor(factors - 1, dtype=torch.float64, device=result.device).clamp(min=0.0).sqrt()
    return Rounding(Kind.ROUND, parts=lambda: result.abs() * more, stored=stored)


def normed(length: int) -> Rounding:
    """Rounding of a normalisation over ``length`` elements."""
    return Rounding(Kind.NORM, max(int(length), 1))


def softened(length: int) -> Rounding:
    """Rounding of a softmax over ``length`` elements."""
    return Rounding(Kind.SOFTMAX, max(int(length), 1))


class ProductSquares:
    """Estimate the sum of squared products of ``a @ b`` in the rank-1 form ``|a_i|^2 |b_j|^2 / K``.

    Within 3 % of the exact sum on matrix products of transformers, and without a second product. Whoever asks again, or
    for the sizes of the factors, needs no further look at them: weights are large.

    Parameters
    ----------
    a : torch.Tensor, (..., M, K) or (K,)
    b : torch.Tensor, (..., K, N) or (K,)
    scale : float or torch.Tensor, shape ()
        What all products are multiplied by.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, scale: Number = 1.0):
        self._a, self._b, self._scale = a, b, scale

    @functools.cached_property
    def _rows(self) -> torch.Tensor:
        return _square_norms(self._a) if self._a.dim() > 1 else self._a.square().sum()

    @functools.cached_property
    def _columns(self) -> torch.Tensor:
        return _square_norms(self._b.mT).mT if self._b.dim() > 1 else self._b.square().sum()

    def __call__(self) -> torch.Tensor:
        """Return what broadcasts to the shape of ``a @ b``."""
        rows, columns = self.factors()
        if self._b.dim() == 1 and self._a.dim() > 1:
            rows = rows.squeeze(-1)
        if self._a.dim() == 1 and self._b.dim() > 1:
            columns = columns.squeeze(-2)
        return rows * columns

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is to be multiplied: of matrices (..., M, 1) and (..., 1, N)."""
        return self._rows, self._columns * (self._scale * self._scale / max(self._a.shape[-1], 1))

    def sizes(self) -> tuple[float, float]:
        """Root mean squares of the two factors."""
        sums = (float(self._rows.sum()), self._a.numel()), (float(self._columns.sum()), self._b.numel())
        one, two = (math.sqrt(total / max(count, 1)) for total, count in sums)
        return one, two


def matmul_squares(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Estimate the sum of squared products of ``a @ b``; see :class:`ProductSquares`."""
    return ProductSquares(a, b)()


def matrix_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``, a stack of matrices times one matrix as one product.

    torch multiplies row by row where the stack lies transposed in memory, as one of single rows does that swapped batch
    and sequence: eight times slower.
    """
    if a.dim() <= 2 or b.dim() != 2:
        return torch.matmul(a, b)
    return torch.mm(a.flatten(0, -2), b).view(*a.shape[:-1], b.shape[1])


def product(a: torch.Tensor, b: torch.Tensor) -> Rounding:
    """Rounding of ``a @ b``."""
    return dot(a.shape[-1], ProductSquares(a, b))


# Elements squared at a time.
_BLOCK = 1 << 18


def _square_norms(rows: torch.Tensor) -> torch.Tensor:
    """Sum of squares along the last axis, kept."""
    if rows.stride(-1) == 1:
        # One pass without a temporary, but fifteen times slower where elements lie apart.
        norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return norms.square_()
    # By blocks: a fresh temporary as large as a weight costs more than its arithmetic.
    width = max(_BLOCK * rows.shape[-1] // max(rows.numel(), 1), 1)
    first: torch.Tensor
    first, *others = (piece.square().sum(-1, keepdim=True) for piece in rows.split(width, -1))
    for other in others:
        first += other
    return first


def length_of(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Number of elements reduced over some axes of a shape."""
    return math.prod(shape[a] for a in axes)


def as_like(value: Number, x: torch.Tensor) -> torch.Tensor:
    """A number as a 0-dim tensor of the dtype and device of ``x``; a gradient goes through."""
    if isinstance(value, torch.Tensor):
        return value.to(device=x.device, dtype=x.dtype)
    return torch.tensor(value, dtype=x.dtype, device=x.device)
