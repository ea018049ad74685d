"""What a function has captured, read in a few microseconds: is it as it was, and back as it was where it is not.

:class:`~driftscope.transforms.world.snapshot.World` copies tensors and reads everything by path, which a trial can
afford. Between two calls of a batched function only names, containers, attributes and numbers are looked at, by
identity or value; tensors by their kind, and by their version where a run must not have written to them.
"""

from __future__ import annotations

import functools
import operator
import random
import sys
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from driftscope.programs.state.printing import streams
from driftscope.transforms.world.reach import attributes_of, reach
from driftscope.transforms.world.snapshot import OPAQUE, keep_binding, keeper_of, position_of_iterator

#: Arrays above this many bytes are not compared between calls: what captures them counts as changed.
_MOST_BYTES = 1 << 20

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


class Captured:
    """The captured values of a function at one time.

    Parameters
    ----------
    function : callable
    arguments : tuple
        Those that are no tensors are looked at as well.

    Attributes
    ----------
    whole : bool
        Whether everything reached can be read and put back: no running generator, no open file, nothing left out.
    reached : frozenset of int
        Identities of the tensors, containers and objects.
    """

    def __init__(self, function: Any, arguments: tuple[Any, ...] = ()):
        reached = reach(function, tuple(a for a in arguments if not isinstance(a, torch.Tensor)))
        self._bindings = [(binding, binding.get()) for binding in reached.bindings]
        self._things = [(path, thing, *_reader(thing)) for path, thing in reached.things]
        self.reached = frozenset(id(thing) for _, thing in reached.things)
        self.tensors = [thing for _, thing in reached.things if isinstance(thing, torch.Tensor)]
        self.mark()
        opaque = any(isinstance(thing, OPAQUE) and thing not in _streams() for _, thing in reached.things)
        self.whole = reached.full and not opaque
        self._undo = [keep_binding(binding) for binding in reached.bindings]
        self._undo += [keep(t) for _, t in reached.things if not isinstance(t, torch.Tensor) and (keep := keeper_of(t))]

    def changed(self, *, written: bool = False) -> str:
        """Name the first thing that is not as it was, "" when all is; ``written`` counts writes into tensors too."""
        for binding, value in self._bindings:
            if not _alike(binding.get(), value):
                return binding.path
        for path, thing, read, value in self._things:
            if not _all_alike(read(thing), value):
                return path
        return "a tensor" if written and self.written() else ""

    def mark(self) -> None:
        """Count writes into tensors from here on."""
        self._versions = versions_of(self.tensors)

    def written(self) -> bool:
        """Whether a tensor was written to since :meth:`mark`."""
        return versions_of(self.tensors) != self._versions

    @functools.cached_property
    def key(self) -> Any:
        """What is equal for captured values that a function cannot tell apart, but for the values of tensors."""
        names = tuple((binding.path, _keyed(value)) for binding, value in self._bindings)
        return names, tuple((path, _keyed(value)) for path, _, _, value in self._things)

    def restore(self) -> None:
        """Put back names, containers, attributes and generators; tensors stay as they are."""
        for undo in self._undo:
            undo()


def versions_of(tensors: list[torch.Tensor]) -> list[int]:
    """Return how often each tensor was written to; tensors of inference mode do not count."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _keyed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_keyed, value))
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    return value if isinstance(value, (types.CodeType, torch.dtype)) else type(value)


def _streams() -> tuple[Any, ...]:
    return (sys.stdout, sys.stderr, *streams(), sys.__stdout__, sys.__stderr__)


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _PLAIN) and (one == other or (one != one and other != other))


def _all_alike(one: Any, other: Any) -> bool:
    if not isinstance(one, tuple):
        return _alike(one, other)
    return len(one) == len(other) and (all(map(operator.is_, one, other)) or all(map(_alike, one, other)))


def _reader(thing: Any) -> tuple[Callable[[Any], Any], Any]:
    read = next(read for kinds, read in _READERS if kinds is None or isinstance(thing, kinds))
    return read, read(thing)


def _of_tensor(tensor: torch.Tensor) -> Any:
    sizes = tensor.shape if tensor.layout is torch.strided else (str(tensor.shape),)
    return (tensor.dtype, tensor.requires_grad, tensor.is_leaf, *sizes)


def _of_dict(thing: dict[Any, Any]) -> Any:
    return (*thing.keys(), *thing.values())


def _of_module(thing: torch.nn.Module) -> Any:
    return tuple(vars(thing).values())


def _of_array(thing: np.ndarray) -> Any:
    return thing.tobytes() if thing.nbytes <= _MOST_BYTES and thing.dtype.kind != "O" else object()


def _of_function(thing: types.FunctionType) -> Any:
    kept = (thing.__kwdefaults__ or {}).values()
    return (thing.__code__, *(thing.__defaults__ or ()), *kept, *_of_dict(vars(thing)))


def _of_object(thing: Any) -> Any:
    if hasattr(thing, "cache_info"):
        return thing.cache_info().currsize
    if type(thing).__module__ == "itertools" or hasattr(thing, "__length_hint__"):
        return position_of_iterator(thing)
    return tuple(part for pair in attributes_of(thing) for part in pair)


_READERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (torch.Tensor, _of_tensor),
    (dict, _of_dict),
    (torch.nn.Module, _of_module),
    ((list, tuple, deque), tuple),
    ((set, frozenset), lambda thing: str(sorted(map(repr, thing)))),
    (np.ndarray, _of_array),
    (torch.Generator, lambda thing: thing.get_state().numpy().tobytes()),
    (np.random.Generator, lambda thing: str(thing.bit_generator.state)),
    (np.random.RandomState, lambda thing: str(thing.get_state())),
    (random.Random, lambda thing: str(thing.getstate())),
    (types.FunctionType, _of_function),
    (None, _of_object),
)
