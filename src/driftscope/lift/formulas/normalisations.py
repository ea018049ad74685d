"""Normalisations: two passes, so that a mean far from zero costs no digits; epsilon may carry a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import Number

#: What torch's ``renorm`` adds to a norm before it divides by it (``renorm`` in torch/_refs).
RENORM_EPSILON = 1e-7


@dataclass(frozen=True, slots=True)
class Normalised:
    """A normalised tensor with the statistics it was normalised by (axes kept at length 1)."""

    value: Tensor
    mean: Tensor | None
    inverse_deviation: Tensor


def moments(x: Tensor, axes: Sequence[int], *, keep: bool = True) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance over some axes, the variance from the centred values."""
    mean = x.mean(list(axes), keepdim=True)
    variance = (x - mean).square().mean(list(axes), keepdim=True)
    return (mean, variance) if keep else (mean.flatten(), variance.flatten())


def inverse_deviation(variance: Tensor, epsilon: Number) -> Tensor:
    """``1 / sqrt(variance + epsilon)``."""
    return 1.0 / torch.sqrt(variance + epsilon)


def normalised(x: Tensor, axes: Sequence[int], epsilon: Number, *, centred: bool = True) -> Normalised:
    """``(x - mean) / sqrt(variance + epsilon)`` over some axes; root-mean-square where not ``centred``.

    Layer and group normalisation (Ba, Kiros and Hinton, 2016; Wu and He, 2018), or RMS normalisation (Zhang and
    Sennrich, 2019). float16 and bfloat16 are computed in float32, as kernels do, and stay in float32.
    """
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.to(torch.float32)
    mean = x.mean(list(axes), keepdim=True) if centred else None
    centre = x if mean is None else x - mean
    inverse = inverse_deviation(centre.square().mean(list(axes), keepdim=True), epsilon)
    return Normalised(centre * inverse, mean, inverse)


def affine(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    """``x * scale + shift``, either of which may be left out."""
    x = x if scale is None else x * scale
    return x if shift is None else x + shift


@overload
def per_channel(parameter: Tensor, x: Tensor) -> Tensor: ...
@overload
def per_channel(parameter: None, x: Tensor) -> None: ...
def per_channel(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """A parameter (C,) in a shape that broadcasts with x (N, C, ...)."""
    if parameter is None or x.dim() < 2:
        return parameter
    return parameter.reshape(1, -1, *[1] * (x.dim() - 2))


def by_statistics(x: Tensor, statistics: tuple[Tensor, Tensor], scale: Tensor | None, shift: Tensor | None) -> Tensor:
    """``(x - mean) inverse_deviation scale + shift``, all of shape (C,), for x (N, C, ...)."""
    mean, inverse = statistics
    centred = x - per_channel(mean, x)
    others: list[Any] = [per_channel(v, x) for v in (inverse, scale, shift)]
    if x.dim() < 2 or not all(v is None or _goes_into(centred, v) for v in (centred, *others)):
        return affine(centred * others[0], *others[1:])
    # The same numbers in the memory of the difference: pages that are fresh from the system cost more than the sums.
    centred.mul_(others[0])
    centred = centred if others[1] is None else centred.mul_(others[1])
    return centred if others[2] is None else centred.add_(others[2])


def _goes_into(made: Tensor, other: Tensor) -> bool:
    return other.dtype == made.dtype and not other.requires_grad


def lp_norm(x: Tensor, axes: Sequence[int], p: int, *, keep: bool = True) -> Tensor:
    """The p-norm over some axes."""
    if p == 2:
        return x.square().sum(list(axes), keepdim=keep).sqrt()
    powers = x.abs() if p == 1 else x.abs() ** p
    total = powers.sum(list(axes), keepdim=keep)
    return total if p == 1 else total ** (1.0 / p)


def local_response(x: Tensor, size: int, alpha: Number, beta: Number, bias: Number) -> Tensor:
    """Local response normalisation across channels of x (N, C, ...) (Krizhevsky et al., 2012)."""
    before = (size - 1) // 2
    padded = torch.nn.functional.pad(x.square().movedim(1, -1), (before, size - 1 - before))
    squares = padded.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (bias + alpha / size * squares) ** beta
