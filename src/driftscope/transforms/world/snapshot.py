"""Everything a function reaches, rewindable in place, and readable as a fingerprint.

Two runs can only be compared when both start from the same world: a list that was popped, a counter, a buffer that was
written, a generator that was advanced. ``snapshot`` saves, ``rewind`` puts back *in place* (other code may hold the
same objects), ``fingerprint`` reads the state by path so that two ends of a run can be compared.
"""

from __future__ import annotations

import copy
import gc
import io
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.world.reach import MISSING, Binding, Reached, attributes_of, reach

_ITERATORS: tuple[type, ...] = (
    type(iter([])), type(iter(())), type(iter(range(0))), type(iter("")), type(iter({})), type(iter({}.values())),
    type(iter({}.items())), type(iter(set())), enumerate, zip, map, filter, type(reversed([])),
)  # fmt: skip
# Tensors above this many elements are read by their sums: a copy after each of many runs would fill the memory.
MAX_ELEMENTS = 1_000_000
OPAQUE = (types.GeneratorType, io.IOBase)


@dataclass(frozen=True)
class Escaped:
    """In a fingerprint: a tensor that only makes sense inside a transform, found outside of it."""

    kind: str


class World:
    """What a function reaches beyond its tensor arguments.

    Parameters
    ----------
    function : callable
    arguments : tuple
        Non-tensor arguments are reached too.

    Attributes
    ----------
    opaque : tuple of str
        Paths of things that cannot be put back: running generators, open files.
    """

    def __init__(self, function: Any, arguments: tuple[Any, ...] = ()):
        self._function = function
        self._arguments = tuple(a for a in arguments if not isinstance(a, torch.Tensor))
        reached = self._reach()
        self.functions = tuple(reached.functions)
        self.full = reached.full
        self.opaque = tuple(path for path, thing in reached.things if isinstance(thing, OPAQUE))
        self._undo = self._saved(reached)

    def _reach(self) -> Reached:
        return reach(self._function, self._arguments)

    def snapshot(self) -> None:
        """Save the world as it is now; :meth:`rewind` returns to it."""
        self._undo = self._saved(self._reach())

    @staticmethod
    def _saved(reached: Reached) -> list[Callable[[], None]]:
        undo = [keep_binding(binding) for binding in reached.bindings]
        for _, thing in reached.things:
            keeper = keeper_of(thing)
            if keeper is not None:
                undo.append(keeper(thing))
        return undo

    def rewind(self) -> None:
        """Put everything back in place as it was at the last :meth:`snapshot`."""
        for undo in self._undo:
            undo()

    def fingerprint(self) -> dict[str, Any]:
        """Read the state: path to a tensor (a clone), an :class:`Escaped`, or a text."""
        reached = self._reach()
        found: dict[str, Any] = {}
        for binding in reached.bindings:
            value = binding.get()
            if value is MISSING or _is_plain(value):
                _enter(found, binding.path, "unbound" if value is MISSING else repr(value))
        for path, thing in reached.things:
            _enter(found, path, _reading(thing))
            for key, inner in _leaves(path, thing):
                _enter(found, key, _reading(inner))
        return found


def _enter(found: dict[str, Any], path: str, value: Any) -> None:
    # Two things can carry one path (a name in two scopes); dropping one would hide its drift.
    key, n = path, 1
    while key in found and not (isinstance(value, str) and found[key] == value):
        n += 1
        key = f"{path} ({n})"
    found[key] = value


