"""What a function can reach beyond its arguments: closures, globals, attributes, containers, generators.

A walk over references, breadth first, that stops at code which is not the user's. Every reached thing has one path in
the user's words (``acts[0]``, ``self.last``), which later names the state that drifted or the place a tensor leaked to.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.records.user_code import is_users

# A function that reaches more than this reaches a data set: what lies deeper is left alone and said so.
MAX_THINGS = 5000
MAX_DEPTH = 8

MISSING = object()

_DONE = (str, bytes, int, float, complex, bool, type(None), types.BuiltinFunctionType, torch.dtype, torch.device)


@dataclass(frozen=True)
class Binding:
    """A name that can be made to hold another value: a cell, a global, an attribute of a class or module."""

    path: str
    get: Callable[[], Any]
    set: Callable[[Any], None]


@dataclass
class Reached:
    """Everything a walk found.

    Parameters
    ----------
    bindings : list of Binding
        Names that can be rebound.
    things : list of (path, object)
        Containers, tensors, arrays, generators and objects with attributes.
    functions : list of function
        The user's functions, the first one included.
    full : bool
        False when the walk stopped at its limits.
    """

    bindings: list[Binding] = field(default_factory=list)
    things: list[tuple[str, Any]] = field(default_factory=list)
    functions: list[types.FunctionType] = field(default_factory=list)
    full: bool = True


def reach(function: Any, arguments: tuple[Any, ...] = ()) -> Reached:
    """Walk from a callable, and from arguments that are not tensors, to everything of the user's they refer to."""
    return _Walk().run([("self", function), *((f"argument {i}", a) for i, a in enumerate(arguments))])


def unwrapped(function: Any) -> Any:
    """Return the Python function that a callable ends in: through partial, methods, modules and callable objects."""
    for _ in range(20):
        if isinstance(function, types.FunctionType):
            return getattr(function, "__wrapped__", function)
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, torch.nn.Module):
            function = type(function).forward
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(type(function).__dict__.get("__call__"), types.FunctionType):
            function = type(function).__call__
        else:
            return function
    return function


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def names_in(code: types.CodeType) -> set[str]:
    """Return every global or attribute name that a function and its inner functions mention."""
    return {name for c in codes_of(code) for name in c.co_names}


