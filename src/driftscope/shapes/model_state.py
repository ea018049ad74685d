"""What a model holds beside its inputs, put back after every call: probing must leave the user's model as it was.

Some models change themselves when they run: a window that shrinks on a small image, a mask that is kept for the next
call, a counter, running statistics. Each probed shape must meet the model that the user gave, not the one that the
shape before it left behind, and so must the user afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

#: A model that reaches more things than this reaches a data set: what lies deeper is left alone.
_MOST = 20_000
#: Tensors up to this many elements are compared after every call; larger ones where torch counted a write.
_SMALL = 4096
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType)
_GONE = object()


class ModelState:
    """Everything that a callable holds, as it is now.

    Parameters
    ----------
    model : callable
        A module, a function, a method or an object.

    Attributes
    ----------
    changes : dict of str to (str, str)
        What calls changed, by path (``layers[0].window``): what it was and what it became. It was put back.
    """

    def __init__(self, model: Callable[..., Any]):
        self.changes: dict[str, tuple[str, str]] = {}
        self._tables: list[tuple[str, Any, list[Any]]] = []
        self._tensors: list[tuple[str, torch.Tensor, torch.Tensor, int, torch.Tensor | None]] = []
        self._walk(model)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Put everything back, in place, when the context ends."""
        try:
            yield
        finally:
            self.put_back()

    def put_back(self, *, thoroughly: bool = False) -> None:
        """Put everything back in place.

        Parameters
        ----------
        thoroughly : bool
            Compare every tensor, also large ones of which torch counted no write.
        """
        for path, table, items in self._tables:
            if (table or items) and not _same_items(table, items):
                self._note(path, table, items)
                _refill(table, items)
        for path, tensor, before, version, gradient in self._tensors:
            written = _version(tensor) != version or thoroughly or tensor.numel() <= _SMALL
            if (written and not _same_bits(tensor, before)) or tensor.shape != before.shape:
                self.changes.setdefault(path, ("its values", "other values"))
                _rewrite(tensor, before)
            if tensor.is_leaf and tensor.grad is not gradient:
                tensor.grad = gradient

    def _walk(self, model: Callable[..., Any]) -> None:
        waiting: deque[tuple[str, Any]] = deque([("", model)])
        seen: dict[int, Any] = {}
        while waiting and len(seen) < _MOST:
            path, thing = waiting.popleft()
            if id(thing) in seen or isinstance(thing, _ATOMS):
                continue
            # Kept alive: an id that is free again could be given to something else.
            seen[id(thing)] = thing
            if isinstance(thing, torch.Tensor):
                self._keep_tensor(path, thing)
            waiting.extend(self._parts(path, thing))

    def _keep_tensor(self, path: str, tensor: torch.Tensor) -> None:
        plain = tensor.layout is torch.strided and tensor.device.type != "meta" and type(tensor) in _PLAIN_TENSORS
        if plain:
            gradient = tensor.grad if tensor.is_leaf else None
            self._tensors.append((path, tensor, tensor.detach().clone(), _version(tensor), gradient))

    def _parts(self, path: str, thing: Any) -> Iterator[tuple[str, Any]]:
        """What a thing holds; what can be rebound is noted on the way."""
        if isinstance(thing, (dict, list, set, deque)):
            yield from self._container(path, thing)
        elif isinstance(thing, (tuple, frozenset)):
            yield from ((f"{path}[{i}]", value) for i, value in enumerate(thing))
        elif isinstance(thing, types.MethodType):
            yield path, thing.__self__
            yield path, thing.__func__
        elif isinstance(thing, functools.partial):
            yield from ((path, part) for part in (thing.func, thing.args, thing.keywords))
        elif isinstance(thing, types.FunctionType):
            yield from self._function(path, thing)
        elif isinstance(getattr(thing, "__dict__", None), dict) and not _is_foreign(thing):
            # Attributes of torch's own objects (pools, generators) are not the model's to keep.
            yield from self._container(path, vars(thing), attributes=True)

    def _container(self, path: str, thing: Any, *, attributes: bool = False) -> Iterator[tuple[str, Any]]:
        items = _items(thing)
        self._tables.append((path, thing, items))
        if isinstance(thing, dict):
            for key, value in items:
                yield _joined(path, key, attributes or path.endswith(_REGISTRIES)), value
        else:
            yield from ((f"{path}[{i}]", value) for i, value in enumerate(items))

    def _function(self, path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        if vars(function):
            yield from self._container(path, vars(function), attributes=True)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell holds nothing
                value = cell.cell_contents
                self._tables.append((name, cell, [value]))
                yield name, value
        used = {name: function.__globals__.get(name, _GONE) for name in function.__code__.co_names}
        for name, value in used.items():
            if isinstance(value, (torch.nn.Module, dict, list, set, deque)):
                yield name, value

    def _note(self, path: str, table: Any, items: list[Any]) -> None:
        if isinstance(table, dict):
            before = dict(items)
            for key in dict.fromkeys([*before, *table]):
                old, new = before.get(key, _GONE), table.get(key, _GONE)
                if old is not new and not _equal(old, new):
                    self.changes.setdefault(_joined(path, key, True), (_words(old), _words(new)))
        else:
            self.changes.setdefault(path, (_words(items), _words(_items(table))))


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
#: Tables of a module whose keys are names of the module's own: ``net._buffers['mask']`` is ``net.mask``.
_REGISTRIES = ("._parameters", "._buffers", "._modules", "_parameters", "_buffers", "_modules")


def _is_foreign(thing: Any) -> bool:
    """Whether an object belongs to a library's machinery; modules of any library are part of the model."""
    room = type(thing).__module__.partition(".")[0]
    return not isinstance(thing, torch.nn.Module) and room in ("torch", "numpy", "builtins", "sympy", "enum", "logging")


def _items(table: Any) -> list[Any]:
    if isinstance(table, types.CellType):
        try:
            return [table.cell_contents]
        except ValueError:
            return []
    return list(table.items()) if isinstance(table, dict) else list(table)


def _same_items(table: Any, items: list[Any]) -> bool:
    """Whether a table holds the very same objects in the same order; asked hundreds of times after every call."""
    if isinstance(table, dict):
        keys, values = zip(*items, strict=True) if items else ((), ())
        same = len(table) == len(items) and all(map(operator.is_, table.values(), values))
        return same and all(map(operator.is_, table, keys))
    now = _items(table) if isinstance(table, types.CellType) else table
    return len(now) == len(items) and all(map(operator.is_, now, items))


def _refill(table: Any, items: list[Any]) -> None:
    if isinstance(table, types.CellType):
        table.cell_contents = items[0]
    elif isinstance(table, dict):
        wanted = dict(items)
        for key in [key for key in table if key not in wanted]:
            del table[key]
        if list(table) == [key for key in wanted if key in table]:
            table.update(wanted)
        else:
            table.clear()
            table.update(wanted)
    elif isinstance(table, set):
        table.clear()
        table.update(items)
    else:
        table.clear()
        table.extend(items)


def _joined(path: str, key: Any, attribute: bool) -> str:
    """``net.window`` for attributes, ``net.cache['x']`` for keys."""
    for registry in _REGISTRIES:
        if path.endswith(registry):
            path = path[: -len(registry)]
            break
    if attribute and isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r:.40}]"


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.detach(), b) or bool(torch.allclose(a.detach(), b, rtol=0, atol=0, equal_nan=True))


def _rewrite(tensor: torch.Tensor, before: torch.Tensor) -> None:
    with torch.no_grad():
        if tensor.shape != before.shape:
            tensor.set_(before.clone())  # type: ignore[call-overload]
        else:
            tensor.copy_(before)


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return type(old) is type(new) and _same_bits(old, new)
    plain = isinstance(old, _ATOMS) and isinstance(new, _ATOMS)
    return plain and type(old) is type(new) and bool(old == new)


def _words(value: Any) -> str:
    if value is _GONE:
        return "not there"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, dict, set, tuple)) and len(value) > 4:
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.60}"