def _leaves(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the plain values directly inside a container or object: the walk itself keeps only things."""
    if isinstance(thing, dict):
        yield from ((f"{path}[{k!r:.40}]", v) for k, v in list(thing.items()) if _is_plain(v))
    elif isinstance(thing, (list, tuple, deque)):
        yield from ((f"{path}[{i}]", v) for i, v in enumerate(list(thing)) if _is_plain(v))
    elif isinstance(thing, torch.nn.Module):
        yield from ((f"{path}.{k}", v) for k, v in list(vars(thing).items()) if _is_plain(v))
    elif hasattr(thing, "cache_info"):
        for i, held in enumerate(held_by_cache(thing)):
            if internals.is_wrapped(held):
                yield f"{path}.cache[{i}]", held
    else:
        yield from ((f"{path}.{k}", v) for k, v in attributes_of(thing) if _is_plain(v))


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, bytes, int, float, complex, bool, type(None)))


def held_by_cache(cache: Any) -> list[Any]:
    """Return the tensors that an ``lru_cache`` holds; its entries are visible to the garbage collector alone."""
    found, level = [], [cache]
    for _ in range(4):
        level = [held for item in level for held in gc.get_referents(item) if not isinstance(held, types.ModuleType)]
        found += [held for held in level if type(held) in (torch.Tensor, torch.nn.Parameter)]
        level = [h for h in level if isinstance(h, (dict, tuple, list)) or type(h).__module__ == "functools"][:500]
    return found


def _reading(value: Any) -> Any:
    """Read one value for a fingerprint."""
    if isinstance(value, torch.Tensor):
        if internals.is_wrapped(value):
            return Escaped(internals.wrapper_kind(value))
        with torch.no_grad():
            return value.detach().clone() if value.numel() <= MAX_ELEMENTS else _summary(value)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "fiub" else repr(value)
    if isinstance(value, torch.Generator):
        return f"torch generator at {hash(value.get_state().numpy().tobytes())}"
    if isinstance(value, np.random.Generator):
        return f"generator at {value.bit_generator.state}"
    if isinstance(value, np.random.RandomState | random.Random):
        return f"generator at {hash(str(_random_state(value)))}"
    if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
        return f"{type(value).__name__} of {len(value)}"
    if hasattr(value, "cache_info"):
        return f"cache of {value.cache_info().currsize}"
    if _is_plain(value):
        return repr(value)
    if _is_copyable_iterator(value):
        return f"iterator {position_of_iterator(value)}"
    return type(value).__name__


def _summary(tensor: torch.Tensor) -> str:
    """Read a tensor too large to be copied after every run: its shape and two sums."""
    wide = tensor.detach().double() if not tensor.is_complex() else torch.view_as_real(tensor.detach()).double()
    return f"shape {tuple(tensor.shape)}, sum {float(wide.sum())!r}, absolute sum {float(wide.abs().sum())!r}"


def _random_state(generator: Any) -> Any:
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()


def position_of_iterator(iterator: Any) -> str:
    """Read where an iterator stands."""
    reduced = iterator.__reduce__()
    return repr(reduced[2]) if len(reduced) > 2 else repr(reduced[1])[:80]


def _is_copyable_iterator(value: Any) -> bool:
    return isinstance(value, _ITERATORS) or type(value).__module__ == "itertools"


def _fresh(value: Any) -> Callable[[], Any]:
    """Return how to get ``value`` back as it is now: itself, or for an iterator another one that stands here."""
    if not _is_copyable_iterator(value):
        return lambda: value
    try:
        kept = copy.deepcopy(value)
    except (TypeError, ValueError):
        return lambda: value
    return lambda: value if position_of_iterator(value) == position_of_iterator(kept) else copy.deepcopy(kept)


def keep_binding(binding: Binding) -> Callable[[], None]:
    """Return what binds a name again to what it is bound to now."""
    value = binding.get()
    fresh = _fresh(value)

    def undo() -> None:
        wanted = fresh()
        if binding.get() is not wanted:
            binding.set(wanted)

    return undo


def _keep_list(thing: Any) -> Callable[[], None]:
    kept = [_fresh(item) for item in thing]

    def undo() -> None:
        wanted = [fresh() for fresh in kept]
        if len(wanted) != len(thing) or any(a is not b for a, b in zip(thing, wanted, strict=True)):
            thing.clear()
            thing.extend(wanted)

    return undo


def _keep_dict(thing: dict[Any, Any]) -> Callable[[], None]:
    kept = [(key, _fresh(value)) for key, value in thing.items()]

    def undo() -> None:
        wanted = {key: fresh() for key, fresh in kept}
        if list(thing) != list(wanted) or any(thing[key] is not wanted[key] for key in wanted):
            thing.clear()
            thing.update(wanted)

    return undo


def _keep_set(thing: set[Any]) -> Callable[[], None]:
    kept = set(thing)

    def undo() -> None:
        if thing != kept:
            thing.clear()
            thing.update(kept)

    return undo


def _keep_object(thing: Any) -> Callable[[], None]:
    undo_dict = _keep_dict(vars(thing)) if hasattr(thing, "__dict__") else None
    own = vars(thing) if hasattr(thing, "__dict__") else {}
    slots = [(name, value) for name, value in attributes_of(thing) if name not in own]

    def undo() -> None:
        if undo_dict is not None:
            undo_dict()
        for name, value in slots:
            if getattr(thing, name, MISSING) is not value:
                setattr(thing, name, value)

    return undo


def _keep_tensor(thing: torch.Tensor) -> Callable[[], None]:
    if internals.is_wrapped(thing) or thing.layout != torch.strided or thing.device.type == "meta":
        return lambda: None
    kept, leaf, wants = thing.detach().clone(), thing.is_leaf, thing.requires_grad
    grad = thing.grad if leaf else None

    def undo() -> None:
        if leaf and not thing.is_leaf:
            thing.detach_()
        with torch.no_grad():
            if thing.shape != kept.shape:
                thing.set_(kept.clone())  # type: ignore[call-overload]
            elif not same_bits(thing, kept):
                thing.copy_(kept)
        if leaf and thing.requires_grad != wants:
            thing.requires_grad_(wants)
        if leaf and thing.grad is not grad:
            thing.grad = grad

    return undo


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two plain tensors of one shape and dtype hold the same bits; NaN equals the same NaN."""
    a, b = left.detach().contiguous(), right.detach().contiguous()
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.dtype == torch.bool or not a.numel() or not a.is_floating_point():
        return torch.equal(a, b)
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.view(whole), b.view(whole))


