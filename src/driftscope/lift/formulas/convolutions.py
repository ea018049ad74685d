"""Convolutions in float64, and the sums of their squared products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch.nn import functional as F

# Elements of one channel up to which the groups of a depthwise convolution cost more than its arithmetic: torch calls
# one product of matrices for each channel (4 ms for 512 channels of 8x8, 0.1 ms for sums of shifted images).
_SMALL = 4096
_TAPS = 64

Geometry = tuple[Sequence[int], Sequence[int], Sequence[int]]


def convolve(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry, groups: int
) -> torch.Tensor:
    """Cross-correlate, zeros beyond the edges.

    Parameters
    ----------
    x : torch.Tensor, (N, C, *spatial), or (C, *spatial)
    w : torch.Tensor, (O, C / groups, *kernel)
    bias : torch.Tensor or None, (O,)
    geometry : stride, padding, dilation
        One number of each for each spatial axis; padding is the same on both sides.
    groups : int

    Returns
    -------
    torch.Tensor, (N, O, *spatial), or without N
    """
    depthwise = groups == w.shape[0] > 1 and w.shape[1] == 1 and x.dim() == w.dim() and x.shape[1] == groups
    if depthwise and x.dtype == w.dtype == torch.float64 and math.prod(w.shape[2:]) <= _TAPS:
        sizes = zip(x.shape[2:], w.shape[2:], *geometry, strict=True)
        outs = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]
        if min(outs) > 0 and math.prod(outs) <= _SMALL:
            return _by_taps(x, w, bias, geometry, outs)
    zeros = [0] * (w.dim() - 2)
    found: torch.Tensor = torch.ops.aten.convolution.default(x, w, bias, *geometry, False, zeros, groups)
    return found


def _by_taps(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry, outs: Sequence[int]
) -> torch.Tensor:
    """A depthwise convolution: one shifted image for each element of the kernel."""
    stride, padding, dilation = geometry
    if any(padding):
        x = F.pad(x, [n for p in reversed(padding) for n in (p, p)])
    shape = (-1, *[1] * len(outs))
    total = None
    factors = w.flatten(2).unbind(2)  # (O, 1) for each element of the kernel, in the order of the loop
    for tap, factor in zip(itertools.product(*map(range, w.shape[2:])), factors, strict=True):
        places = zip(tap, dilation, stride, outs, strict=True)
        part = x[(slice(None), slice(None), *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in places))]
        factor = factor.reshape(shape)
        total = part * factor if total is None else total.addcmul_(part, factor)
    if total is None:
        raise ValueError("a kernel has an element")
    return total if bias is None else total + bias.reshape(shape)


def convolution_squares(x: torch.Tensor, w: torch.Tensor, geometry: Geometry, groups: int) -> torch.Tensor:
    """Sum of squared products of a convolution, in the rank-1 form ``|patch|^2 |filter|^2 / K``.

    Parameters
    ----------
    x, w, geometry, groups
        As for :func:`convolve`.

    Returns
    -------
    torch.Tensor
        In the shape of the convolution.
    """
    batched = x if x.dim() == w.dim() else x.unsqueeze(0)
    length = max(math.prod(w.shape[1:]), 1)
    energy = batched.square().unflatten(1, (groups, -1)).sum(2)
    ones = torch.ones((groups, 1, *w.shape[2:]), dtype=w.dtype, device=w.device)
    window = convolve(energy, ones, None, geometry, groups)
    # One reading of a filter, which may be most of a model, instead of a copy of it.
    mass = torch.linalg.vector_norm(w.flatten(1), dim=1).square().unflatten(0, (groups, -1)) / length
    shaped = mass.reshape(1, groups, -1, *([1] * (w.dim() - 2)))
    full: torch.Tensor = (window.unsqueeze(2) * shaped).flatten(1, 2)
    return full if x.dim() == w.dim() else full.squeeze(0)
