"""numpy's functions that are written in numpy themselves: their own code, followed as the user's is.

``numpy.polyval`` or ``numpy.cov`` need no translation: their Python code is run on the arrays that are followed, with
conversions (``asarray``) that keep these. What numpy itself computed is held against every result.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.lift.arrays.creation import FILLED, TAKING, made_of, taken
from driftscope.lift.arrays.tracing import Tracer

Function = Callable[..., Any]

# Modules of numpy whose conversions numpy's own code calls: the second had another name before numpy 2.
_NUMPYS = ("numpy", "numpy._core.numeric", "numpy.core.numeric")


class OwnCode:
    """numpy's Python functions on arrays of one followed call.

    Parameters
    ----------
    tracer : Tracer
    """

    def __init__(self, tracer: Tracer):
        self._tracer = tracer
        self._scopes: dict[str, dict[str, Any]] = {}
        self._running: list[Any] = []

    def __call__(self, function: Any) -> Function | None:
        """Give the code of an array function of numpy, None where it is compiled."""
        body = getattr(function, "__wrapped__", None)
        if not isinstance(body, types.FunctionType) or function in self._running:
            return None  # compiled, or asked for by its own code
        home = body.__globals__["__name__"]
        if home.partition(".")[0] != "numpy":
            return None
        placed = self._placed(body, self._scope(home))

        def call(*args: Any, **kwargs: Any) -> Any:
            self._running.append(function)
            try:
                return placed(*args, **kwargs)
            except (
                ArithmeticError,
                AttributeError,
                LookupError,
                NameError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as error:
                if isinstance(error, DriftscopeError):
                    raise
                raise CannotLift(f"{function.__name__} of numpy cannot be followed: {error}") from error
            finally:
                self._running.pop()

        return call

    def _scope(self, module: str) -> dict[str, Any]:
        """What the names in a module of numpy stand for, with its own functions and conversions followed."""
        if module in self._scopes:
            return self._scopes[module]
        names = vars(sys.modules[module])
        scope = self._scopes[module] = dict(names)
        for name, value in names.items():
            if isinstance(value, types.FunctionType) and value.__globals__ is names:
                scope[name] = self._placed(value, scope)
            elif name in (*TAKING, *FILLED) and callable(value):
                scope[name] = self._replaced(name, value)
            elif name == "_array_converter":
                scope[name] = _Converted
            elif isinstance(value, types.ModuleType) and value.__name__ in _NUMPYS:
                scope[name] = _FollowedModule(value, self)
        return scope

    def _placed(self, body: types.FunctionType, scope: dict[str, Any]) -> types.FunctionType:
        found = types.FunctionType(body.__code__, scope, body.__name__, body.__defaults__, body.__closure__)
        found.__kwdefaults__ = body.__kwdefaults__
        return found

    def _replaced(self, name: str, original: Function) -> Function:
        own = taken if name in TAKING else made_of

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("subok", None)
            return own(self._tracer, original, args, kwargs)

        return call


class _Converted:
    """Stands for numpy's compiled converter of arguments: they are arrays already, and stay as they are."""

    def __init__(self, *arrays: Any):
        self._arrays = tuple(a if hasattr(a, "tracer") else np.asanyarray(a) for a in arrays)

    def __getitem__(self, index: int) -> Any:
        return self._arrays[index]

    def as_arrays(self, **_: Any) -> tuple[Any, ...]:
        return self._arrays

    def wrap(self, array: Any, **_: Any) -> Any:
        return array


class _FollowedModule:
    """A module of numpy whose conversions keep what is followed."""

    def __init__(self, module: types.ModuleType, code: OwnCode):
        self._module, self._code = module, code

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if name in (*TAKING, *FILLED):
            return self._code._replaced(name, value)
        return value
