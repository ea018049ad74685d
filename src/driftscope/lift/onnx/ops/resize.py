"""Resize and Upsample, axis by axis: nearest pixels are chosen natively, weights are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from driftscope.lift.formulas.terms import dot
from driftscope.lift.onnx.registry import Node, Result, axis_of, operator
from driftscope.lift.steps import Kind, Rounding

Floats: TypeAlias = Any  # numpy arrays of float32 or float64


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """One resized axis: lengths, scale, region of interest (start and end, relative)."""

    length: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _coordinates(mode: str, axis: ResizedAxis, dtype: Any) -> Floats:
    """Input coordinate of every output element, computed in ``dtype``."""
    x = np.arange(axis.output, dtype=dtype)
    scale, one, half = dtype(axis.scale), dtype(1), dtype(0.5)
    n, m = dtype(axis.length), dtype(axis.output)
    if mode == "align_corners":
        return x * ((n - one) / (m - one)) if axis.output > 1 else x * 0
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_half_pixel_for_nn":
        return (x + half) / scale
    if mode == "tf_crop_and_resize":
        start, end = dtype(axis.start), dtype(axis.end)
        if axis.output == 1:
            return x * 0 + half * (start + end) * (n - one)
        return start * (n - one) + x * (end - start) * (n - one) / (m - one)
    pixel = (x + half) / scale - half
    if mode == "pytorch_half_pixel":
        return pixel if axis.output > 1 else x * 0
    if mode == "half_pixel_symmetric":
        adjustment = m / (scale * n)
        return n / dtype(2) * (one - adjustment) + pixel
    return pixel


def _nearest(x: Floats, mode: str, scale: float) -> Floats:
    if mode == "floor":
        return np.floor(x)
    if mode == "ceil":
        return np.ceil(x)
    if mode == "simple":  # opset 10 and Upsample say nothing more
        return np.ceil(x) if scale < 1 else np.floor(x)
    if mode == "round_prefer_ceil":
        return np.floor(x + x.dtype.type(0.5))
    return np.ceil(x - x.dtype.type(0.5))


def _linear(distance: Floats) -> Floats:
    return np.clip(1 - np.abs(distance), 0, None)


def _cubic(distance: Floats, a: float) -> Floats:
    """Keys' cubic convolution kernel (1981)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _weights(node: Node, x: Floats, axis: ResizedAxis, mode: str) -> Floats:
    """Weights of an axis as a matrix (output, length)."""
    reach = 2 if mode == "cubic" else 1
    shrink = min(axis.scale, 1.0) if node.integer("antialias", 0) else 1.0
    taps = math.ceil(reach / shrink)
    places = np.floor(x)[:, None] + np.arange(1 - taps, taps + 1)
    distance = (places - x[:, None]) * shrink
    weights = _cubic(distance, node.setting("cubic_coeff_a", -0.75)) if mode == "cubic" else _linear(distance)
    if shrink < 1.0:
        weights = weights / weights.sum(1, keepdims=True)
    if node.integer("exclude_outside", 0):
        weights = np.where((places >= 0) & (places < axis.length), weights, 0.0)
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((axis.output, axis.length))
    rows = np.broadcast_to(np.arange(axis.output)[:, None], places.shape)
    np.add.at(matrix, (rows, np.clip(places, 0, axis.length - 1).astype(int)), weights)
    return matrix


def _weighted(x: Tensor, weights: Tensor) -> Tensor:
    """Sums of the last axis by the rows of a matrix; an infinity reaches those that give it a weight."""
    if bool(torch.isfinite(x).all()):
        return torch.matmul(x, weights.T)
    terms = x.unsqueeze(-2) * weights
    return torch.where(weights == 0, torch.zeros_like(terms), terms).sum(-1)


