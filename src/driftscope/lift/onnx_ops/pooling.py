"""Pooling over windows, axis by axis: largest, mean, Lp norm, and the inverse of the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.lift.onnx_ops.convolution import padded, window_pads
from driftscope.lift.onnx_ops.registry import Node, Result, integers_of, operator, summed
from driftscope.lift.steps import Kind, Rounding


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the windows of a pooling lie: per spatial axis, kernel, stride, dilation, pads and output length."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: list[int]
    ends: list[int]
    outputs: list[int]

    def places(self, axis: int, device: torch.device) -> Tensor:
        """Input positions of the windows of one axis, (output, kernel); negative and beyond in the padding."""
        starts = torch.arange(self.outputs[axis], device=device) * self.strides[axis] - self.begins[axis]
        return starts[:, None] + torch.arange(self.kernel[axis], device=device) * self.dilations[axis]


def windows_of(node: Node, lengths: Sequence[int]) -> Windows:
    """The windows of a pooling node over spatial axes of given lengths."""
    kernel = node.integers("kernel_shape")
    rank = len(kernel)
    strides = node.integers("strides", [1] * rank)
    dilations = node.integers("dilations", [1] * rank)
    begins, ends = window_pads(node, lengths, kernel, strides, dilations)
    ceiling = node.integer("ceil_mode", 0) == 1
    outputs = []
    for i, n in enumerate(lengths):
        room = n + begins[i] + ends[i] - dilations[i] * (kernel[i] - 1) - 1
        out = (math.ceil(room / strides[i]) if ceiling else room // strides[i]) + 1
        # A window that would start in the padding behind the input is left out.
        if ceiling and (out - 1) * strides[i] >= n + begins[i]:
            out -= 1
        outputs.append(out)
    return Windows(kernel, strides, dilations, begins, ends, outputs)


def _spread(x: Tensor, windows: Windows, axis: int, fill: float) -> Tensor:
    """Replace one spatial axis by (output, kernel)."""
    places = windows.places(axis, x.device)
    length = x.shape[2 + axis]
    taken = x.index_select(2 + axis, places.clamp(0, max(length - 1, 0)).reshape(-1))
    shape = (*x.shape[: 2 + axis], *places.shape, *x.shape[3 + axis :])
    inside = ((places >= 0) & (places < length)).reshape(*places.shape, *[1] * (x.dim() - 3 - axis))
    return torch.where(inside, taken.reshape(shape), torch.full((), fill, dtype=x.dtype, device=x.device))


def _sum_windows(x: Tensor, windows: Windows) -> Tensor:
    for axis in range(len(windows.kernel)):
        x = _spread(x, windows, axis, 0.0).sum(3 + axis, dtype=x.dtype)
    return x


@operator("MaxPool")
def max_pool(node: Node, x: Tensor) -> Result:
    """Largest value of every window, and where it was."""
    windows = windows_of(node, x.shape[2:])
    least = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    y = x
    for axis in range(len(windows.kernel)):
        y = _spread(y, windows, axis, least).amax(3 + axis)
    formats = [node.format(0), torch.int64]
    if not node.wants(1):
        return Result(y, formats=formats)
    return Result((y, _places_of_largest(node, node.rounded(x), windows)), formats=formats)


def _places_of_largest(node: Node, x: Tensor, windows: Windows) -> Tensor:
    """Flat index of each window's first largest native value."""
    rank = len(windows.kernel)
    least = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    spread = x
    order = range(rank)[::-1] if node.integer("storage_order", 0) else range(rank)
    flat = torch.zeros([1] * (2 * rank), dtype=torch.int64, device=x.device)
    for axis in order:
        shape = [1] * (2 * rank)
        shape[2 * axis], shape[2 * axis + 1] = windows.outputs[axis], windows.kernel[axis]
        flat = flat * x.shape[2 + axis] + windows.places(axis, x.device).reshape(shape)
    for axis in range(rank):
        spread = _spread_at(spread, windows, axis, least)
    outs, taps = list(range(2, 2 + 2 * rank, 2)), list(range(3, 3 + 2 * rank, 2))
    best = spread.permute(0, 1, *outs, *taps).reshape(*x.shape[:2], *windows.outputs, -1).argmax(-1)
    both = [2 * i for i in range(rank)] + [2 * i + 1 for i in range(rank)]
    size = [n for pair in zip(windows.outputs, windows.kernel, strict=True) for n in pair]
    candidates = flat.expand(size).permute(both).reshape(*windows.outputs, -1)
    index = candidates.expand(*x.shape[:2], *candidates.shape).gather(-1, best.unsqueeze(-1)).squeeze(-1)
    offset = torch.arange(x.shape[0] * x.shape[1], device=x.device) * math.prod(x.shape[2:])
    return index + offset.reshape(*x.shape[:2], *[1] * rank)


def _spread_at(x: Tensor, windows: Windows, axis: int, fill: float) -> Tensor:
    """Like :func:`_spread` where the earlier spatial axes have been spread already."""
    merged = x.reshape(1, -1, *x.shape[2 + 2 * axis :])
    alone = Windows(*[[values[axis]] for values in (
        windows.kernel, windows.strides, windows.dilations, windows.begins, windows.ends, windows.outputs
    )])  # fmt: skip
    spread = _spread(merged, alone, 0, fill)
    return spread.reshape(*x.shape[: 2 + 2 * axis], *spread.shape[2:])


@operator("AveragePool", since=7)
def average_pool(node: Node, x: Tensor) -> Result:
    """Mean of every window, over its elements inside the input or inside the padded input."""
    windows = windows_of(node, x.shape[2:])
    padding = node.integer("count_include_pad", 0) == 1
    count = torch.ones((), dtype=x.dtype, device=x.device)
    for axis, length in enumerate(x.shape[2:]):
        places = windows.places(axis, x.device)
        low, high = (-windows.begins[axis], length + windows.ends[axis]) if padding else (0, length)
        inside = ((places >= low) & (places < high)).sum(1).to(x.dtype)
        count = count.unsqueeze(-1) * inside
    squares = lambda: _sum_windows(x.square(), windows) / count.square()  # noqa: E731
    return Result(_sum_windows(x, windows) / count, summed(math.prod(windows.kernel), squares))


@operator("LpPool", since=2)
def lp_pool(node: Node, x: Tensor) -> Result:
    """Lp norm of every window."""
    windows = windows_of(node, x.shape[2:])
    p = node.integer("p", 2)
    powers = _sum_windows(x.abs() ** p, windows)
    return Result(powers ** (1.0 / p), Rounding(Kind.NORM, math.prod(windows.kernel)))


@operator("MaxUnpool", host=(2,))
def max_unpool(node: Node, x: Tensor, indices: Tensor, shape: Tensor | None = None) -> Result:
    """Values back at the places they were the largest of; zero elsewhere."""
    kernel = node.integers("kernel_shape")
    rank = len(kernel)
    strides, pads = node.integers("strides", [1] * rank), node.integers("pads", [0] * (2 * rank))
    inferred = [(n - 1) * strides[i] - pads[i] - pads[i + rank] + kernel[i] for i, n in enumerate(x.shape[2:])]
    whole = [*x.shape[:2], *inferred]
    flat = torch.zeros(math.prod(whole), dtype=x.dtype, device=x.device)
    flat = flat.scatter(0, indices.reshape(-1).to(x.device), x.reshape(-1)).reshape(whole)
    wanted = integers_of(shape)
    if wanted is not None:
        flat = padded(flat, [0] * rank, [w - n for w, n in zip(wanted[2:], inferred, strict=True)])
    return Result(flat, formats=[node.format(0)])