class _Walk:
    def __init__(self) -> None:
        self.found = Reached()
        self.queue: deque[tuple[str, Any, int]] = deque()
        self.seen: dict[int, Any] = {}

    def run(self, roots: list[tuple[str, Any]]) -> Reached:
        for path, value in roots:
            self.add(path, value, 0)
        while self.queue:
            path, value, depth = self.queue.popleft()
            if len(self.found.things) + len(self.found.bindings) > MAX_THINGS or depth > MAX_DEPTH:
                self.found.full = False
                break
            self.visit(path, value, depth)
        return self.found

    def add(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, _DONE) or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        self.queue.append((path, value, depth))

    def bind(self, binding: Binding, depth: int) -> None:
        self.found.bindings.append(binding)
        value = binding.get()
        if value is not MISSING:
            self.add(binding.path, value, depth + 1)

    def visit(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, types.FunctionType):
            self.visit_function(path, value, depth)
        elif isinstance(value, types.MethodType):
            self.add("self", value.__self__, depth)
            self.add(path, value.__func__, depth)
        elif isinstance(value, functools.partial):
            for i, item in enumerate((value.func, *value.args, *value.keywords.values())):
                self.add(f"{path}.args[{i}]", item, depth + 1)
        elif isinstance(value, type):
            self.visit_class(value, depth)
        elif isinstance(value, types.ModuleType):
            return
        else:
            self.visit_thing(path, value, depth)

    def visit_function(self, path: str, function: types.FunctionType, depth: int) -> None:
        code = function.__code__
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.add(path, wrapped, depth)
        if not is_users(code.co_filename) and (depth or "torch" in code.co_filename):
            # A decorator of a library: what it wraps stands in its closure.
            for cell in function.__closure__ or ():
                held = _content(cell)
                if isinstance(held, (types.FunctionType, types.MethodType, functools.partial, torch.nn.Module)):
                    self.add(path, held, depth + 1)
            return
        self.found.functions.append(function)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.bind(_cell_binding(name, cell), depth)
        for name in sorted(names_in(code)):
            self.visit_global(name, function, depth)
        for i, default in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
            self.add(f"default {i} of {function.__name__}", default, depth + 1)
        self.found.things.append((function.__name__, function))
        for name, item in list(function.__dict__.items()):
            self.add(f"{function.__name__}.{name}", item, depth + 1)

    def visit_global(self, name: str, function: types.FunctionType, depth: int) -> None:
        space = function.__globals__
        stored = any(_stores_global(c, name) for c in codes_of(function.__code__))
        if name not in space and not stored:
            return
        value = space.get(name)
        if isinstance(value, types.ModuleType):
            if is_users(getattr(value, "__file__", None) or "<"):
                for attribute in sorted(names_in(function.__code__) & set(vars(value))):
                    self.bind(_space_binding(f"{name}.{attribute}", vars(value), attribute), depth)
            return
        if stored or not isinstance(value, (types.FunctionType, type)):
            self.bind(_space_binding(name, space, name), depth)
        else:
            self.add(name, value, depth + 1)

    def visit_class(self, cls: type, depth: int) -> None:
        module = sys.modules.get(cls.__module__)
        if not is_users(getattr(module, "__file__", None) or "<string>"):
            return
        for name, value in list(vars(cls).items()):
            if isinstance(value, (staticmethod, classmethod)):
                self.add(f"{cls.__name__}.{name}", value.__func__, depth + 1)
            elif isinstance(value, types.FunctionType):
                self.add(f"{cls.__name__}.{name}", value, depth + 1)
            elif not (name.startswith("__") or hasattr(value, "__get__")):
                self.bind(_class_binding(cls, name), depth)
        for parent in cls.__bases__:
            self.add(parent.__name__, parent, depth + 1)

    def visit_thing(self, path: str, value: Any, depth: int) -> None:
        self.found.things.append((path, value))
        if isinstance(value, dict):
            for key, item in list(value.items()):
                self.add(f"{path}[{key!r:.40}]", item, depth + 1)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            for i, item in enumerate(list(value)):
                self.add(f"{path}[{i}]", item, depth + 1)
        elif isinstance(value, torch.Tensor):
            return
        elif isinstance(value, torch.nn.Module):
            self.visit_module(path, value, depth)
        else:
            for name, item in attributes_of(value):
                self.add(f"{path}.{name}", item, depth + 1)
            self.add(type(value).__name__, type(value), depth + 1)
            if hasattr(value, "__wrapped__"):
                self.add(path, value.__wrapped__, depth + 1)

    def visit_module(self, path: str, module: torch.nn.Module, depth: int) -> None:
        for name, item in list(vars(module).items()):
            if name in ("_parameters", "_buffers", "_modules"):
                self.found.things.append((path, item))
                for key, inner in item.items():
                    self.add(f"{path}.{key}", inner, depth + 1)
            else:
                self.add(f"{path}.{name}", item, depth + 1)
        self.add(type(module).__name__, type(module), depth + 1)


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """Return the instance attributes of an object of a user's class, by ``__dict__`` and by ``__slots__``."""
    users = is_users_object(value)
    found = list(getattr(value, "__dict__", {}).items()) if users else []
    for cls in type(value).__mro__ if users else ():
        for name in _slots(cls):
            if hasattr(value, name):
                found.append((name, getattr(value, name)))
    return found


def is_users_object(value: Any) -> bool:
    """Whether the class of an object, or a class it derives from, is written by the user."""
    if isinstance(value, (torch.nn.Module, types.SimpleNamespace, types.FunctionType)):
        return True
    module = sys.modules.get(type(value).__module__)
    return type(value).__module__ == "__main__" or is_users(getattr(module, "__file__", None) or "<")


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(s for s in slots if s not in ("__dict__", "__weakref__"))


@functools.lru_cache(maxsize=2048)
def _stores_global(code: types.CodeType, name: str) -> bool:
    import dis

    return any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") and i.argval == name for i in dis.get_instructions(code))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _cell_binding(name: str, cell: types.CellType) -> Binding:
    def put(value: Any) -> None:
        if value is MISSING:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    return Binding(name, lambda: _content(cell), put)


def _space_binding(path: str, space: dict[str, Any], name: str) -> Binding:
    def put(value: Any) -> None:
        if value is MISSING:
            space.pop(name, None)
        else:
            space[name] = value

    return Binding(path, lambda: space.get(name, MISSING), put)


def _class_binding(cls: type, name: str) -> Binding:
    def put(value: Any) -> None:
        if value is MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, value)

    return Binding(f"{cls.__name__}.{name}", lambda: vars(cls).get(name, MISSING), put)
