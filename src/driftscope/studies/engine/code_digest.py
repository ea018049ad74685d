"""What a cell function does, as a short fingerprint: rows of another version of it are rows of another study."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from driftscope.records.user_code import file_of, is_users

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def code_digest(function: Callable[..., Any]) -> str:
    """Fingerprint the code of a function and of the user's own functions, classes and constants that it refers to.

    Constants of a module count as they are written, not by their values: a time or a folder is another one in every
    process. Comments and lines that moved change nothing. What is read otherwise (files, tensors, installed packages)
    is not part of it. It begins with the version of Python: another one compiles the same code to other bytes.
    """
    digest = hashlib.blake2b(digest_size=8)
    for words in _described(function, set(), root=True):
        digest.update(words.encode())
    return f"{sys.implementation.cache_tag}:{digest.hexdigest()}"


def are_apart(one: str, other: str) -> bool:
    """Whether two fingerprints are of different code; those of two versions of Python do not tell."""
    return one.partition(":")[0] == other.partition(":")[0] and one != other


def _described(thing: Any, seen: set[Any], root: bool = False) -> Iterator[str]:
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


def _of_function(function: types.FunctionType, seen: set[Any]) -> Iterator[str]:
    code = function.__code__
    yield from _described(code, seen)
    yield from _described((function.__defaults__, function.__kwdefaults__), seen)
    cells = function.__closure__ or ()
    yield from (words for cell in cells for words in _described(_content(cell), seen))
    yield from _of_globals(sorted(_names(code)), function.__globals__, code.co_filename, seen)


def _of_globals(names: list[str], held: Mapping[str, Any], file: str, seen: set[Any]) -> Iterator[str]:
    """Words for what names stand for in a module, the names of other modules' contents among them."""
    for name in names:
        if name not in held or name.startswith("__") or (file, name) in seen:
            continue
        seen.add((file, name))
        thing = held[name]
        yield f" {name}="
        if isinstance(thing, types.ModuleType):
            home = file_of(thing)
            if home and is_users(home):
                yield from _of_globals(names, vars(thing), home, seen)
        elif callable(thing):
            yield from _described(thing, seen)
        else:
            for statement in _assignments(file).get(name, ()):
                yield ast.dump(statement)
                inner = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
                yield from _of_globals(sorted(inner - {name}), held, file, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _assignments(file: str) -> Mapping[str, list[ast.stmt]]:
    linecache.checkcache(file)
    return _assigned("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=16)
def _assigned(text: str) -> Mapping[str, list[ast.stmt]]:
    """Statements of a module, outside of its functions and classes, by the names that they give values."""
    found: dict[str, list[ast.stmt]] = {}
    try:
        waiting: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError):
        return found
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for inner in (inner for target in targets for inner in ast.walk(target)):
                    if isinstance(inner, ast.Name):
                        found.setdefault(inner.id, []).append(node)
            elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
                waiting.append(node)
    return found


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
