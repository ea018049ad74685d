"""What a cell function does, as a short fingerprint: rows of another version of it are rows of another study."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from driftscope.records.user_code import is_users

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def code_digest(function: Callable[..., Any]) -> str:
    """Fingerprint the code of a function and of the user's own functions, classes and plain constants it refers to.

    Comments and lines that moved change nothing. What it reads otherwise (files, tensors, installed packages) is not
    part of it.
    """
    digest = hashlib.blake2b(digest_size=8)
    for words in _described(function, set(), root=True):
        digest.update(words.encode())
    return digest.hexdigest()


def _described(thing: Any, seen: set[int], root: bool = False) -> Iterator[str]:
    """Words for everything a thing does; the same in every process."""
    if not isinstance(thing, (types.FunctionType, type)):
        thing = inspect.getattr_static(thing, "__wrapped__", thing)  # as the decorator of a study leaves it
    if isinstance(thing, _PLAIN):
        yield repr(thing)
    elif isinstance(thing, (tuple, list, set, frozenset, dict)):
        parts = ["".join(_described(part, seen)) for part in (thing.items() if isinstance(thing, dict) else thing)]
        yield f"{type(thing).__name__}{sorted(parts) if isinstance(thing, (set, frozenset)) else parts}"
    elif isinstance(thing, functools.partial):
        yield from _described((thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, types.CodeType):
        yield f"{thing.co_name} {thing.co_code.hex()} {thing.co_names} {thing.co_varnames}"
        yield from (words for constant in thing.co_consts for words in _described(constant, seen))
    elif id(thing) in seen:
        yield "again"
    elif isinstance(thing, types.FunctionType) and (root or is_users(thing.__code__.co_filename)):
        seen.add(id(thing))
        yield from _of_function(thing, seen)
    elif isinstance(thing, type) and _is_written_by_users(thing):
        seen.add(id(thing))
        held = {name: _plain_method(v) for name, v in vars(thing).items() if not name.startswith("__") or callable(v)}
        yield from _described((thing.__bases__, held), seen)
    else:
        named = thing if isinstance(thing, (type, types.FunctionType, types.BuiltinFunctionType)) else type(thing)
        yield f"<{named.__qualname__}>"


def _of_function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _described(function.__code__, seen)
    yield from _described((function.__defaults__, function.__kwdefaults__), seen)
    cells = function.__closure__ or ()
    yield from (words for cell in cells for words in _described(_content(cell), seen))
    names = sorted(_names(function.__code__))
    for name in names:
        held = function.__globals__.get(name)
        if isinstance(held, types.ModuleType) and held.__dict__.get("__file__") and is_users(str(held.__file__)):
            held = {attribute: getattr(held, attribute, None) for attribute in names}
        yield f" {name}="
        yield from _described(held, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_written_by_users(thing: type) -> bool:
    methods = map(_plain_method, vars(thing).values())
    return any(is_users(m.__code__.co_filename) for m in methods if isinstance(m, types.FunctionType))


def _plain_method(value: Any) -> Any:
    if isinstance(value, (classmethod, staticmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value
