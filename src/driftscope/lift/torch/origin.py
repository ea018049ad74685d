"""Tells true constants from results that came by a way torch does not show.

A library that computes outside the dispatcher gives tensors that a recorder sees for the first time, like a constant.
Parameters, buffers, literals and what a function closes over are known to be constants. Of any other float tensor it
is tested: on other inputs, a constant has the same bits.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from driftscope.lift.torch.entries import Tape, TensorValue
from driftscope.programs.state.module_tree import tensors_in

_DEPTH = 3


def doubtful(tape: Tape, function: Callable[..., Any]) -> list[TensorValue]:
    """List the float tensors of a tape whose origin is not known."""
    unnamed = [tape.values[c] for c in tape.captured if c in tape.unnamed]
    floats = [v for v in unnamed if v.format.is_floating_point or v.format.is_complex]
    if not floats:
        return []
    held = {t.untyped_storage()._cdata for t in _held_by(function)}
    return [v for v in floats if v.stored is not None and not (held and _storage(v) in held)]


def _storage(value: TensorValue) -> int:
    return -1 if value.stored is None else value.stored.untyped_storage()._cdata


def changed(before: Tape, doubted: Iterable[TensorValue], after: Tape) -> TensorValue | None:
    """Find a doubted tensor that has other bits in a recording on other inputs."""
    positions = {number: place for place, number in enumerate(before.captured)}
    for value in doubted:
        place = positions[value.id]
        if place >= len(after.captured):
            continue
        other = after.values[after.captured[place]].stored
        same = other is not None and value.stored is not None and other.shape == value.stored.shape
        if not same or other is None or value.stored is None or not _same_bits(value.stored, other):
            return value
    return None


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    both = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
    left, right = both
    return a.dtype == b.dtype and bool(torch.equal(left.nan_to_num(), right.nan_to_num()))


def moved(value: Any, integers: bool) -> Any:
    """Give an input of the same kind with other values: floats are scaled a little, integers rolled if asked."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    if value.is_floating_point() or value.is_complex():
        return value.detach() * 1.0625 + 0.03125 if value.dtype.itemsize > 1 else value
    return value.detach().flatten().roll(1).reshape(value.shape) if integers else value


def _held_by(function: Callable[..., Any]) -> list[torch.Tensor]:
    """List the tensors that a function closes over, names globally, or is bound to."""
    found: list[torch.Tensor] = []
    _search(function, found, _DEPTH)
    return found


def _search(thing: Any, found: list[torch.Tensor], depth: int) -> None:
    if isinstance(thing, torch.Tensor):
        found.append(thing)
    elif isinstance(thing, torch.nn.Module):
        found.extend(tensors_in(thing))
    elif depth > 0:
        for part in _parts(thing):
            _search(part, found, depth - 1)


def _parts(thing: Any) -> list[Any]:
    if isinstance(thing, (list, tuple, set, frozenset)):
        return list(thing)
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, types.FunctionType):
        cells = [_content(c) for c in thing.__closure__ or ()]
        named = [thing.__globals__.get(n) for n in thing.__code__.co_names]
        return [*cells, *named, thing.__defaults__]
    if isinstance(thing, (type, types.ModuleType)) or not hasattr(thing, "__dict__"):
        return []
    return list(vars(thing).values())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