def resize_axes(node: Node, x: Tensor, axes: dict[int, ResizedAxis], mode: str, transform: str, nearest: str) -> Result:
    """Resize some axes of a tensor, one after the other."""
    outside: list[tuple[int, Tensor]] = []
    length = 1
    for index, axis in axes.items():
        if transform == "tf_crop_and_resize":
            spots = _coordinates(transform, axis, np.float32)
            outside.append((index, torch.from_numpy((spots < 0) | (spots > axis.length - 1))))
        elif axis.length == axis.output and axis.scale == 1.0:
            continue
        if mode == "nearest":
            chosen = _nearest(_coordinates(transform, axis, np.float32), nearest, axis.scale)
            picked = torch.from_numpy(np.clip(chosen, 0, axis.length - 1).astype(np.int64))
            x = x.index_select(index, picked.to(x.device))
            continue
        matrix = torch.from_numpy(_weights(node, _coordinates(transform, axis, np.float64), axis, mode))
        length *= int((matrix != 0).sum(1).max()) if matrix.numel() else 1
        wide = x if x.is_floating_point() else x.to(torch.float64)
        moved = _weighted(wide.movedim(index, -1), matrix.to(wide))
        x = moved.movedim(-1, index).to(x.dtype) if x.is_floating_point() else moved.movedim(-1, index)
    for index, beyond in outside:
        shape = [-1 if i == index else 1 for i in range(x.dim())]
        value = node.number("extrapolation_value", 0.0)
        x = torch.where(beyond.reshape(shape).to(x.device), torch.as_tensor(value, dtype=x.dtype), x)
    rounding = Rounding(Kind.EXACT) if mode == "nearest" else dot(length)
    return Result(x, rounding, [node.format(0)])


def _scaled(shape: Sequence[int], scales: Sequence[float], axes: Sequence[int]) -> dict[int, ResizedAxis]:
    found = {}
    for index, scale in zip(axes, scales, strict=True):
        length = shape[index]
        found[index] = ResizedAxis(length, math.floor(np.float32(length) * np.float32(scale)), scale)
    return found


def _sized(node: Node, shape: Sequence[int], sizes: Sequence[int], axes: Sequence[int]) -> dict[int, ResizedAxis]:
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return {
            i: ResizedAxis(shape[i], n, n / shape[i] if shape[i] else 1.0) for i, n in zip(axes, sizes, strict=True)
        }
    ratios = [n / shape[i] for i, n in zip(axes, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return {i: ResizedAxis(shape[i], math.floor(scale * shape[i] + 0.5), scale) for i in axes}


@operator("Upsample", since=7)
def upsample_by_attribute(node: Node, x: Tensor) -> Result:
    """Enlarge by scales in an attribute (opset 7)."""
    return _simple(node, x, node.numbers("scales"))


@operator("Upsample", since=9, host=(1,))
@operator("Resize", since=10, host=(1,))
def resize_simple(node: Node, x: Tensor, scales: Tensor) -> Result:
    """Resize by scales, coordinates divided by them (Upsample, and Resize of opset 10)."""
    return _simple(node, x, [float(s) for s in scales.tolist()])


def _simple(node: Node, x: Tensor, scales: Sequence[float]) -> Result:
    mode = {"bilinear": "linear"}.get(node.text("mode", "nearest"), node.text("mode", "nearest"))
    return resize_axes(node, x, _scaled(x.shape, scales, range(x.dim())), mode, "asymmetric", "simple")


@operator("Resize", since=11, host=(1, 2, 3))
def resize(
    node: Node, x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | None = None
) -> Result:
    """Resize some axes by scales or to sizes."""
    places = [axis_of(a, x.dim()) for a in node.integers("axes", list(range(x.dim())))]
    if scales is not None and scales.numel():
        axes = _scaled(x.shape, [float(s) for s in scales.tolist()], places)
    elif sizes is not None:
        axes = _sized(node, x.shape, [int(n) for n in sizes.tolist()], places)
    else:
        raise node.refuse("it has neither scales nor sizes")
    transform = node.text("coordinate_transformation_mode", "half_pixel")
    if transform == "tf_crop_and_resize" and roi is not None:
        bounds = [float(v) for v in roi.tolist()]
        half = len(places)
        axes = {
            i: ResizedAxis(a.length, a.output, a.scale, bounds[k], bounds[half + k])
            for k, (i, a) in enumerate(axes.items())
        }
    mode = node.text("mode", "nearest")
    return resize_axes(node, x, axes, mode, transform, node.text("nearest_mode", "round_prefer_floor"))
