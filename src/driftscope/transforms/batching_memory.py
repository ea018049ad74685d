"""What is remembered of functions that were batched, and how calls are recognised.

Remembered by code object (and what it closes over), and for each by the dtypes and ranks of the arguments: torch's
rules depend on those, not on the values.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from driftscope.transforms.batching_call import Request

#: Functions remembered; the oldest are forgotten first.
_REMEMBERED = 1024

Signature = tuple[Any, ...]


class Plan(enum.Enum):
    """How calls of one signature are run."""

    TORCH = "torch.vmap"
    PATHS = "by path, not yet compared with the loop"
    VERIFIED_PATHS = "by path"
    LOOP = "the loop"
    WRITING_LOOP = "the loop, which writes into the batch"


_PLANS: dict[Any, dict[Signature, Plan]] = {}


def plans_of(request: Request) -> dict[Signature, Plan]:
    """Return what is known of a function under these options; shared by all who ask for the same."""
    key = (_key_of(request.function), repr(request.in_dims), repr(request.out_dims), request.randomness)
    known = _PLANS.get(key)
    if known is None:
        while len(_PLANS) >= _REMEMBERED:
            _PLANS.pop(next(iter(_PLANS)))
        known = _PLANS[key] = {}
    return known


def _key_of(function: Any, depth: int = 3) -> Any:
    if isinstance(function, types.FunctionType):
        cells = tuple(_captured_key(cell, depth) for cell in function.__closure__ or ())
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        return (function.__code__, cells, tuple(_value_key(value, depth - 1) for value in defaults))
    if isinstance(function, functools.partial):
        held = (function.func, *function.args, *function.keywords.values())
        return ("partial", tuple(_value_key(value, depth - 1) for value in held))
    if isinstance(function, types.BuiltinFunctionType):
        return function
    return _identity(function)


def _captured_key(cell: types.CellType, depth: int) -> Any:
    try:
        return _value_key(cell.cell_contents, depth - 1)
    except ValueError:
        return None


def _value_key(value: Any, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim())
    if isinstance(value, (bool, int, str, bytes, range, type(None), torch.dtype, torch.device)):
        return value
    if callable(value) and depth > 0:
        return _key_of(value, depth)
    # A container is often made anew for every call, and what it holds is what changes; an object is what it does.
    return type(value) if isinstance(value, (list, tuple, dict, set, float, complex)) else _identity(value)


_ALIVE: dict[int, tuple[Any, int]] = {}
_COUNTER = iter(range(1 << 62))


def _identity(thing: Any) -> tuple[str, int]:
    """Return a number of its own for an object; an address alone is given to another object once this one is gone."""
    known = _ALIVE.get(id(thing))
    if known is not None and known[0]() is thing:
        return ("object", known[1])
    number = next(_COUNTER)
    try:
        address = id(thing)
        _ALIVE[address] = (weakref.ref(thing, lambda _: _ALIVE.pop(address, None)), number)
    except TypeError:
        # It cannot be recognised again, so what captures it is tried again.
        return ("object", number)
    return ("object", number)


def signature_of(function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Signature:
    """Return what torch's rules depend on: dtypes and ranks of tensors, the other arguments by value or type."""
    placed = tuple(
        [(a.dtype, a.ndim) if a.__class__ is torch.Tensor else other_signature(a) for a in arguments]
    )  # fmt: skip
    if not keywords and not isinstance(function, torch.nn.Module):
        return placed
    named = tuple([(name, other_signature(value)) for name, value in keywords.items()])
    return (getattr(function, "training", None), placed, named)


def other_signature(argument: Any) -> Any:
    """Return the part of a signature that one argument is."""
    if argument.__class__ is dict:
        # Written out: a dict of parameters is the largest argument there is, and this runs on every call.
        return tuple(argument), tuple(
            [(a.dtype, a.ndim) if a.__class__ is torch.Tensor else other_signature(a) for a in argument.values()]
        )
    if isinstance(argument, torch.Tensor):
        return (argument.dtype, argument.ndim)
    if isinstance(argument, (list, tuple)):
        return tuple([other_signature(item) for item in argument])
    if isinstance(argument, (bool, int, str, type(None))):
        return argument
    return type(argument)
