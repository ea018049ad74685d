"""Thirteen ranges of input values, most of them uncomfortable; drawn in float64, stored in the format asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.verdicts.sweep import seeded

Draw = Callable[[tuple[int, ...], torch.Generator, bool], torch.Tensor]


def _normal(shape: tuple[int, ...], g: torch.Generator, half: bool) -> torch.Tensor:
    return torch.randn(shape, generator=g, dtype=torch.float64)


def _unit(shape: tuple[int, ...], g: torch.Generator, half: bool) -> torch.Tensor:
    return torch.rand(shape, generator=g, dtype=torch.float64)


def _signs(shape: tuple[int, ...], g: torch.Generator) -> torch.Tensor:
    return torch.where(torch.rand(shape, generator=g, dtype=torch.float64) < 0.5, -1.0, 1.0)


def _between(low: float, high: float) -> Draw:
    return lambda shape, g, half: _signs(shape, g) * (low + (high - low) * _unit(shape, g, half))


def _times(wide: float, narrow: float) -> Draw:
    return lambda shape, g, half: (narrow if half else wide) * _normal(shape, g, half)


def _cancelling(shape: tuple[int, ...], g: torch.Generator, half: bool) -> torch.Tensor:
    """Neighbours that cancel but for their last digits."""
    x = _normal(shape, g, half)
    step = 2.0**-9 if half else 2.0**-21
    x[..., 1::2] = -x[..., 0::2][..., : x[..., 1::2].shape[-1]] * (1.0 + step)
    return x


def _exponents(shape: tuple[int, ...], g: torch.Generator, half: bool) -> torch.Tensor:
    low, high = (-14.0, 8.0) if half else (-40.0, 30.0)
    return _signs(shape, g) * 2.0 ** (low + (high - low) * _unit(shape, g, half))


RANGES: dict[str, Draw] = {
    "normal": _normal,
    "unit": _unit,
    "tails": _between(3.0, 12.0),
    "far-tails": _between(20.0, 100.0),
    "thousands": _times(1e3, 30.0),
    "huge": _times(1e18, 1e4),
    "small": _times(1e-4, 1e-3),
    "tiny": _times(1e-38, 6e-6),
    "shift-300": lambda shape, g, half: 300.0 + _normal(shape, g, half),
    "near-one": lambda shape, g, half: 1.0 + (1e-2 if half else 1e-5) * _normal(shape, g, half),
    "cancelling": _cancelling,
    "integers": lambda shape, g, half: torch.randint(-5, 6, shape, generator=g).double(),
    "exponents": _exponents,
}


def draw(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Values of one range: shape ``shape``, format ``dtype``."""
    generator = seeded(1000 + seed)
    return RANGES[name](shape, generator, dtype is torch.float16).to(dtype)
