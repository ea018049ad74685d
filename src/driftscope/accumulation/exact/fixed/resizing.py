"""Interpolation in a fixed order: one axis after the other, each result a few products added in turn in float64.

Source: the formulas of ``torch.nn.functional.interpolate`` (``aten/src/ATen/native/UpSample.h``); its own kernels add
the same terms in an order that depends on the strides of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from driftscope.accumulation.exact.fixed.gathering import index_add
from driftscope.accumulation.exact.layer_norm import rounded_once

#: Of the cubic through four points.
_CUBIC = -0.75

Taps = list[tuple[torch.Tensor, torch.Tensor]]


def linear(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None) -> torch.Tensor:
    """``upsample_linear1d``, ``bilinear2d`` and ``trilinear3d``: over as many last axes as there are sizes."""
    return _resized(x, _taps_of(x.shape, sizes, align_corners, scales, _two_taps))


def cubic(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None) -> torch.Tensor:
    """``upsample_bicubic2d``."""
    return _resized(x, _taps_of(x.shape, sizes, align_corners, scales, _four_taps))


def linear_backward(
    grad: torch.Tensor, sizes: Sequence[int], shape: Sequence[int], align_corners: bool, *scales: float | None
) -> torch.Tensor:
    """Give each element its shares of the gradient, in the order of the places it was used for."""
    return _spread(grad, shape, _taps_of(shape, sizes, align_corners, scales, _two_taps))


def cubic_backward(
    grad: torch.Tensor, sizes: Sequence[int], shape: Sequence[int], align_corners: bool, *scales: float | None
) -> torch.Tensor:
    """Of ``upsample_bicubic2d``."""
    return _spread(grad, shape, _taps_of(shape, sizes, align_corners, scales, _four_taps))


def _taps_of(shape: Sequence[int], sizes: Sequence[int], align: bool, scales: Sequence[Any], of: Any) -> list[Taps]:
    """Return, by axis, which elements are added with which weights."""
    inner = tuple(shape)[-len(sizes) :]
    given = (*scales, *[None] * (len(sizes) - len(scales)))
    return [of(n, m, align, s) for n, m, s in zip(inner, sizes, given, strict=True)]


def _places(n: int, m: int, align: bool, scale: float | None) -> torch.Tensor:
    at = torch.arange(m, dtype=torch.float64)
    if align:
        return at * ((n - 1) / (m - 1) if m > 1 else 0.0)
    return (at + 0.5) * (1.0 / scale if scale else n / m) - 0.5


def _two_taps(n: int, m: int, align: bool, scale: float | None) -> Taps:
    at = _places(n, m, align, scale).clamp(min=0.0)
    low = at.floor().clamp(max=n - 1).long()
    share = (at - low).clamp(max=1.0)
    return [(low, 1.0 - share), ((low + 1).clamp(max=n - 1), share)]


def _four_taps(n: int, m: int, align: bool, scale: float | None) -> Taps:
    at = _places(n, m, align, scale)
    low = at.floor()
    t, a = at - low, _CUBIC
    near = [((a + 2) * s - (a + 3)) * s * s + 1 for s in (t, 1 - t)]
    far = [((a * s - 5 * a) * s + 8 * a) * s - 4 * a for s in (t + 1, 2 - t)]
    index = low.long()
    return [((index + k).clamp(0, n - 1), w)
            for k, w in zip((-1, 0, 1, 2), (far[0], *near, far[1]), strict=True)]  # fmt: skip


def _resized(x: torch.Tensor, taps: Sequence[Taps]) -> torch.Tensor:
    found = x.double()
    for dim, axis in zip(range(x.dim() - len(taps), x.dim()), taps, strict=True):
        shape = [-1 if d == dim else 1 for d in range(x.dim())]
        parts = [found.index_select(dim, at.to(x.device)) * w.to(x.device).reshape(shape) for at, w in axis]
        found = parts[0]
        for part in parts[1:]:
            found = found + part
    return rounded_once(found, x.dtype)


def _spread(grad: torch.Tensor, shape: Sequence[int], taps: Sequence[Taps]) -> torch.Tensor:
    found = grad.double()
    for dim, axis in zip(range(grad.dim() - len(taps), grad.dim()), taps, strict=True):
        across = [-1 if d == dim else 1 for d in range(grad.dim())]
        sizes = [shape[d] if d == dim else n for d, n in enumerate(found.shape)]
        total = found.new_zeros(sizes)
        for at, weight in axis:
            total = index_add(total, dim, at.to(grad.device), found * weight.to(grad.device).reshape(across))
        found = total
    return rounded_once(found, grad.dtype)
