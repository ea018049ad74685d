"""Primitives that read and write at computed positions.

A gather of XLA reads one window per row of an index array; here the positions of all its elements are written out, one
array per dimension of the operand, and torch indexes with them. The rules for positions outside are those of
https://openxla.org/xla/operation_semantics#gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from driftscope.errors import CannotLift
from driftscope.lift.jax.rules.elementwise import Rule

Tensor = torch.Tensor


def _line(size: int, dim: int, rank: int) -> Tensor:
    """0, 1, 2, ... along one dimension of so many."""
    return torch.arange(size).reshape([size if d == dim else 1 for d in range(rank)])


def _positions(
    shape: Sequence[int],
    indices: Tensor,
    sizes: Sequence[int],
    started: Sequence[int],
    dropped: Sequence[int],
    batches: Sequence[tuple[int, int]],
    offset_dims: Sequence[int],
    rank: int,
    clip: bool,
) -> tuple[list[Tensor], Tensor | None]:
    """Give the position of every element in each dimension of the operand, and which of them lie inside.

    Parameters
    ----------
    shape, sizes : sequence of int
        Of the operand, and of a window of it.
    indices : int Tensor, shape (..., K)
        Where each window starts, in the dimensions `started`.
    dropped : sequence of int
        Dimensions of the operand in which windows have size 1 and the result has none.
    batches : sequence of (int, int)
        Dimensions of the operand that follow a dimension of `indices`.
    offset_dims : sequence of int
        Where the dimensions of a window lie in the result, which has `rank` dimensions.
    clip : bool
        Whether a window that reaches over the edge is moved inside.
    """
    outer = [d for d in range(rank) if d not in offset_dims]  # those of the windows themselves
    windows = dict(zip((d for d in range(len(shape)) if d not in dropped), offset_dims, strict=True))
    places: list[Tensor] = []
    inside: Tensor | None = None
    for dim, size in enumerate(shape):
        place = torch.zeros([1] * rank, dtype=torch.int64)
        if dim in started:
            start = indices[..., list(started).index(dim)].to(torch.int64)
            if clip:
                start = torch.clamp(start, 0, size - sizes[dim])
            else:
                fits = (start >= 0) & (start <= size - sizes[dim])
                inside = fits if inside is None else inside & fits
                start = torch.clamp(start, 0, size - sizes[dim])
            place = place + start.reshape(_spread(start.shape, outer, rank))
        for own, other in batches:
            if own == dim:
                place = place + _line(size, outer[other], rank)
        if dim in windows and sizes[dim] > 1:
            place = place + _line(sizes[dim], windows[dim], rank)
        places.append(place)
    return places, None if inside is None else inside.reshape(_spread(inside.shape, outer, rank))


def _spread(shape: Sequence[int], dims: Sequence[int], rank: int) -> list[int]:
    sizes = [1] * rank
    for dim, size in zip(dims, shape, strict=True):
        sizes[dim] = size
    return sizes


def _mode(mode: Any) -> str:
    return getattr(mode, "name", str(mode)).rpartition(".")[2].upper()


def _gather(
    x: Tensor, indices: Tensor, dimension_numbers: Any, slice_sizes: Sequence[int], mode: Any, fill_value: Any, **_: Any
) -> Tensor:
    numbers = dimension_numbers
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    batches = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    rank = indices.dim() - 1 + len(numbers.offset_dims)
    places, inside = _positions(
        x.shape, indices, slice_sizes, numbers.start_index_map, dropped, batches, numbers.offset_dims, rank,
        _mode(mode) == "CLIP",
    )  # fmt: skip
    windows = (slice_sizes[d] for d in range(x.dim()) if d not in dropped)
    sizes = _spread(indices.shape[:-1], [d for d in range(rank) if d not in numbers.offset_dims], rank)
    for dim, size in zip(numbers.offset_dims, windows, strict=True):
        sizes[dim] = size
    found = x[tuple(places)] if places else x
    found = found if list(found.shape) == sizes else found.expand(sizes)
    if inside is None or _mode(mode) != "FILL_OR_DROP" or bool(inside.all()):
        return found
    outside = _filling(x) if fill_value is None else fill_value
    return torch.where(inside, found, torch.tensor(outside, dtype=x.dtype))


def _filling(x: Tensor) -> Any:
    if x.is_floating_point() or x.is_complex():
        return float("nan")
    return torch.iinfo(x.dtype).min if x.dtype.is_signed else torch.iinfo(x.dtype).max


def _scatter(reduce: str) -> Rule:
    def rule(x: Tensor, indices: Tensor, updates: Tensor, dimension_numbers: Any, mode: Any, **_: Any) -> Tensor:
        numbers = dimension_numbers
        dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        batches = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
        kept = [d for d in range(x.dim()) if d not in dropped]
        sizes = [1] * x.dim()
        for dim, window in zip(kept, numbers.update_window_dims, strict=True):
            sizes[dim] = updates.shape[window]
        places, inside = _positions(
            x.shape, indices, sizes, numbers.scatter_dims_to_operand_dims, dropped, batches,
            numbers.update_window_dims, updates.dim(), _mode(mode) == "CLIP",
        )  # fmt: skip
        if inside is not None and not bool(inside.all()):
            raise CannotLift("a scatter of JAX beyond the edge of its array has no float64 evaluation")
        return _written(x, places, updates, reduce)

    return rule


def _written(x: Tensor, places: list[Tensor], updates: Tensor, reduce: str) -> Tensor:
    if not places:
        combined: Tensor = _COMBINED[reduce](x, updates)
        return combined
    if reduce in ("set", "sum"):
        whole = tuple(place.expand(updates.shape) for place in places)
        return torch.index_put(x, whole, updates, accumulate=reduce == "sum")
    flat = torch.zeros([1] * updates.dim(), dtype=torch.int64)
    for place, size in zip(places, x.shape, strict=True):
        flat = flat * size + place
    at = flat.expand(updates.shape).reshape(-1)
    return x.reshape(-1).scatter_reduce(0, at, updates.reshape(-1), reduce).reshape(x.shape)


_COMBINED: dict[str, Rule] = {
    "set": lambda x, y: y, "sum": torch.add, "prod": torch.mul, "amin": torch.minimum, "amax": torch.maximum,
}  # fmt: skip


def _starts(starts: Sequence[Tensor], shape: Sequence[int], sizes: Sequence[int]) -> tuple[Tensor, ...]:
    rank = len(shape)
    found = []
    for dim, (start, size, window) in enumerate(zip(starts, shape, sizes, strict=True)):
        found.append(torch.clamp(start.to(torch.int64), 0, size - window) + _line(window, dim, rank))
    return tuple(found)


def _dynamic_slice(x: Tensor, *starts: Tensor, slice_sizes: Sequence[int], **_: Any) -> Tensor:
    for dim, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        if size != x.shape[dim]:
            at = torch.clamp(start.to(torch.int64), 0, x.shape[dim] - size) + torch.arange(size)
            x = torch.index_select(x, dim, at)
    return x


def _dynamic_update_slice(x: Tensor, update: Tensor, *starts: Tensor, **_: Any) -> Tensor:
    if not starts:
        return update
    whole = tuple(place.expand(update.shape) for place in _starts(starts, x.shape, update.shape))
    return torch.index_put(x, whole, update)


INDEXING: dict[str, Rule] = {
    "gather": _gather,
    "scatter": _scatter("set"),
    "scatter-add": _scatter("sum"),
    "scatter-mul": _scatter("prod"),
    "scatter-min": _scatter("amin"),
    "scatter-max": _scatter("amax"),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
