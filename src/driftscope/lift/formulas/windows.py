"""Windows of a pooling, axis by axis: where they lie, their sums, their largest elements and where those are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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


def spread(x: Tensor, windows: Windows, axis: int, fill: float) -> Tensor:
    """Replace one spatial axis by (output, kernel)."""
    places = windows.places(axis, x.device)
    length = x.shape[2 + axis]
    taken = x.index_select(2 + axis, places.clamp(0, max(length - 1, 0)).reshape(-1))
    shape = (*x.shape[: 2 + axis], *places.shape, *x.shape[3 + axis :])
    inside = ((places >= 0) & (places < length)).reshape(*places.shape, *[1] * (x.dim() - 3 - axis))
    return torch.where(inside, taken.reshape(shape), torch.full((), fill, dtype=x.dtype, device=x.device))


def window_sums(x: Tensor, windows: Windows) -> Tensor:
    """Sum of every window of x (N, C, ...)."""
    for axis in range(len(windows.kernel)):
        x = spread(x, windows, axis, 0.0).sum(3 + axis, dtype=x.dtype)
    return x


def places_of_largest(x: Tensor, windows: Windows, *, columns_first: bool = False) -> Tensor:
    """Flat index of each window's first largest native value."""
    rank = len(windows.kernel)
    laid = x
    order = range(rank)[::-1] if columns_first else range(rank)
    flat = torch.zeros([1] * (2 * rank), dtype=torch.int64, device=x.device)
    for axis in order:
        shape = [1] * (2 * rank)
        shape[2 * axis], shape[2 * axis + 1] = windows.outputs[axis], windows.kernel[axis]
        flat = flat * x.shape[2 + axis] + windows.places(axis, x.device).reshape(shape)
    for axis in range(rank):
        laid = _spread_next(laid, windows, axis, _least(x))
    outs, taps = list(range(2, 2 + 2 * rank, 2)), list(range(3, 3 + 2 * rank, 2))
    best = laid.permute(0, 1, *outs, *taps).reshape(*x.shape[:2], *windows.outputs, -1).argmax(-1)
    both = [2 * i for i in range(rank)] + [2 * i + 1 for i in range(rank)]
    size = [n for pair in zip(windows.outputs, windows.kernel, strict=True) for n in pair]
    candidates = flat.expand(size).permute(both).reshape(*windows.outputs, -1)
    index = candidates.expand(*x.shape[:2], *candidates.shape).gather(-1, best.unsqueeze(-1)).squeeze(-1)
    offset = torch.arange(x.shape[0] * x.shape[1], device=x.device) * math.prod(x.shape[2:])
    return index + offset.reshape(*x.shape[:2], *[1] * rank)


def _spread_next(x: Tensor, windows: Windows, axis: int, fill: float) -> Tensor:
    """Like :func:`spread` where the earlier spatial axes have been spread already."""
    merged = x.reshape(1, -1, *x.shape[2 + 2 * axis :])
    alone = Windows(*[[values[axis]] for values in (
        windows.kernel, windows.strides, windows.dilations, windows.begins, windows.ends, windows.outputs
    )])  # fmt: skip
    laid = spread(merged, alone, 0, fill)
    return laid.reshape(*x.shape[: 2 + 2 * axis], *laid.shape[2:])


def counts(windows: Windows, lengths: Sequence[int], padding: bool, like: Tensor) -> Tensor:
    """How many elements each window averages: those inside the input, or inside the padded input."""
    count = torch.ones((), dtype=like.dtype, device=like.device)
    for axis, length in enumerate(lengths):
        places = windows.places(axis, like.device)
        low, high = (-windows.begins[axis], length + windows.ends[axis]) if padding else (0, length)
        inside = ((places >= low) & (places < high)).sum(1).to(like.dtype)
        count = count.unsqueeze(-1) * inside
    return count


def window_maxima(x: Tensor, windows: Windows) -> Tensor:
    """Largest value of every window of x (N, C, ...)."""
    y = x
    for axis in range(len(windows.kernel)):
        y = spread(y, windows, axis, _least(x)).amax(3 + axis)
    return y


def _least(x: Tensor) -> float:
    return -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min


def window_count(length: int, window: tuple[int, int, int], padding: tuple[int, int], *, ceiling: bool) -> int:
    """Number of windows along an axis, of (kernel, stride, dilation) over an input padded at both ends."""
    kernel, stride, dilation = window
    room = length + sum(padding) - dilation * (kernel - 1) - 1
    count = (math.ceil(room / stride) if ceiling else room // stride) + 1
    # A window that would start in the padding behind the input is left out.
    return count - 1 if ceiling and (count - 1) * stride >= length + padding[0] else count
