"""Which library's arrays a function takes: its annotations say so, or the modules and the methods it names."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from typing import Any

_ROOTS = {"torch": "torch", "numpy": "numpy", "scipy": "numpy", "jax": "jax", "jaxlib": "jax"}

# Names of arguments that the methods of one library's arrays alone take; torch takes axis and keepdims as well.
_ARGUMENTS = {"dim": "torch", "keepdim": "torch", "unbiased": "torch", "ddof": "numpy"}


def framework_of(function: Any) -> str:
    """Return ``"torch"``, ``"numpy"`` or ``"jax"``.

    torch is the answer where neither what it names nor the methods it calls tell: it is what inputs are.
    """
    return told_framework(function) or _by_methods(function) or "torch"


def told_framework(function: Any) -> str | None:
    """Return the library that a function itself names, None where it may be given any library's arrays.

    The function's own home decides first (``numpy.tanh``, a jitted JAX function), then its annotations, then the
    libraries whose names its code uses.
    """
    for look in (_by_class, _by_home, _by_annotation, _by_names):
        found = look(function)
        if found is not None:
            return found
    return None


def framework_among(function: Any, given: str, beside: str | None) -> str:
    """Return the library whose arrays a function is given that names none.

    ``x.std(0)`` divides by n in numpy and by n - 1 in torch: what it means is what it is called with.

    Parameters
    ----------
    function : callable
        One that :func:`told_framework` knows nothing of.
    given : str
        The library whose arrays the inputs are; empty where they were drawn or read.
    beside : str or None
        The library that the function it is compared with names.
    """
    called = _by_methods(function)
    if called == "torch" or given == "torch":
        return called or "torch"
    if "jax" in (given, beside):
        return "jax"
    if called == "numpy" or beside == "numpy" or (given == "numpy" and _calls_methods_alone(function)):
        return "numpy"
    return "torch"


def _calls_methods_alone(function: Any) -> bool:
    """Whether a function's code names no object but numbers and such functions: it is given all that it works with."""
    return all(
        _calls_methods_alone(value) if inspect.isfunction(value) else isinstance(value, (int, float, complex, str))
        for value in _named_values(_code_owner(function))
        if not isinstance(value, types.BuiltinFunctionType | types.ModuleType | type)
    )


def _root(name: Any) -> str | None:
    return _ROOTS.get(str(name).split(".")[0])


def _by_class(function: Any) -> str | None:
    roots = [_root(c.__module__) for c in type(function).__mro__]
    return next((root for root in roots if root is not None), None)


def _by_home(function: Any) -> str | None:
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    return _root(getattr(plain, "__module__", None))


def _by_annotation(function: Any) -> str | None:
    annotations = getattr(_code_owner(function), "__annotations__", {})
    for annotation in annotations.values():
        words = annotation if isinstance(annotation, str) else f"{getattr(annotation, '__module__', '')}.{annotation}"
        for mark, framework in (
            ("jax.", "jax"),
            ("numpy.", "numpy"),
            ("np.", "numpy"),
            ("NDArray", "numpy"),
            ("torch.", "torch"),
        ):
            if mark in words:
                return framework
    return None


def _by_names(function: Any) -> str | None:
    """Look at the libraries that a function's code names: ``np.tanh(x)`` names numpy."""
    homes = _named_homes(function, set())
    # torch wins over numpy: a torch function may use numpy for a constant, a numpy function has no use for torch.
    return next((name for name in ("jax", "torch", "numpy") if name in homes), None)


def _named_homes(function: Any, seen: set[int]) -> set[str]:
    """Libraries of the values that a function's code names, and of what the user's own functions among them name."""
    owner = _code_owner(function)
    code = getattr(owner, "__code__", None)
    if code is None or id(code) in seen:
        return set()
    seen.add(id(code))
    homes = {home for name in _imported(owner) if (home := _root(name)) is not None}
    for value in _named_values(owner):
        homes |= _home_of_value(value, seen)
    return homes


def _named_values(owner: Any) -> list[Any]:
    """What the names in a function's code stand for outside it."""
    scope = {**getattr(owner, "__globals__", {}), **_closure(owner)}
    return [scope[name] for code in _codes(owner) for name in (*code.co_names, *code.co_freevars) if name in scope]


def _imported(owner: Any) -> list[str]:
    """The modules that a function imports itself."""
    steps = (step for code in _codes(owner) for step in dis.get_instructions(code))
    return [str(step.argval) for step in steps if step.opname == "IMPORT_NAME"]


def _codes(owner: Any) -> list[types.CodeType]:
    """The code of a function, and of the functions and comprehensions inside it."""
    found = [owner.__code__] if hasattr(owner, "__code__") else []
    for code in found:
        found += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return found


def _by_methods(function: Any) -> str | None:
    """Look at names that are attributes or arguments of one library alone: ``x.unsqueeze(-1)``, ``x.std(ddof=1)``."""
    import numpy as np
    import torch

    codes = _codes(_code_owner(function))
    given = {word for code in codes for c in code.co_consts if isinstance(c, tuple) for word in c if word in _ARGUMENTS}
    told = {_ARGUMENTS[word] for word in given}
    for name in {name for code in codes for name in code.co_names}:
        owners = [library for library, kind in (("torch", torch.Tensor), ("numpy", np.ndarray)) if hasattr(kind, name)]
        told |= set(owners) if len(owners) == 1 else set()
    return told.pop() if len(told) == 1 else None


def _home_of_value(value: Any, seen: set[int]) -> set[str]:
    if inspect.ismodule(value):
        found = _root(value.__name__)
    else:
        found = _by_class(value) or (_by_home(value) if callable(value) else None)
    if found is not None:
        return {found}
    return _named_homes(value, seen) if inspect.isfunction(value) else set()


def _code_owner(function: Any) -> Any:
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    if hasattr(plain, "__code__"):
        return plain
    if inspect.ismethod(plain):
        return plain.__func__
    return type(plain).__call__


def _closure(function: Any) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    found = {}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # a name that is not assigned yet
            continue
    return found
