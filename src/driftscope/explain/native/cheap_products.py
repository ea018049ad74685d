"""Products and sums computed otherwise than in float64, while a lifted graph runs.

Every formula of a lift ends in a few operators of torch: matrix products, convolutions, sums. A dispatch mode stands
between the formulas and these, so the factors of *every* product can be rounded, or every sum be added in another
accumulator, without a word in any formula, inside fused operators too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.errors import CannotLift
from driftscope.lift.steps import Observer, Step
from driftscope.numerics.formats import format_of

#: Additions that one replay of narrow accumulators may take, about a second, and how many are done in the time in which
#: one is begun.
_ADDITIONS, _BEGUN = 4e8, 100

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
# Formats to which numpy rounds a sum of float64 while it adds.
_IN_NUMPY: dict[torch.dtype, Any] = {torch.float16: np.float16, torch.float32: np.float32}


@dataclass(frozen=True, slots=True)
class _Cast:
    """Rounds to a format that torch has, ties to even."""

    dtype: torch.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype).to(x.dtype)


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
        return _Cast(getattr(torch, name))
    bits = float(known.p)
    ways: dict[str, Rounded] = {"even": torch.round, "cut": torch.trunc, "away": _nearest_away}
    round_one = ways[ties]

    def rounded(x: torch.Tensor) -> torch.Tensor:
        fraction, exponent = torch.frexp(x)
        return torch.where(torch.isfinite(x), torch.ldexp(round_one(fraction * 2.0**bits), exponent - int(bits)), x)

    return rounded


def _nearest_away(x: torch.Tensor) -> torch.Tensor:
    return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))


_ASIDE: ContextVar[bool] = ContextVar("driftscope_products_aside", default=False)


def aside(observer: Observer) -> Observer:
    """An observer of which no block changes what it computes itself."""

    def called(step: Step) -> Sequence[torch.Tensor | None] | None:
        token = _ASIDE.set(True)
        try:
            return observer(step)
        finally:
            _ASIDE.reset(token)

    return called


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
        if _ASIDE.get():
            return func(*args, **kwargs)
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
        total = self._running(left.movedim(-1, 0)[..., None], right.movedim(-2, 0)[..., None, :])
        total = total.reshape(total.shape[: total.dim() - (first.dim() < 2) - (second.dim() < 2)])
        if packet in (_aten.addmm, _aten.baddbmm, _aten.addmv):
            with_bias: torch.Tensor = kwargs.get("alpha", 1) * total + kwargs.get("beta", 1) * given[0]
            return with_bias
        return total

    def _summed(self, packet: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        x = args[0]
        if packet is _aten.cumsum:
            if not x.dim() or not x.numel():
                return func(*args, **kwargs)  # type: ignore[no-any-return]
            rows = x.movedim(args[1], 0)
            made = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
            self._running(rows, made=made)
            return made.movedim(0, args[1])
        axes = args[1] if len(args) > 1 and args[1] is not None else range(x.dim())
        axes = sorted({axis % max(x.dim(), 1) for axis in axes} or set(range(x.dim())))
        length = math.prod(x.shape[axis] for axis in axes)
        if length < 2:
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        kept = [axis for axis in range(x.dim()) if axis not in axes]
        terms = x.permute(*axes, *kept).reshape(length, *(x.shape[axis] for axis in kept))
        total = self._running(terms, lanes=self._sums)
        total = total / length if packet is _aten.mean else total
        if len(args) > 2 and args[2]:
            total = total.reshape([1 if axis in axes else n for axis, n in enumerate(x.shape)])
        return total

    def _running(
        self, terms: torch.Tensor, factors: torch.Tensor | None = None, lanes: int = 1, made: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add terms, or their products with factors, along the first axis; ``made`` takes what it came to each time."""
        length, shape = len(terms), np.broadcast_shapes(*(t.shape[1:] for t in (terms, factors) if t is not None))
        self._additions += math.prod(shape) * length + _BEGUN * length / lanes
        if self._additions > _ADDITIONS:
            raise CannotLift("its sums are too long to be added again one term after the other")
        totals = terms.new_zeros((lanes, *shape))
        product, total = self._product, self._total
        if isinstance(total, _Cast) and product in (None, total) and total.dtype in _IN_NUMPY and terms.is_cpu:
            _add_in_numpy(total, terms, factors, totals, made, rounds_products=product is not None)
            return _joined(totals, total)
        for k in range(0, length, lanes):
            some = terms[k : k + lanes] if factors is None else terms[k : k + lanes] * factors[k : k + lanes]
            some = some if product is None else product(some)
            totals[: len(some)] = total(totals[: len(some)] + some)  # type: ignore[misc]
            if made is not None:
                made[k] = totals[0]
        return _joined(totals, total)  # type: ignore[arg-type]


def _add_in_numpy(
    total: _Cast, terms: torch.Tensor, factors: torch.Tensor | None, totals: torch.Tensor, made: torch.Tensor | None,
    *, rounds_products: bool,
) -> None:  # fmt: skip
    """Add as :meth:`Changed._running` does, in a tenth of the time where terms are short."""
    one, two, kept = (None if t is None else t.resolve_neg().contiguous().numpy() for t in (terms, factors, made))
    sums = np.zeros(totals.shape, _IN_NUMPY[total.dtype])
    lanes = len(sums)
    with np.errstate(all="ignore"):
        for k in range(0, len(terms), lanes):
            some = one[k : k + lanes] if two is None else one[k : k + lanes] * two[k : k + lanes]  # type: ignore[index]
            some = some.astype(sums.dtype) if rounds_products else some
            part = sums[: len(some)]
            np.add(part, some, out=part, dtype=np.float64, casting="same_kind")
            if kept is not None:
                kept[k] = sums[0]
    totals.copy_(torch.from_numpy(sums))


def _joined(totals: torch.Tensor, total: Rounded) -> torch.Tensor:
    """Add the sums of several lanes in pairs."""
    while len(totals) > 1:
        half = len(totals) // 2
        totals = total(totals[:half] + totals[half:])
    return totals[0]


def _is_double(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64
