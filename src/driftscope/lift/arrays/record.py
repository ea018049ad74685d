"""A function on numpy arrays in float64: it is called once on followed arrays, and what it does is a tape of torch."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from driftscope.errors import CannotLift
from driftscope.lift.arrays.creation import followed
from driftscope.lift.arrays.own_code import OwnCode
from driftscope.lift.arrays.rounding import numpy_rounding
from driftscope.lift.arrays.traced import TracedArray
from driftscope.lift.arrays.tracing import OPERATION, Tracer
from driftscope.lift.torch.tape import TorchTape, lift_torch
from driftscope.programs.arrays import is_array
from driftscope.programs.value_trees import flatten, unflatten

_DEPTH = 2


def lift_arrays(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TorchTape:
    """Record a function on numpy arrays, ready to be evaluated in float64.

    Parameters
    ----------
    function : callable
        Takes and returns numpy arrays.
    args, kwargs
        Trees of torch tensors, which the function gets as arrays, and of Python values.

    Raises
    ------
    CannotLift
        If it takes values out of numpy's dispatch, or calls a function that has no counterpart in torch.
    """

    for counted in ("fciu", "fc"):
        try:
            return _recorded(function, args, kwargs, counted)
        except CannotLift:  # what is counted may go where nothing is followed: then it is what numpy gives
            continue
    try:
        return _recorded(function, args, kwargs, "")
    except CannotLift as refusal:
        with contextlib.suppress(CannotLift):  # it may look places up, which depend on the inputs, in a table it holds
            return _recorded(function, args, kwargs, "", tables=True)
        raise refusal


def _recorded(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], counted: str, tables: bool = False
) -> TorchTape:
    call = _NumpyFunction(function, counted=counted, tables=tables)
    found = lift_torch(call, args, kwargs, names=call.name_of, operation=OPERATION.get)
    found.tape.rounds = numpy_rounding
    return found


@dataclass
class FollowedFunction:
    """A function on arrays as one on torch tensors, with the names of the arrays that it holds."""

    function: Callable[..., Any]
    _named: dict[int, str] = field(default_factory=dict)

    def tracer(self, wrap: Callable[[Any, torch.Tensor, Tracer], Any]) -> Tracer:
        """Give what follows one call; the names that it gives to tensors are kept."""
        found = Tracer(_held_by(self.function), wrap)
        found.named = self._named
        return found

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Name a captured tensor after the array that the function holds."""
        return self._named.get(tensor._cdata)


@dataclass
class _NumpyFunction(FollowedFunction):
    """A function on numpy arrays, called with arrays that are followed."""

    #: Kinds of numpy's formats: tables of many numbers that numpy counts in them are followed.
    counted: str = ""
    #: Whether the arrays that the function holds are followed too.
    tables: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracer = self.tracer(TracedArray)
        tracer.own_code = OwnCode(tracer)
        leaves, spec = flatten((args, kwargs), "in")
        given = [tracer.take(leaf) if isinstance(leaf, torch.Tensor) else leaf for _, leaf in leaves]
        arrays, named = unflatten(given, spec)
        tracer.tables = self.tables
        function = _with_tables(self.function, tracer) if self.tables else self.function
        with followed(tracer, self.counted):
            outputs = function(*arrays, **named)
        found, tree = flatten(outputs)
        return unflatten([_tensor(leaf, tracer) for _, leaf in found], tree)


def _with_tables(function: Callable[..., Any], tracer: Tracer) -> Callable[..., Any]:
    """A Python function with the arrays that it closes over or has as globals followed, as numpy's own are not."""
    if not isinstance(function, types.FunctionType):
        return function
    cells = tuple(
        types.CellType(tracer.table(c.cell_contents)) if _filled(c) else c for c in function.__closure__ or ()
    )
    known, left = dict(function.__globals__), [function.__code__]
    while left:
        code = left.pop()
        left += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        known.update((name, tracer.table(known[name])) for name in code.co_names if name in known)
    found = types.FunctionType(function.__code__, known, function.__name__, function.__defaults__, cells)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def _tensor(leaf: Any, tracer: Tracer) -> Any:
    if type(leaf) is TracedArray or isinstance(leaf, (np.ndarray, np.generic)):
        return tracer.tensor(leaf)
    return leaf


def _held_by(function: Callable[..., Any]) -> dict[int, str]:
    """Name the arrays that a function closes over, has as globals or attributes, by their ``id``."""
    found: dict[int, str] = {}
    for name, value in _parts(function):
        _search(name, value, found, _DEPTH)
    return found


def _search(name: str, value: Any, found: dict[int, str], depth: int) -> None:
    if is_array(value):
        found.setdefault(id(value), name)
    elif depth > 0 and isinstance(value, (list, tuple)):
        for k, part in enumerate(value):
            _search(f"{name}[{k}]", part, found, depth - 1)
    elif depth > 0 and isinstance(value, dict):
        for k, part in value.items():
            _search(f"{name}[{k!r}]", part, found, depth - 1)
    elif depth > 0 and not isinstance(value, (type, types.ModuleType)):
        for key, part in _parts(value):
            _search(f"{name}.{key}", part, found, depth - 1)


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, types.MethodType):
        return [("self", thing.__self__), *_parts(thing.__func__)]
    if isinstance(thing, types.FunctionType):
        free = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
        cells = [(name, cell.cell_contents) for name, cell in free if _filled(cell)]
        return [*cells, *((n, thing.__globals__[n]) for n in thing.__code__.co_names if n in thing.__globals__)]
    return list(vars(thing).items()) if hasattr(thing, "__dict__") else []


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
