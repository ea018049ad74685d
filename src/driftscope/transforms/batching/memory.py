"""What is remembered of functions that were batched, and how calls are recognised.

Remembered by code object (and what it closes over), and for each by what :func:`signature_of` reads. A plan to run
``torch.vmap`` carries the steps that were proved equal to the loop, and holds for runs that take the same steps.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching.call import BatchedCall, Request
from driftscope.transforms.batching.guard import Steps
from driftscope.transforms.world.captured import Captured

#: Functions remembered; the oldest are forgotten first.
_REMEMBERED = 1024

Signature = tuple[Any, ...]


class CallPlan(enum.Enum):
    """How calls of one signature are run."""

    TORCH = "torch.vmap"
    PATHS = "by path, not yet compared with the loop"
    VERIFIED_PATHS = "by path"
    LOOP = "the loop"
    WRITING_LOOP = "the loop, which writes into the batch"


@dataclass
class Known:
    """What is known of the calls of one signature.

    Parameters
    ----------
    plan : CallPlan
    steps : set
        For ``Plan.TORCH``, the calls of torch that were proved, for each path.
    draws : bool
        Whether it draws random numbers, so that two runs differ.
    proved : set
        Captured values, by their key, with which it was tried.
    """

    plan: CallPlan
    steps: set[Steps | None] = field(default_factory=set)
    draws: bool = False
    proved: set[Any] = field(default_factory=set)


@dataclass(frozen=True)
class CallSketch:
    """What a call is recognised by when one like it was made before.

    Parameters
    ----------
    key : tuple
        Equal for calls that :func:`signature_of` and the captured values of containers cannot tell apart.
    leaves : list
        Flattened arguments.
    things : tuple of int
        Identities of the tensors and containers.
    """

    key: tuple[Any, ...]
    leaves: list[Any]
    things: tuple[int, ...]


@dataclass(frozen=True)
class Repeated:
    """A call along proved steps, to be made again without reading everything anew.

    Parameters
    ----------
    known : Known
    captured : Captured
        By the function alone.
    layout : BatchLayout
    """

    known: Known
    captured: Captured
    layout: internals.BatchLayout

    def holds(self, sketch: CallSketch) -> bool:
        """Whether the plan still holds, and what the function has captured is as it was and none of the arguments."""
        apart = self.captured.reached.isdisjoint(sketch.things)
        return self.known.plan is CallPlan.TORCH and apart and not self.captured.changed()


_EXACT_VALUES = (bool, int, float, complex, str, type(None))


def sketch_of(request: Request, arguments: tuple[Any, ...]) -> CallSketch | None:
    """Read a call in a few microseconds; None where it must be looked at more closely.

    That is where a transform or a dispatch mode is active, and where arguments hold other things than tensors,
    numbers and words in plain lists, tuples and dicts.
    """
    if not internals.maps_nothing() or internals.saving_hooked():
        return None
    words: list[Any] = [getattr(request.function, "training", None), *internals.setting()]
    leaves: list[Any] = []
    things: list[int] = []
    for argument in arguments:
        if not _sketched(argument, words, leaves, things):
            return None
    if len(set(things)) < len(things):
        words.append(tuple(map(things.index, things)))  # the same one twice is another call than two alike
    return CallSketch(tuple(words), leaves, tuple(things))


def _sketched(value: Any, words: list[Any], leaves: list[Any], things: list[int]) -> bool:
    kind = type(value)
    if internals.is_plain(value):
        words.append((kind, value.dtype, value.shape, value.requires_grad, value.is_leaf, value.layout))
    elif kind in _EXACT_VALUES:
        words.append((kind, repr(value)))
        leaves.append(value)
        return True
    elif kind is dict or kind is list or kind is tuple:
        names = tuple(value) if kind is dict else len(value)
        if kind is dict and not all(type(name) is str for name in value):
            return False
        words.append((kind, names))
        things.append(id(value))
        return all(_sketched(item, words, leaves, things) for item in (value.values() if kind is dict else value))
    else:
        return False
    leaves.append(value)
    things.append(id(value))
    return True


_PLANS: dict[Any, dict[Signature, Known]] = {}


def plans_of(request: Request) -> dict[Signature, Known]:
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


def signature_of(call: BatchedCall) -> Signature:
    """Return what a plan is kept under: the kinds of the arguments, shapes of one example included, and torch's state.

    A plan for other shapes is another plan; so is one under a transform, or where a derivative is wanted.
    """
    placed = tuple([_kind_of(leaf, dim) for leaf, dim in zip(call.leaves, call.dims, strict=True)])
    named = tuple([(name, _kind_of(value, None)) for name, value in call.keywords.items()])
    training = getattr(call.request.function, "training", None)
    return (training, call.size == 1, str(call.spec) if len(placed) > 1 else "", placed, named, *internals.setting())


def _kind_of(argument: Any, dim: int | None) -> Any:
    if isinstance(argument, torch.Tensor):
        shape = tuple(argument.shape)
        if dim is not None:
            shape = shape[:dim] + shape[dim + 1 :] if dim >= 0 else shape[:dim] + shape[len(shape) + dim + 1 :]
        return (argument.dtype, shape, dim, argument.requires_grad, argument.layout)
    if isinstance(argument, (bool, int, float, complex, str, type(None))):
        return (type(argument), repr(argument))
    return type(argument)
