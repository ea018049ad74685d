"""Gathering, scattering, slicing, and choosing by value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from driftscope.lift.formulas.terms import summed
from driftscope.lift.onnx.registry import Node, Result, axis_of, integers_of, operator, strings
from driftscope.lift.steps import Rounding


def _positive(indices: Tensor, length: int, like: Any) -> Tensor:
    indices = indices.to(torch.int64)
    if isinstance(like, Tensor):
        indices = indices.to(like.device)
    return torch.where(indices < 0, indices + length, indices)


@operator("Gather")
def gather(node: Node, x: Any, indices: Tensor) -> Any:
    """Slices along an axis."""
    axis = axis_of(node.integer("axis", 0), x.ndim)
    if isinstance(x, np.ndarray):
        return strings(np.take(x, indices.cpu().numpy(), axis))
    index = _positive(indices, x.shape[axis], x)
    flat = x.index_select(axis, index.reshape(-1))
    return flat.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@operator("GatherElements")
def gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """One element per index along an axis."""
    axis = axis_of(node.integer("axis", 0), x.dim())
    return torch.gather(x, axis, _positive(indices, x.shape[axis], x))


@operator("GatherND")
def gather_nd(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Slices at index tuples, with leading batch axes."""
    batch = node.integer("batch_dims", 0)
    depth = indices.shape[-1]
    count = math.prod(x.shape[:batch])  # of nothing, -1 could be anything
    tuples = _nd(indices.reshape(count, *indices.shape[batch:]), x.shape[batch:], x)
    rows = x.reshape(count, *x.shape[batch:])
    parts = [rows[i][tuple(tuples[i].unbind(-1))] for i in range(rows.shape[0])]
    if not parts:
        return x.new_zeros((*indices.shape[:-1], *x.shape[batch + depth :]))
    return torch.stack(parts).reshape(*indices.shape[:-1], *x.shape[batch + depth :])


