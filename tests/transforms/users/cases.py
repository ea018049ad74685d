"""How a user's function is written down: the function, its batch, and the lines that a finding must name.

A line that ends in ``#!`` is the place of whatever is refused or wrong; ``#! vmap`` is it for transforms whose name
begins so. Functions without a mark have no place to name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Maker = Callable[[torch.Generator], Any]
BATCH = 6


@dataclass
class UserCase:
    """One function with what makes its batch.

    Parameters
    ----------
    function : callable
    makers : tuple of callable
        ``maker(generator) -> batch`` per argument.
    in_dims : tuple
    randomness : str
    other : dict
        Outcomes that a plain comparison of values cannot tell: ``{"vmap": "random"}``.
    """

    function: Any
    makers: tuple[Maker, ...]
    in_dims: tuple[Any, ...]
    randomness: str = "error"
    other: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", None) or type(self.function).__name__)

    def batch(self, seed: int = 0) -> tuple[Any, ...]:
        """Return a batch; other seeds give fresh ones."""
        return tuple(maker(torch.Generator().manual_seed(seed * 100 + i)) for i, maker in enumerate(self.makers))

    def lines(self, transform: str) -> set[int]:
        """Return the lines that a finding under a transform must name."""
        source = self.function if not isinstance(self.function, torch.nn.Module) else type(self.function)
        lines, first = inspect.getsourcelines(inspect.unwrap(source))
        marks = ((first + i, re.search(r"#!\s*([\w ]*)$", line)) for i, line in enumerate(lines))
        return {n for n, m in marks if m is not None and (not m[1] or transform.startswith(tuple(m[1].split())))}


CASES: list[UserCase] = []


def case(*makers: Maker, in_dims: Any = None, randomness: str = "error", **other: str) -> Callable[[Any], Any]:
    """Register the function below with the makers of its batch."""

    def register(function: Any) -> Any:
        dims = in_dims if in_dims is not None else (0,) * len(makers)
        CASES.append(UserCase(function, makers, dims, randomness, other))
        return function

    return register


def floats(*shape: int, batch: bool = True, positive: bool = False, scale: float = 1.0) -> Maker:
    """Normal numbers, one more leading axis for the batch."""

    def make(generator: torch.Generator) -> torch.Tensor:
        x = torch.randn(*((BATCH,) if batch else ()), *shape, generator=generator) * scale
        return x.abs() + 0.1 if positive else x

    return make


def integers(*shape: int, high: int = 5, low: int = 0, batch: bool = True) -> Maker:
    """Whole numbers below ``high``."""
    return lambda g: torch.randint(low, high, (*((BATCH,) if batch else ()), *shape), generator=g)


def masks(*shape: int) -> Maker:
    """Truth values, at least one true in every example."""

    def make(generator: torch.Generator) -> torch.Tensor:
        mask = torch.rand(BATCH, *shape, generator=generator) > 0.5
        mask[(slice(None), *(0 for _ in shape))] = True
        return mask

    return make


def definite(n: int) -> Maker:
    """Symmetric positive definite matrices."""

    def make(generator: torch.Generator) -> torch.Tensor:
        a = torch.randn(BATCH, n, n, generator=generator)
        return a @ a.mT + n * torch.eye(n)

    return make
