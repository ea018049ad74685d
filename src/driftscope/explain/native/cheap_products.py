"""Products and sums computed otherwise than in float64, while a lifted graph runs.

Every formula of a lift ends in a few operators of torch: matrix products, convolutions, sums. A dispatch mode stands
between the formulas and these, so the factors of *every* product can be rounded, or every sum be added in another
accumulator, without a word in any formula, inside fused operators too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.errors import CannotLift
from driftscope.numerics.formats import format_of

#: Additions, counted, that one replay of narrow accumulators may take: about a second.
_ADDITIONS = 4e8

_aten = torch.ops.aten
# Which arguments are the factors.
_FACTORS: dict[Any, tuple[int, int]] = {
    _aten.mm: (0, 1), _aten.bmm: (0, 1), _aten.mv: (0, 1), _aten.dot: (0, 1), _aten.vdot: (0, 1),
    _aten.addmm: (1, 2), _aten.baddbmm: (1, 2), _aten.addmv: (1, 2), _aten.convolution: (0, 1),
}  # fmt: skip
_STACKS = frozenset({_aten.bmm, _aten.baddbmm})
_SPREADS = frozenset({_aten.var, _aten.std})
_SUMS = frozenset({_aten.sum, _aten.mean, _aten.cumsum})

Rounded = Callable[[torch.Tensor], torch.Tensor]


def rounding_to(name: str, ties: str = "even") -> Rounded:
    """Return a function that rounds float64 values to a format by name and keeps them in float64.

    Parameters
    ----------
    name : str
        Such as ``"float16"`` or ``"tf32"``.
    ties : str
        ``"even"`` or ``"away"`` for ties of rounding to nearest, ``"cut"`` for rounding towards zero. (Conversion to
        TF32 on NVIDIA's devices rounds ties away from zero, ``cvt.rna.tf32``; some units drop the low bits.)
    """
    known = format_of(name)
    if known is None:
        raise ValueError(f"{name!r} is not a floating-point format")
    if ties == "even" and name != "tf32":
        dtype = getattr(torch, name)
        return lambda x: x.to(dtype).to(x.dtype)
    bits = float(known.p)
    ways: dict[str, Rounded] = {"even": torch.round, "cut": torch.trunc, "away": _nearest_away}
    round_one = ways[ties]

    def rounded(x: torch.Tensor) -> torch.Tensor:
        fraction, exponent = torch.frexp(x)
        return torch.where(torch.isfinite(x), torch.ldexp(round_one(fraction * 2.0**bits), exponent - int(bits)), x)

    return rounded


def _nearest_away(x: torch.Tensor) -> torch.Tensor:
    return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))


class Changed(TorchDispatchMode):
    """A block in which products and sums of float64 tensors are computed otherwise.

    Parameters
    ----------
    factors : callable or None
        Rounds both factors of every product.
    total : callable or None
        Rounds a running sum after each addition, one term after the other.
    product : callable or None
        Rounds each product before it is added (no fused multiplication and addition).
    stacks : bool
        Whether products of stacks of matrices (of two activations, as in attention) are computed so as well.
    sums : int
        In how many running sums, one for each lane of a register, values are added that are no products; these are
        added in pairs at the end. 0 where values are added as usual.
    dots : bool
        Whether sums of products are running sums, or those of values alone.

    Attributes
    ----------
    seen : set of bool
        Filled in the block: True for products of stacks, False for products of two matrices and convolutions.

    Raises
    ------
    CannotLift
        In the block, when running sums would take too long.
    """

    def __init__(
        self,
        factors: Rounded | None = None,
        total: Rounded | None = None,
        product: Rounded | None = None,
        stacks: bool = True,
        sums: int = 1,
        dots: bool = True,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self._factors, self._total, self._product = factors, total, product
        self._additions, self._stacks, self._sums, self._dots = 0.0, stacks, sums, dots
        self.seen = set[bool]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, kwargs = func.overloadpacket, kwargs or {}
        if packet in _FACTORS and _is_double(args[_FACTORS[packet][0]]):
            self.seen.add(packet in _STACKS)
            if packet in _STACKS and not self._stacks:
                return func(*args, **kwargs)
            given = list(args)
            for position in _FACTORS[packet] if self._factors is not None else ():
                given[position] = self._factors(given[position])  # type: ignore[misc]
            if self._total is not None and self._dots and packet is not _aten.convolution:
                return self._accumulated(packet, given, kwargs)
            return func(*given, **kwargs)
        if packet in _SUMS and self._sums and self._total is not None and _is_double(args[0]):
            return self._summed(packet, func, args, kwargs)
        if packet in _SPREADS and self._sums and self._total is not None and _is_double(args[0]):
            return self._spread(packet, func, args, kwargs)
        return func(*args, **kwargs)

    def _spread(self, packet: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        """A variance, or its root, by running sums of the values and of the squares of what is left of them."""
        x, axes = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
        mean = self._summed(_aten.mean, _aten.mean.dim, (x, axes, True), {})
        total = self._summed(_aten.sum, _aten.sum.dim_IntList, ((x - mean).square(), axes, kwargs.get("keepdim")), {})
        count = x.numel() // max(total.numel(), 1) - kwargs.get("correction", 1)
        if count < 1:
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        spread: torch.Tensor = total / count
        return spread if packet is _aten.var else spread.sqrt()

    def _accumulated(self, packet: Any, given: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        first, second = (given[p] for p in _FACTORS[packet])
        left = first if first.dim() > 1 else first[None, :]
        right = second if second.dim() > 1 else second[:, None]
        shape = (*torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
        total = self._running(shape, left.shape[-1], lambda k: left[..., k, None] * right[..., None, k, :], left)
        total = total.reshape(total.shape[: total.dim() - (first.dim() < 2) - (second.dim() < 2)])
        if packet in (_aten.addmm, _aten.baddbmm, _aten.addmv):
            with_bias: torch.Tensor = kwargs.get("alpha", 1) * total + kwargs.get("beta", 1) * given[0]
            return with_bias
        return total

    def _summed(self, packet: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        x = args[0]
        if packet is _aten.cumsum:
            made = list[torch.Tensor]()
            if x.dim():
                rows = x.movedim(args[1], 0)
                self._running(rows.shape[1:], len(rows), lambda k: rows[k], x, made=made)
            return torch.stack(made).movedim(0, args[1]) if made else func(*args, **kwargs)
        axes = args[1] if len(args) > 1 and args[1] is not None else range(x.dim())
        axes = sorted({axis % max(x.dim(), 1) for axis in axes} or set(range(x.dim())))
        length = math.prod(x.shape[axis] for axis in axes)
        if length < 2:
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        kept = [axis for axis in range(x.dim()) if axis not in axes]
        terms = x.permute(*kept, *axes).reshape(*(x.shape[axis] for axis in kept), length)
        total = self._running(terms.shape[:-1], length, lambda k: terms[..., k], x, self._sums)
        total = total / length if packet is _aten.mean else total
        if len(args) > 2 and args[2]:
            total = total.reshape([1 if axis in axes else n for axis, n in enumerate(x.shape)])
        return total

    def _running(
        self, shape: Sequence[int], length: int, term: Callable[[int], torch.Tensor], like: torch.Tensor,
        lanes: int = 1, made: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        self._additions += math.prod(shape) * length
        if self._additions > _ADDITIONS:
            raise CannotLift("its sums are too long to be added again one term after the other")
        totals = [like.new_zeros(tuple(shape))] * lanes
        for k in range(length):
            one = term(k) if self._product is None else self._product(term(k))
            totals[k % lanes] = self._total(totals[k % lanes] + one)  # type: ignore[misc]
            if made is not None:
                made.append(totals[k % lanes])
        while len(totals) > 1:
            half = len(totals) // 2
            totals = [self._total(x + y) for x, y in zip(totals[:half], totals[half:], strict=True)]  # type: ignore[misc]
        return totals[0]


def _is_double(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64
