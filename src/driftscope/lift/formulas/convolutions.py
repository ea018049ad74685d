"""Convolutions in float64, and the sums of their squared products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

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
            return _by_shifts(x, w, bias, geometry, outs)
    zeros = [0] * (w.dim() - 2)
    found: torch.Tensor = torch.ops.aten.convolution.default(x, w, bias, *geometry, False, zeros, groups)
    return found


def _by_shifts(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry, outs: Sequence[int]
) -> torch.Tensor:
    """A depthwise convolution: one shifted image for each element of the kernel, its rows in one with what pads them.

    A stride cuts an image into smaller ones, in each of which what meets one element of the kernel is contiguous.
    """
    stride, padding, dilation = geometry
    sizes = [-(-(n + 2 * p) // s) for n, p, s in zip(x.shape[2:], padding, stride, strict=True)]
    rows = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]  # elements from one row, or plane, to the next
    phases = itertools.product(*map(range, stride))
    images = {phase: _every(x, phase, geometry, sizes).flatten(2) for phase in phases}
    length = sum((n - 1) * row for n, row in zip(outs, rows, strict=True)) + 1
    factors = w.flatten(1).unsqueeze(2).unbind(1)  # (O, 1) for each element of the kernel, in the order of the loop
    found = None
    for tap, factor in zip(itertools.product(*map(range, w.shape[2:])), factors, strict=True):
        places = [t * d for t, d in zip(tap, dilation, strict=True)]
        begin = sum(at // s * row for at, s, row in zip(places, stride, rows, strict=True))
        part = images[tuple(at % s for at, s in zip(places, stride, strict=True))][..., begin : begin + length]
        found = part * factor if found is None else found.addcmul_(part, factor)
    if found is None:
        raise ValueError("a kernel has an element")
    shown = found.as_strided((*x.shape[:2], *outs), (x.shape[1] * length, length, *rows))
    return shown.contiguous() if bias is None else shown + bias.reshape(-1, *[1] * len(outs))


def _every(x: torch.Tensor, phase: Sequence[int], geometry: Geometry, sizes: Sequence[int]) -> torch.Tensor:
    """What a stride meets from one element of the padded image on, with zeros up to a size."""
    image = x.new_zeros((*x.shape[:2], *sizes))
    taken, placed = [slice(None)] * 2, [slice(None)] * 2
    for first, stride, padding, size in zip(phase, geometry[0], geometry[1], x.shape[2:], strict=True):
        begin = (first - padding) % stride  # of the image, not padded
        to = (begin + padding - first) // stride
        taken.append(slice(begin, None, stride))
        placed.append(slice(to, to + max(-(-(size - begin) // stride), 0)))
    image[tuple(placed)] = x[tuple(taken)]
    return image


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
    # One reading of a filter, which may be most of a model, instead of a copy of it.
    mass = torch.linalg.vector_norm(w.flatten(1), dim=1).square() / length
    shape = (-1, *[1] * (w.dim() - 1))
    if w.shape[1] == 1:  # nothing is added up within a group
        full = convolve(batched.square(), mass.reshape(shape).expand_as(w), None, geometry, groups)
    else:
        energy = batched.square().unflatten(1, (groups, -1)).sum(2)
        window = convolve(energy, w.new_ones((groups, 1, *w.shape[2:])), None, geometry, groups)
        full = (window.unsqueeze(2) * mass.reshape(1, groups, *shape[:-1])).flatten(1, 2)
    return full if x.dim() == w.dim() else full.squeeze(0)
