"""What only moves numbers, or picks some of them, on arrays of balls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flint
import numpy as np
import torch

from driftscope.lift.finer.given import Balls, Given, NoRule


def _moved(g: Given) -> Balls:
    return g.real(0).reshape(g.shape)


def _permuted(g: Given) -> Balls:
    x = g.real(0)
    order = g.attribute("dims", "perm")
    if order is None:
        one, two = g.attribute("dim0"), g.attribute("dim1")
        order = list(range(x.ndim))
        one, two = (x.ndim - 2, x.ndim - 1) if one is None else (int(one) % x.ndim, int(two) % x.ndim)
        order[one], order[two] = order[two], order[one]
    return x.transpose([int(k) % x.ndim for k in order])


def _on_diagonal(g: Given) -> Balls:
    x, found = g.real(0), np.full(g.shape, flint.arb(0), dtype=object)
    found[..., range(x.shape[-1]), range(x.shape[-1])] = x
    return found


def _diagonal(g: Given) -> Balls:
    offset, one, two = (g.attribute(name) for name in ("offset", "dim1", "dim2"))
    return np.diagonal(g.real(0), offset or 0, 0 if one is None else one, 1 if two is None else two)


def _expanded(g: Given) -> Balls:
    return np.asarray(np.broadcast_to(g.real(0), g.shape), dtype=object)


def _selected(g: Given) -> Balls:
    x, dim, index = g.real(0), g.attribute("dim"), g.attribute("index")
    if dim is None or index is None:
        raise NoRule
    return np.asarray(x.take(int(index), axis=int(dim) % x.ndim), dtype=object)


def _sliced(g: Given) -> Balls:
    x, dim = g.real(0), int(g.attribute("dim") or 0)
    if g.step.operator == "Slice":  # ONNX gives starts, ends, axes and steps as inputs
        starts, ends, axes, steps = (g.integers(k) for k in (1, 2, 3, 4))
        if not starts or len(starts) != len(ends):
            raise NoRule
        taken = [slice(None)] * x.ndim
        for k, start in enumerate(starts):
            taken[axes[k] if axes else k] = slice(start, ends[k], steps[k] if steps else 1)
        return x[tuple(taken)]
    start, step = g.attribute("start") or 0, int(g.attribute("step") or 1)
    dim %= x.ndim
    start = max(0, int(start) + (x.shape[dim] if int(start) < 0 else 0))
    places = range(start, start + step * g.shape[dim], step)
    return x.take([k for k in places if k < x.shape[dim]], axis=dim)


def _joined(g: Given) -> Balls:
    parts = [g.real(k) for k in range(len(g.inputs))]
    return np.concatenate(parts, axis=int(g.attribute("dim", "axis") or 0))


def _stacked(g: Given) -> Balls:
    return np.stack([g.real(k) for k in range(len(g.inputs))], axis=int(g.attribute("dim", "axis") or 0))


def _flipped(g: Given) -> Balls:
    dims = g.attribute("dims")
    if dims is None:
        raise NoRule
    return np.flip(g.real(0), axis=tuple(int(k) for k in dims))


def _filled(g: Given) -> Balls:
    chosen, number = g.step.inputs[1], g.attribute("value")
    if chosen is None or chosen.dtype is not torch.bool or not isinstance(number, int | float):
        raise NoRule
    return np.asarray(np.where(chosen.cpu().numpy(), flint.arb(float(number)), g.real(0)), dtype=object)


def _picked(along: bool) -> Callable[[Given], Balls]:
    """Numbers at the places that an input of integers names, one for each or whole slices."""

    def rule(g: Given) -> Balls:
        x, places = g.real(0), g.step.inputs[-1]
        axis = g.attribute("dim", "axis") or 0
        if places is None or places.is_floating_point() or places.dtype is torch.bool or len(g.step.inputs) != 2:
            raise NoRule
        index = places.cpu().numpy()
        each_one = along and g.step.operator != "Gather"  # ONNX calls slices so
        found = np.take_along_axis(x, index, int(axis)) if each_one else np.take(x, index, int(axis))
        return np.asarray(found, dtype=object)

    return rule


def _written(value: Callable[[Given], Balls]) -> Callable[[Given], Balls]:
    return lambda g: np.asarray(np.broadcast_to(value(g), g.shape), dtype=object)


def _rolled(g: Given) -> Balls:
    shifts, dims = g.attribute("shifts"), g.attribute("dims")
    if not shifts or not dims:
        raise NoRule
    return np.roll(g.real(0), shifts, dims)


def _repeated(g: Given) -> Balls:
    times = g.attribute("repeats")
    if not isinstance(times, list | tuple):
        raise NoRule
    return np.tile(g.real(0), times)


def _split(g: Given) -> tuple[Balls, ...]:
    """All parts, by the sizes that the step's results have."""
    x, axis = g.real(0), int(g.attribute("dim", "axis") or 0)
    sizes = [part.shape[axis] for part in g.step.outputs if part is not None]
    if len(sizes) != len(g.step.outputs) or sum(sizes) != x.shape[axis]:
        raise NoRule
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


MOVES: dict[str, Callable[[Given], Any]] = {
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(
        ("view", "unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "clone", "to_copy", "contiguous", "cast",
         "identity", "alias", "detach", "dropout"), _moved,
    ),
    **dict.fromkeys(("transpose", "permute", "t"), _permuted),
    "diag_embed": _on_diagonal, "diagonal": _diagonal, "stack": _stacked, "flip": _flipped, "masked_fill": _filled,
    "expand": _expanded, "select": _selected, "slice": _sliced, "cat": _joined, "concat": _joined,
    "roll": _rolled, "repeat": _repeated, **dict.fromkeys(("gather", "gatherelements"), _picked(True)),
    "index_select": _picked(False), "copy": _written(lambda g: g.real(1)),
    "fill": _written(lambda g: np.asarray(g.other("value"), dtype=object)),
    "zero": _written(lambda g: np.asarray(flint.arb(0), dtype=object)),
}  # fmt: skip
