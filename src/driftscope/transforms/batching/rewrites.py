"""Calls whose result's shape depends on values, made for a group of examples that agree on the shape.

A mask becomes the indices of its true elements, which have no derivative; indexing with them has torch's own batching
rule and derivative.
"""

from __future__ import annotations

from typing import Any

import torch

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching.guard import OVER_ALL, shares_among_ties, sharing
from driftscope.transforms.batching.mode import PathMode, Unbatchable, rewrites

_T = torch.Tensor


@rewrites(_T.__getitem__)
def _getitem(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    tensor, index = args
    return mode.native(func, (tensor, _settled_index(mode, index)), keywords)


@rewrites(_T.__setitem__)
def _setitem(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    tensor, index, value = args
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool and mode.mapped(index) and _is_scalar(value):
        if not mode.mapped(tensor):
            mode.blame_shared(func, args)
            raise Unbatchable("a tensor of all examples is written to")
        mask = index.reshape(*index.shape, *(1,) * (tensor.dim() - index.dim()))
        mode.native(_T.masked_fill_, (tensor, mask, value), {})
        return None
    return mode.native(func, (tensor, _settled_index(mode, index), value), keywords)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex)) or (isinstance(value, torch.Tensor) and value.dim() == 0)


def _settled_index(mode: PathMode, index: Any) -> Any:
    """Replace mapped masks by indices and mapped bounds of slices by numbers."""
    parts = index if isinstance(index, tuple) else (index,)
    found: list[Any] = []
    for part in parts:
        if isinstance(part, slice):
            bounds = (part.start, part.stop, part.step)
            found.append(slice(*(mode.decided(_T.__index__, (b,), {}) if mode.mapped(b) else b for b in bounds)))
        elif isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) and mode.mapped(part):
            if part.dim() == 0:
                raise Unbatchable("an index is a single truth value")
            found += true_positions(mode, part)
        else:
            found.append(part)
    return tuple(found) if isinstance(index, tuple) or len(found) > 1 else found[0]


def true_positions(mode: PathMode, mask: torch.Tensor) -> list[torch.Tensor]:
    """Return the indices of a mapped mask's true elements, one tensor per axis; the examples must have as many."""
    value = mode.value(mask)[0]
    with internals.beneath_transforms():
        where = value.nonzero()
        counts = value.reshape(mode.size, -1).ne(0).sum(1).tolist()
    known, _ = mode.settled()
    if not known:
        mode.agree(counts)
    with internals.beneath_transforms():
        # Row-major order: the true elements of one example stand together, as many for each.
        table = where[:, 1:].reshape(mode.size, counts[0], value.dim() - 1)
        axes = [table[..., axis].contiguous() for axis in range(table.shape[-1])]
    return [internals.map_over(axis, mode.level) for axis in axes]


@rewrites(torch.masked_select, _T.masked_select)
def _masked_select(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    tensor, mask = args if len(args) == 2 else (args[0], keywords.get("mask"))
    if mask is None or "out" in keywords or not mode.mapped(mask):
        return mode.native(func, args, keywords)
    tensor, mask = torch.broadcast_tensors(tensor, mask)
    if mask.dim() == 0:
        raise Unbatchable("a mask is a single truth value")
    return mode.native(_T.__getitem__, (tensor, tuple(true_positions(mode, mask))), {})


@rewrites(torch.nonzero, _T.nonzero, torch.argwhere, _T.argwhere)
def _nonzero(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    (tensor,) = args
    if tensor.dim() == 0:
        return mode.values_only(func, args, keywords)
    axes = true_positions(mode, tensor)
    return tuple(axes) if keywords.get("as_tuple") else torch.stack(axes, -1)


@rewrites(torch.where, _T.where)
def _where(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if len(args) == 1 and not keywords and args[0].dim():
        return tuple(true_positions(mode, args[0]))
    return mode.native(func, args, keywords)


@rewrites(*OVER_ALL)
def _over_all(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not shares_among_ties(func, args, keywords):
        return mode.native(func, args, keywords)
    shared = sharing(func, args[0])
    if shared is None:
        raise Unbatchable("its derivative is shared among ties")
    return mode.native(shared, args, {})


@rewrites(torch.repeat_interleave, _T.repeat_interleave)
def _repeat_interleave(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    given = dict(zip(("input", "repeats", "dim"), args, strict=False)) | keywords
    repeats, tensor = given.get("repeats"), given.get("input", given.get("self"))
    if repeats is None and isinstance(tensor, torch.Tensor):
        return mode.values_only(func, args, keywords)
    if not isinstance(repeats, torch.Tensor) or not mode.mapped(repeats) or not isinstance(tensor, torch.Tensor):
        return mode.native(func, args, keywords)
    axis = given.get("dim")
    if axis is None:
        tensor, axis = tensor.flatten(), 0
    index = mode.values_only(torch.repeat_interleave, (repeats.expand(tensor.shape[axis]),), {})
    return mode.native(torch.index_select, (tensor, axis, index), {})
