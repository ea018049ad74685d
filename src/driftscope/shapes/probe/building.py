"""Make inputs of other sizes from an example: the same structure, dtypes and kind of values at any point."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from driftscope.programs.value_trees import flatten
from driftscope.shapes.probe.axes import Arguments, Axis

# Up to this many different floating-point values a tensor is taken for a mask: its values are drawn, not imitated.
_MASK_VALUES = 3


class InputBuilder:
    """Builds the arguments of a call at a point; the same point and seed give the same values.

    Parameters
    ----------
    arguments : Arguments
        The example whose structure, dtypes and kind of values are kept.
    """

    def __init__(self, arguments: Arguments):
        self.arguments = arguments
        self.axes = arguments.axes
        self._shapes = _dims_by_leaf(self.axes)

    def at(self, point: Sequence[int], *, seed: int = 0, small: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Build the arguments at a point.

        Parameters
        ----------
        point : sequence of int
            One size per axis, in the order of ``arguments.axes``.
        seed : int
        small : bool
            Integers are at most 1: indices and lengths that fit wherever any do. For a second try where the
            first values make the model itself fail.

        Returns
        -------
        args : tuple
        kwargs : dict
            Fresh tensors in fresh containers.
        """
        generator = torch.Generator().manual_seed(seed)
        values: list[Any] = []
        for number, (_, value) in enumerate(self.arguments.leaves):
            places = self._shapes.get(number, [])
            if isinstance(value, torch.Tensor):
                shape = [int(point[place]) for place in places]
                values.append(_tensor(value, shape, generator, self._limit(value, point, small)))
            else:
                values.append(int(point[places[0]]) if places else value)
        return self.arguments.with_leaves(values)

    @cached_property
    def draws_integers(self) -> bool:
        """Whether any integers are drawn that ``small`` would change: those above 1."""
        tensors = [leaf for _, leaf in self.arguments.leaves if isinstance(leaf, torch.Tensor)]
        return any(_is_integer(t) and t.numel() and int(t.max()) > 1 for t in tensors)

    def _limit(self, example: torch.Tensor, point: Sequence[int], small: bool) -> int | None:
        """The largest integer to draw, or None: values that fitted some size must fit it when it shrinks."""
        if not _is_integer(example) or not example.numel():
            return None
        if small:
            return 1
        largest = int(example.max())
        lowest = int(example.min())
        fits = [int(p) for p, a in zip(point, self.axes, strict=True) if 1 < largest <= a.size and p < a.size]
        return max(min(fits), lowest, 0) if fits else None

    def leaves_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Tensors and numbers of a call, in the order of ``arguments.leaves``."""
        named = [*args, *(kwargs.get(name) for name in self.arguments.names[self.arguments.positional :])]
        return [leaf for value in named for _, leaf in flatten(value)[0]]

    def point_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
        """The point at which other arguments stand; None if they are not built like the example."""
        leaves = self.leaves_of(args, kwargs)
        if len(leaves) != len(self.arguments.leaves):
            return None
        point: list[int] = []
        for leaf, (_, example) in zip(leaves, self.arguments.leaves, strict=True):
            if isinstance(example, torch.Tensor):
                if not isinstance(leaf, torch.Tensor) or leaf.ndim != example.ndim:
                    return None
                point += [int(size) for size in leaf.shape]
            elif isinstance(example, int) and not isinstance(example, bool):
                if not isinstance(leaf, int):
                    return None
                point.append(int(leaf))
        return tuple(point)


def _dims_by_leaf(axes: tuple[Axis, ...]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place, axis in enumerate(axes):
        found.setdefault(axis.leaf, []).append(place)
    return found


def _tensor(example: torch.Tensor, shape: list[int], generator: torch.Generator, limit: int | None) -> torch.Tensor:
    """Draw a tensor of another shape that looks like the example."""
    if example.layout is not torch.strided:
        return _tensor(example.to_dense(), shape, generator, limit).to_sparse()
    if list(example.shape) == shape and limit is None:
        return example.detach().clone()
    if _counts_along_rows(example):
        return _counted(example, shape)
    if example.dtype.is_floating_point and not _is_mask(example):
        return _floats(example, shape, generator)
    drawn = _resized(example, shape) if _has_a_form(example) else _gathered(example, shape, generator)
    return drawn if limit is None else drawn.clamp(max=limit)


def _is_integer(example: torch.Tensor) -> bool:
    return not (example.is_floating_point() or example.is_complex() or example.dtype is torch.bool)


def _is_mask(example: torch.Tensor) -> bool:
    flat = example.detach().reshape(-1)
    return not bool(torch.isfinite(flat).all()) or len(torch.unique(flat[:4096])) <= min(_MASK_VALUES, len(flat) - 1)


def _has_a_form(example: torch.Tensor) -> bool:
    """Whether the places of the values mean something: masks (which begin with padding, or are triangles), offsets."""
    if not example.numel() or example.is_complex():
        return False
    if example.is_floating_point() or example.dtype is torch.bool:
        return True
    ordered = example.ndim == 1 and len(example) > 1 and bool((example.diff() >= 0).all())
    return ordered or bool(((example == 0) | (example == 1)).all())


def _resized(example: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """The example stretched or shrunk along every axis: what begins with padding still does, a triangle stays one.

    Drawing the values one by one would make rows that are masked altogether, of which programs may differ without
    being wrong.
    """
    found = example.detach()
    for axis, (old, new) in enumerate(zip(example.shape, shape, strict=True)):
        if old != new:
            places = torch.arange(new, device=found.device) * old // max(new, 1)
            found = found.index_select(axis, places)
    return found.clone()


def _floats(example: torch.Tensor, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Normal values of the example's mean and spread, or uniform ones where it has nothing negative."""
    flat = example.detach().reshape(-1).to("cpu", torch.float64)
    if not flat.numel():
        flat = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    low, high = float(flat.min()), float(flat.max())
    if low >= 0 and high > low:
        made = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    else:
        spread = float(flat.std()) if flat.numel() > 1 else 1.0
        made = torch.randn(shape, generator=generator, dtype=torch.float64) * (spread or 1.0) + float(flat.mean())
    return made.to(example.device, example.dtype)


def _gathered(example: torch.Tensor, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Values drawn from the example's own: indices that are right for any table, masks that stay masks."""
    flat = example.detach().reshape(-1)
    count = int(np.prod(shape, dtype=np.int64))
    if not flat.numel():
        return torch.zeros(shape, dtype=example.dtype, device=example.device)
    where = torch.randint(0, flat.numel(), (count,), generator=generator)
    return flat[where.to(flat.device)].reshape(shape)


def _counts_along_rows(example: torch.Tensor) -> bool:
    """Whether every row of the last axis counts up by one: positions."""
    if not _is_integer(example) or not example.ndim or example.shape[-1] < 3 or not example.numel():
        return False
    return bool((example.diff(dim=-1) == 1).all())


def _counted(example: torch.Tensor, shape: list[int]) -> torch.Tensor:
    start = example.reshape(-1, example.shape[-1])[0, 0]
    row = torch.arange(shape[-1], device=example.device, dtype=example.dtype) + start
    return row.expand(shape).clone()
