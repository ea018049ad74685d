"""Which library's arrays a function takes: its annotations say so, or the modules it names."""

from __future__ import annotations

import functools
import inspect
from typing import Any

_ROOTS = {"torch": "torch", "numpy": "numpy", "scipy": "numpy", "jax": "jax", "jaxlib": "jax"}


def framework_of(function: Any) -> str:
    """Return ``"torch"``, ``"numpy"`` or ``"jax"``.

    The function's own home decides first (``numpy.tanh``, a jitted JAX function), then its annotations, then the
    libraries whose names its code uses. torch is the answer where nothing else is seen: it is what inputs are.
    """
    for look in (_by_class, _by_home, _by_annotation, _by_names):
        found = look(function)
        if found is not None:
            return found
    return "torch"


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
    scope = {**getattr(owner, "__globals__", {}), **_closure(owner)}
    homes: set[str] = set()
    for name in (*code.co_names, *code.co_freevars):
        if name in scope:
            homes |= _home_of_value(scope[name], seen)
    return homes


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
