"""Reductions along axes: sums, means, norms, products, extremes, running sums, and the places of extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import length_of, multiplied, summed
from driftscope.lift.onnx.registry import Node, Result, axis_of, integers_of, operator
from driftscope.lift.steps import Kind, Rounding


@dataclass(frozen=True, slots=True)
class ReduceRule:
    """How one Reduce operator works: its function of (tensor, axes, keepdim), its terms, its kind."""

    function: Callable[[Tensor, list[int], bool], Tensor]
    kind: Kind
    terms: Callable[[Tensor], Tensor] | None = None


def _extreme(function: Callable[..., Tensor]) -> Callable[[Tensor, list[int], bool], Tensor]:
    def reduce(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if not axes:
            return x
        wide = x.to(torch.uint8) if x.dtype == torch.bool else x
        if math.prod(x.shape[a] for a in axes) == 0:
            return _empty_extreme(wide, axes, keep, largest=function is torch.amax).to(x.dtype)
        return function(wide, dim=axes, keepdim=keep).to(x.dtype)

    return reduce


def _empty_extreme(x: Tensor, axes: list[int], keep: bool, *, largest: bool) -> Tensor:
    if x.is_floating_point():
        value: float = -math.inf if largest else math.inf
    else:
        info = torch.iinfo(x.dtype)
        value = info.min if largest else info.max
    shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
    if not keep:
        shape = [n for i, n in enumerate(x.shape) if i not in axes]
    return torch.full(shape, value, dtype=x.dtype, device=x.device)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.is_floating_point() or x.is_complex():
        return x.mean(axes, keepdim=keep)
    return torch.div(x.sum(axes, keepdim=keep), length_of(x.shape, axes), rounding_mode="trunc").to(x.dtype)


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    wide = x if x.is_floating_point() else x.to(torch.float64)
    return torch.logsumexp(wide, axes, keepdim=keep).to(x.dtype)


def _total(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


_REDUCTIONS = {
    "ReduceSum": ReduceRule(_total, Kind.SUM, lambda x: x),
    "ReduceMean": ReduceRule(_mean, Kind.SUM, lambda x: x),
    "ReduceL1": ReduceRule(lambda x, a, k: _total(x.abs(), a, k), Kind.SUM, lambda x: x),
    "ReduceL2": ReduceRule(lambda x, a, k: _total(x * x, a, k).sqrt().to(x.dtype), Kind.NORM),
    "ReduceSumSquare": ReduceRule(lambda x, a, k: _total(x * x, a, k), Kind.DOT, torch.square),
    "ReduceLogSum": ReduceRule(lambda x, a, k: _total(x, a, k).log().to(x.dtype), Kind.SOFTMAX),
    "ReduceLogSumExp": ReduceRule(_log_sum_exp, Kind.SOFTMAX),
    "ReduceProd": ReduceRule(_product, Kind.FUNCTION),
    "ReduceMax": ReduceRule(_extreme(torch.amax), Kind.EXACT),
    "ReduceMin": ReduceRule(_extreme(torch.amin), Kind.EXACT),
}


def _reduce(node: Node, x: Tensor, axes: list[int] | None) -> Result:
    reduction = _REDUCTIONS[node.op_type]
    keep = node.integer("keepdims", 1) == 1
    if not axes:
        if node.integer("noop_with_empty_axes", 0) == 1:
            return _elementwise(node, x, reduction)
        axes = list(range(x.dim()))
    axes = sorted({axis_of(a, x.dim()) for a in axes})
    if not axes:
        return _elementwise(node, x, reduction)
    length = length_of(x.shape, axes)
    terms = reduction.terms
    squares = None
    if terms is not None:
        scale = 1.0 / length**2 if node.op_type == "ReduceMean" and length else 1.0
        squares = lambda: terms(x).square().sum(axes, keepdim=keep) * scale  # noqa: E731
    found = reduction.function(x, axes, keep)
    if node.op_type == "ReduceProd":
        return Result(found, multiplied(length, found))
    return Result(found, Rounding(reduction.kind, max(length, 1), squares))


def _elementwise(node: Node, x: Tensor, reduction: ReduceRule) -> Result:
    """A reduction over no axes: every element alone."""
    alone = {
        "ReduceL1": torch.abs,
        "ReduceL2": torch.abs,
        "ReduceSumSquare": torch.square,
        "ReduceLogSum": torch.log,
    }.get(node.op_type)
    return Result(x if alone is None else alone(x), Rounding(Kind.FUNCTION if alone is torch.log else Kind.EXACT))


def _by_attribute(node: Node, x: Tensor) -> Result:
    return _reduce(node, x, node.integers("axes", []) or None)


def _by_input(node: Node, x: Tensor, axes: Tensor | None = None) -> Result:
    return _reduce(node, x, integers_of(axes))


operator(*_REDUCTIONS, since=1)(_by_attribute)
operator("ReduceSum", since=13, host=(1,))(_by_input)
operator(*(name for name in _REDUCTIONS if name != "ReduceSum"), since=18, host=(1,))(_by_input)


@operator("ArgMax", "ArgMin")
def arg_extreme(node: Node, x: Tensor) -> Tensor:
    """Index of the largest or smallest native value along an axis, the first or last of equals."""
    decided = node.rounded(x)
    axis = axis_of(node.integer("axis", 0), x.dim())
    best = torch.amax if node.op_type == "ArgMax" else torch.amin
    hit = decided == best(decided, dim=axis, keepdim=True)
    keep = node.integer("keepdims", 1) == 1
    if node.integer("select_last_index", 0):
        last = x.shape[axis] - 1
        return last - hit.flip(axis).to(torch.uint8).argmax(axis, keepdim=keep)
    return hit.to(torch.uint8).argmax(axis, keepdim=keep)


@operator("CumSum", "CumProd", host=(1,))
def cumulative(node: Node, x: Tensor, axis: Tensor) -> Result:
    """Running sum or product along an axis, optionally exclusive or from the end."""
    dim = axis_of(int(axis), x.dim())
    backwards = node.integer("reverse", 0) == 1
    x = x.flip(dim) if backwards else x
    running = torch.cumsum if node.op_type == "CumSum" else torch.cumprod
    neutral = 0 if node.op_type == "CumSum" else 1
    if node.integer("exclusive", 0) == 1:
        first = torch.full_like(x.narrow(dim, 0, min(1, x.shape[dim])), neutral)
        x = torch.cat([first, x.narrow(dim, 0, max(x.shape[dim] - 1, 0))], dim)
    result = running(x, dim, dtype=x.dtype)

    def squares() -> Tensor:
        # Each product is rounded once: its error is relative to the running product itself.
        terms = torch.cumsum(x.square(), dim) if node.op_type == "CumSum" else result.square()
        return _turned(terms, dim, backwards)

    return Result(_turned(result, dim, backwards), summed(x.shape[dim] if x.dim() else 1, squares))


def _turned(x: Tensor, dim: int, backwards: bool) -> Tensor:
    return x.flip(dim) if backwards else x