def _nd(indices: Tensor, shape: Any, like: Any) -> Tensor:
    lengths = torch.tensor(list(shape[: indices.shape[-1]]), device=like.device)
    indices = indices.to(device=like.device, dtype=torch.int64)
    return torch.where(indices < 0, indices + lengths, indices)


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("Scatter", "ScatterElements")
def scatter_elements(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Result:
    """Write elements along an axis, optionally combined with what is there."""
    axis = axis_of(node.integer("axis", 0), x.dim())
    index = _positive(indices, x.shape[axis], x)
    how = node.text("reduction", "none")
    if how == "none":
        return Result(x.scatter(axis, index, updates))
    result = x.scatter_reduce(axis, index, updates, _REDUCE[how], include_self=True)
    return Result(result, summed(2) if how in ("add", "mul") else Rounding())


@operator("ScatterND")
def scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Result:
    """Write slices at index tuples, optionally combined with what is there."""
    how = node.text("reduction", "none")
    depth = indices.shape[-1]
    places = tuple(_nd(indices, x.shape, x).reshape(math.prod(indices.shape[:-1]), depth).unbind(-1))
    values = updates.reshape(math.prod(indices.shape[:-1]), *x.shape[depth:])
    result = x.clone()
    if how == "none":
        result[places] = values
        return Result(result)
    if how == "add":
        return Result(result.index_put(places, values, accumulate=True), summed(2))
    combine = {"mul": torch.mul, "max": torch.maximum, "min": torch.minimum}[how]
    for position in range(values.shape[0]):
        place = tuple(p[position] for p in places)
        result[place] = combine(result[place], values[position])
    return Result(result, summed(2) if how == "mul" else Rounding())


# -- slicing --------------------------------------------------------------------------------------------------


def _slice(x: Any, starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None) -> Any:
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis_of(axis, x.ndim)
        chosen = range(x.shape[axis])[slice(start, _end(end, step, x.shape[axis]), step)]
        if isinstance(x, np.ndarray):
            x = np.take(x, list(chosen), axis)
        elif step == 1:
            x = x.narrow(axis, chosen.start if len(chosen) else 0, len(chosen))
        else:
            x = x.index_select(axis, torch.tensor(list(chosen), dtype=torch.int64, device=x.device))
    return x


def _end(end: int, step: int, length: int) -> int | None:
    # Going down, an end before the first element means "to the beginning", which Python spells None.
    return None if step < 0 and end < -length else end


@operator("Slice")
def slice_by_attributes(node: Node, x: Any) -> Any:
    """Cut out a box (bounds as attributes, up to opset 9)."""
    axes = node.integers("axes") if node.has("axes") else None
    return _slice(x, node.integers("starts"), node.integers("ends"), axes, None)


@operator("Slice", since=10, host=(1, 2, 3, 4))
def slice_tensor(
    node: Node, x: Any, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Any:
    """Cut out a box, with steps of either sign."""
    return _slice(x, integers_of(starts) or [], integers_of(ends) or [], integers_of(axes), integers_of(steps))


@operator("ReverseSequence", host=(1,))
def reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first elements of every batch row."""
    batch, time = node.integer("batch_axis", 1), node.integer("time_axis", 0)
    rows = x.movedim((batch, time), (0, 1))
    result = rows.clone()
    for row, length in enumerate(integers_of(lengths) or []):
        result[row, :length] = rows[row, :length].flip(0)
    return result.movedim((0, 1), (batch, time))


# -- choosing by value ----------------------------------------------------------------------------------------


@operator("NonZero")
def non_zero(node: Node, x: Tensor) -> Tensor:
    """Indices of elements that are not zero in the native format, (rank, count)."""
    return torch.nonzero(node.rounded(x)).T


@operator("Compress")
def compress(node: Node, x: Tensor, condition: Tensor) -> Tensor:
    """Slices along an axis (or elements) where a condition holds."""
    chosen = torch.nonzero(condition).reshape(-1).to(x.device)
    if node.has("axis"):
        return x.index_select(axis_of(node.integer("axis"), x.dim()), chosen)
    return x.reshape(-1)[chosen]


@operator("TopK", since=1)
def top_k_by_attribute(node: Node, x: Tensor) -> Result:
    """Largest elements along an axis (``k`` as an attribute, up to opset 9)."""
    return _top_k(node, x, node.integer("k"))


@operator("TopK", since=10, host=(1,))
def top_k(node: Node, x: Tensor, k: Tensor) -> Result:
    """Largest or smallest elements along an axis, chosen by native value, first of equals."""
    return _top_k(node, x, int(k))


def _top_k(node: Node, x: Tensor, k: int) -> Result:
    axis = axis_of(node.integer("axis", -1), x.dim())
    largest = node.integer("largest", 1) == 1
    order = torch.sort(node.rounded(x), dim=axis, descending=largest, stable=True).indices
    index = order.narrow(axis, 0, min(k, x.shape[axis]))
    return Result((torch.gather(x, axis, index), index), formats=[node.format(0), torch.int64])


@operator("Unique")
def unique(node: Node, x: Tensor) -> Result:
    """Distinct native values (or slices), with first places, inverse and counts."""
    decided = node.rounded(x)
    axis = axis_of(node.integer("axis"), x.dim()) if node.has("axis") else None
    rows = decided.reshape(-1, 1) if axis is None else decided.movedim(axis, 0).reshape(x.shape[axis], -1)
    _, inverse, counts = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    places = torch.arange(len(rows), device=x.device)
    first = torch.full((len(counts),), len(rows), device=x.device).scatter_reduce(0, inverse, places, "amin")
    if node.integer("sorted", 1) == 0:
        order = first.argsort()
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=x.device)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    values = x.reshape(-1)[first] if axis is None else x.index_select(axis, first)
    return Result((values, first, inverse, counts), formats=[node.format(0), *[torch.int64] * 3])


@operator("OneHot", since=9, host=(1,))
def one_hot(node: Node, indices: Tensor, depth: Tensor, values: Tensor) -> Result:
    """``values[1]`` at the index along a new axis, ``values[0]`` elsewhere."""
    count = int(depth.reshape(-1)[0])
    axis = node.integer("axis", -1)
    places = torch.trunc(node.rounded(indices)).to(torch.int64) if indices.is_floating_point() else indices.long()
    inside = (places >= -count) & (places < count)
    places = torch.where(places < 0, places + count, places)
    hot = (places.unsqueeze(-1) == torch.arange(count, device=places.device)) & inside.unsqueeze(-1)
    picked = torch.where(hot, values[1], values[0])
    return Result(picked.movedim(-1, axis_of(axis, indices.dim() + 1)), formats=[node.format(2)])


@operator("NonMaxSuppression", since=10, host=(2, 3, 4))
def non_max_suppression(
    node: Node,
    boxes: Tensor,
    scores: Tensor,
    count: Tensor | None = None,
    overlap: Tensor | None = None,
    least: Tensor | None = None,
) -> Tensor:
    """Boxes kept greedily by native score, none overlapping a better one too much: rows (batch, class, box)."""
    boxes, scores = node.rounded(boxes, 0).cpu(), node.rounded(scores, 1).cpu()
    limit = 0 if count is None else int(count)
    threshold = 0.0 if overlap is None else float(node.rounded(overlap, 3))
    floor = None if least is None else float(node.rounded(least, 4))
    corners = _corners(boxes, node.integer("center_point_box", 0) == 1)
    kept = []
    for batch in range(scores.shape[0]):
        for category in range(scores.shape[1]):
            row = scores[batch, category]
            chosen = _greedy(corners[batch], row, limit, threshold, floor)
            kept += [[batch, category, box] for box in chosen]
    return torch.tensor(kept, dtype=torch.int64, device=node.device).reshape(-1, 3)


def _corners(boxes: Tensor, centred: bool) -> Tensor:
    if centred:
        x, y, w, h = boxes.unbind(-1)
        return torch.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return torch.cat([torch.minimum(a, b), torch.maximum(a, b)], -1)


def _greedy(boxes: Tensor, scores: Tensor, limit: int, threshold: float, floor: float | None) -> list[int]:
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    for index in torch.sort(scores, descending=True, stable=True).indices.tolist():
        if len(kept) >= limit:
            break
        if floor is not None and not scores[index] > floor:
            continue
        if kept:
            others = boxes[kept]
            side = (
                torch.minimum(boxes[index, 2:], others[:, 2:]) - torch.maximum(boxes[index, :2], others[:, :2])
            ).clamp(min=0)
            common = side.prod(-1)
            union = area[index] + area[kept] - common
            if bool((torch.where(union > 0, common / union, torch.zeros_like(common)) > threshold).any()):
                continue
        kept.append(index)
    return kept


@operator("TensorScatter", since=24)
def tensor_scatter(node: Node, past: Tensor, update: Tensor, indices: Tensor | None = None) -> Result:
    """Write an update into a cache at a place per batch row, linearly or around."""
    axis = axis_of(node.integer("axis", -2), past.dim())
    length, width = past.shape[axis], update.shape[axis]
    batch = past.shape[0]
    start = torch.zeros(batch, dtype=torch.int64, device=past.device) if indices is None else indices.to(past.device)
    places = start[:, None] + torch.arange(width, device=past.device)
    if node.text("mode", "linear") == "circular":
        places = places % length
    shape = [batch] + [1] * (past.dim() - 1)
    shape[axis] = width
    return Result(past.scatter(axis, places.reshape(shape).expand(update.shape), update))
