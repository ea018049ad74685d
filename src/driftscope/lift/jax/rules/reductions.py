"""Primitives along axes: reductions, accumulations, windows, orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from driftscope.errors import CannotLift
from driftscope.lift.arrays.tracing import torch_dtype
from driftscope.lift.jax.rules.elementwise import Rule
from driftscope.lift.jax.rules.shapes import pad

Tensor = torch.Tensor


def _along(function: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Rule:
    def rule(x: Tensor, axes: Sequence[int], **_: Any) -> Tensor:
        return function(x, tuple(int(a) for a in axes)) if len(axes) else x

    return rule


def _sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return torch.sum(x, axes, dtype=x.dtype)


def _one_by_one(function: Callable[[Tensor, int], Tensor]) -> Rule:
    def rule(x: Tensor, axes: Sequence[int], **_: Any) -> Tensor:
        for axis in sorted(axes, reverse=True):
            x = function(x, int(axis))
        return x

    return rule


def _chosen(function: Callable[..., Tensor]) -> Rule:
    def rule(x: Tensor, axes: Sequence[int], index_dtype: Any, **_: Any) -> Tensor:
        (axis,) = axes
        return function(x, int(axis)).to(torch_dtype(np.dtype(index_dtype)))

    return rule


def _accumulated(function: Callable[[Tensor, int], Tensor]) -> Rule:
    def rule(x: Tensor, axis: int, reverse: bool, **_: Any) -> Tensor:
        return torch.flip(function(torch.flip(x, (axis,)), axis), (axis,)) if reverse else function(x, axis)

    return rule


def _sort(*operands: Tensor, dimension: int, num_keys: int, **_: Any) -> list[Tensor]:
    order: Tensor | None = None
    for key in reversed(operands[:num_keys]):  # the last key first: every later sort is stable
        now = key if order is None else torch.gather(key, dimension, order)
        step = torch.sort(now, dim=dimension, stable=True).indices
        order = step if order is None else torch.gather(order, dimension, step)
    assert order is not None
    return [torch.gather(operand, dimension, order) for operand in operands]


def _top_k(x: Tensor, k: int, axis: int = -1, **_: Any) -> list[Tensor]:
    found = torch.sort(x, dim=axis, descending=True, stable=True)
    return [part.narrow(axis, 0, k) for part in found]


def _windows(function: Callable[[Tensor, tuple[int, ...]], Tensor], start: Callable[[torch.dtype], Any]) -> Rule:
    def rule(
        x: Tensor,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        base_dilation: Any = None,
        window_dilation: Any = None,
        **_: Any,
    ) -> Tensor:
        if any(k != 1 for k in (*(base_dilation or ()), *(window_dilation or ()))):
            raise CannotLift("a reduction over dilated windows of JAX has no float64 evaluation")
        outside = torch.full((), start(x.dtype), dtype=x.dtype)
        x = pad(x, outside, [(low, high, 0) for low, high in padding])
        moved = [d for d, (size, step) in enumerate(zip(window_dimensions, window_strides, strict=True))
                 if (size, step) != (1, 1)]  # fmt: skip
        for dim in moved:
            x = x.unfold(dim, window_dimensions[dim], window_strides[dim])
        rank = len(window_dimensions)
        return function(x, tuple(range(rank, rank + len(moved)))) if moved else x

    return rule


def _lowest(dtype: torch.dtype) -> Any:
    return -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> Any:
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


REDUCTIONS: dict[str, Rule] = {
    "reduce_sum": _along(_sum),
    "reduce_max": _along(torch.amax),
    "reduce_min": _along(torch.amin),
    "reduce_prod": _one_by_one(lambda x, axis: torch.prod(x, axis)),
    "reduce_and": _one_by_one(lambda x, axis: torch.all(x, axis)),
    "reduce_or": _one_by_one(lambda x, axis: torch.any(x, axis)),
    "argmax": _chosen(torch.argmax),
    "argmin": _chosen(torch.argmin),
    "cumsum": _accumulated(torch.cumsum),
    "cumprod": _accumulated(torch.cumprod),
    "cummax": _accumulated(lambda x, axis: torch.cummax(x, axis).values),
    "cummin": _accumulated(lambda x, axis: torch.cummin(x, axis).values),
    "cumlogsumexp": _accumulated(torch.logcumsumexp),
    "sort": _sort,
    "top_k": _top_k,
    "reduce_window_sum": _windows(torch.sum, lambda _: 0),
    "reduce_window_max": _windows(torch.amax, _lowest),
    "reduce_window_min": _windows(torch.amin, _highest),
}
