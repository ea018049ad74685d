"""Two operands brought to tensors that can be walked together, remembering how to name a place in the originals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from driftscope.comparison.measuring.operands import Operand
from driftscope.comparison.measuring.pieces import position_of
from driftscope.numerics.formats import Format, format_of


@dataclass(frozen=True, slots=True)
class Aligned:
    """Two real dense tensors of one shape, and what they stand for.

    Parameters
    ----------
    a, b : Tensor
        Complex numbers as a last dimension of two; sparse tensors as the values stored on either side.
    low_a, low_b : Tensor or None
        What ``a`` and ``b`` leave out of a longer format, flat.
    comparable_bits : bool
        Whether both have one dtype, so that their bits can be compared.
    steps_in : Format or None
        The format in which ulps are counted; None when a side is not floating.
    coordinates : Tensor or None
        For sparse tensors, (sparse dimensions, stored): where each stored value belongs.
    is_complex : bool
    """

    a: torch.Tensor
    b: torch.Tensor
    low_a: torch.Tensor | None = None
    low_b: torch.Tensor | None = None
    comparable_bits: bool = True
    steps_in: Format | None = None
    coordinates: torch.Tensor | None = None
    is_complex: bool = False

    def low_between(self, start: int, stop: int) -> torch.Tensor | None:
        """Return what the piece ``start:stop`` of ``b - a`` still lacks, or None."""
        if self.low_a is None and self.low_b is None:
            return None
        zero = torch.zeros((), dtype=torch.float64)
        low_a = zero if self.low_a is None else self.low_a[start:stop]
        low_b = zero if self.low_b is None else self.low_b[start:stop]
        return low_b - low_a

    def index(self, inner: tuple[int, ...]) -> tuple[int, ...]:
        """Turn an index into ``a`` into one into the original value."""
        if self.is_complex:
            inner = inner[:-1]
        if self.coordinates is None:
            return inner
        return (*(int(i) for i in self.coordinates[:, inner[0]]), *inner[1:])

    def values(self, inner: tuple[int, ...]) -> tuple[str, str]:
        """Return both values at an index into ``a``, written so that they read back to the same bits."""
        if self.is_complex:
            inner = inner[:-1]
        place = position_of(inner, tuple(self.a.shape))
        sides = ((self.a, self.low_a), (self.b, self.low_b))
        left, right = (_written(x[inner], self.is_complex) + _rest(low, place) for x, low in sides)
        return left, right


def _rest(low: torch.Tensor | None, place: int) -> str:
    rest = 0.0 if low is None else float(low[place])
    return f"{rest:+}" if rest else ""


def _written(x: torch.Tensor, is_complex: bool) -> str:
    if is_complex:
        real, imaginary = (_written(part, False) for part in x)
        return f"{real}{'' if imaginary.startswith(('-', '+')) else '+'}{imaginary}j"
    if x.dtype == torch.float32:
        return str(np.float32(x.item()))  # the shortest digits that are this float32 and no other
    return repr(x.item())


def align(a: Operand, b: Operand) -> Aligned:
    """Bring two operands with numbers and one shape to tensors that can be walked together."""
    left, right = _tensors(a, b)
    coordinates = None
    if left.layout != torch.strided or right.layout != torch.strided:
        left, right, coordinates = _stored(left, right)
    is_complex = left.dtype.is_complex or right.dtype.is_complex
    if is_complex:
        left, right = (_parts(x) for x in (left, right))
    return Aligned(
        left,
        right,
        _flat(a.low),
        _flat(b.low),
        comparable_bits=left.dtype == right.dtype and _name(a, b) == _name(b, a) and a.low is None and b.low is None,
        steps_in=_coarser(a, b, left, right),
        coordinates=coordinates,
        is_complex=is_complex,
    )


def _tensors(a: Operand, b: Operand) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both tensors; a Python number takes the dtype of its partner where that loses no kind."""
    left, right = a.tensor, b.tensor
    if left is None or right is None:
        raise ValueError("only operands with numbers can be aligned")
    if a.weak and not b.weak:
        left = _adopt(left, right)
    elif b.weak and not a.weak:
        right = _adopt(right, left)
    return left, right


def _adopt(number: torch.Tensor, partner: torch.Tensor) -> torch.Tensor:
    kinds = [(x.dtype.is_complex, x.dtype.is_floating_point, x.dtype != torch.bool) for x in (number, partner)]
    fits = kinds[0] <= kinds[1] or (partner.dtype.is_floating_point and number.dtype.is_floating_point)
    adopted = number.to(partner.dtype) if fits else number
    return adopted if torch.equal(adopted.to(number.dtype), number) or number.dtype.is_floating_point else number


def _name(x: Operand, other: Operand) -> str:
    return other.dtype if x.weak else x.dtype


def _parts(x: torch.Tensor) -> torch.Tensor:
    if not x.dtype.is_complex:
        x = x.to(torch.float64)
        return torch.stack([x, torch.zeros_like(x)], dim=-1)
    return torch.view_as_real(x)


def _flat(low: torch.Tensor | None) -> torch.Tensor | None:
    return None if low is None else low.reshape(-1)


def _coarser(a: Operand, b: Operand, left: torch.Tensor, right: torch.Tensor) -> Format | None:
    """Return the coarser format: fewer significand bits, else the shorter range."""
    names = (str(left.dtype) if a.weak else a.dtype, str(right.dtype) if b.weak else b.dtype)
    formats = [format_of(name) for name in names]
    known = [f for f in formats if f is not None]
    if len(known) < 2 or a.low is not None or b.low is not None:
        return None
    return min(known, key=lambda f: (f.p, f.emax - f.emin))


def _stored(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the values stored on either side, in one order, and their coordinates; nothing is made dense."""
    left, right = (_coo(x) for x in (a, b))
    if left.sparse_dim() != right.sparse_dim():
        left, right = (x.to_dense().to_sparse() for x in (left, right))
    if not torch.equal(left.indices(), right.indices()):
        left, right = _united(left, right), _united(right, left)
    return left.values(), right.values(), left.indices()


def _coo(x: torch.Tensor) -> Any:
    if x.layout == torch.strided:
        return x.to_sparse()
    return (x if x.layout == torch.sparse_coo else x.to_sparse(layout=torch.sparse_coo)).coalesce()


def _united(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return ``x`` with a stored zero wherever only ``other`` stores something."""
    zeros = torch.zeros((other.values().shape[0], *x.values().shape[1:]), dtype=x.dtype, device=x.device)
    indices = torch.cat([x.indices(), other.indices().to(x.device)], dim=1)
    values = torch.cat([x.values(), zeros])
    return torch.sparse_coo_tensor(indices, values, tuple(x.shape), check_invariants=False).coalesce()