def _keep_array(thing: np.ndarray) -> Callable[[], None]:
    kept = thing.copy()

    def undo() -> None:
        if thing.flags.writeable and thing.tobytes() != kept.tobytes():
            np.copyto(thing, kept)

    return undo


def _keep_torch_generator(thing: torch.Generator) -> Callable[[], None]:
    kept = thing.get_state()
    return lambda: _ignore(thing.set_state(kept))


def _keep_numpy_generator(thing: np.random.Generator) -> Callable[[], None]:
    kept = copy.deepcopy(thing.bit_generator.state)
    return lambda: setattr(thing.bit_generator, "state", kept)


def _keep_random(thing: Any) -> Callable[[], None]:
    kept = _random_state(thing)
    return lambda: thing.set_state(kept) if isinstance(thing, np.random.RandomState) else thing.setstate(kept)


def _keep_cache(thing: Any) -> Callable[[], None]:
    kept = thing.cache_info().currsize
    return lambda: thing.cache_clear() if thing.cache_info().currsize != kept else None


def _ignore(_: Any) -> None:
    return None


# In order: the first that fits. Tensors before objects, because a Parameter has a __dict__ too.
_KEEPERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Callable[[], None]]], ...] = (
    (lambda v: isinstance(v, torch.Tensor), _keep_tensor),
    (lambda v: isinstance(v, np.ndarray), _keep_array),
    (lambda v: isinstance(v, torch.Generator), _keep_torch_generator),
    (lambda v: isinstance(v, np.random.Generator), _keep_numpy_generator),
    (lambda v: isinstance(v, (np.random.RandomState, random.Random)), _keep_random),
    (lambda v: isinstance(v, (list, deque)), _keep_list),
    (lambda v: isinstance(v, dict), _keep_dict),
    (lambda v: isinstance(v, set), _keep_set),
    (lambda v: hasattr(v, "cache_clear"), _keep_cache),
    (lambda v: isinstance(v, types.FunctionType) or bool(attributes_of(v)) or hasattr(v, "__dict__"), _keep_object),
)


def keeper_of(thing: Any) -> Callable[[Any], Callable[[], None]] | None:
    if isinstance(thing, (tuple, frozenset, types.MappingProxyType, *OPAQUE)):
        return None
    return next((keep for fits, keep in _KEEPERS if fits(thing)), None)
