"""One call of a numpy function followed: what numpy computes, and the torch operations that mean the same.

Every array that a followed function sees carries two things: numpy's own value, which decides branches, indices and
masks and is what the program natively has there, and a tensor made by torch operations, which a recorder writes down.
After every operation the tensor takes over numpy's bits, so that the tape's native values are the program's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from driftscope.errors import CannotLift, InputError
from driftscope.lift.arrays import functions, ufuncs, writing
from driftscope.programs.arrays import array_of, is_array, tensor_of

#: The operation of numpy in progress, which recorded calls are named after.
OPERATION: ContextVar[str] = ContextVar("numpy_operation", default="")

# How far torch's result may be from numpy's, relative to its largest element: another meaning, not another rounding.
_MEANING = 2.0**-4


_UNSIGNED = frozenset((torch.uint16, torch.uint32, torch.uint64))


class Tracer:
    """Follows one call.

    Parameters
    ----------
    names : dict of int to str
        Names of arrays that the function holds, by ``id``.
    wrap : callable
        ``wrap(native, tensor, tracer)`` makes an array that is followed.
    """

    def __init__(self, names: Mapping[int, str], wrap: Callable[[Any, torch.Tensor, Tracer], Any]):
        self.names = names
        self.named: dict[int, str] = {}
        self._wrap = wrap
        #: Gives the Python code of a function of numpy that nothing here translates, to be followed like the user's.
        self.own_code: Callable[[Any], Callable[..., Any] | None] = lambda _function: None
        #: Whether arrays that depend on no input are followed, which places that do are looked up in.
        self.tables = False
        self._constants: dict[int, tuple[Any, torch.Tensor]] = {}

    def take(self, tensor: torch.Tensor) -> Any:
        """Follow an input."""
        with _disable_current_modes():
            native = np.array(array_of(tensor.clone()))
        return self._wrap(native, tensor, self)

    def constant(self, array: Any) -> torch.Tensor:
        """Give an array that is not followed as a tensor, the same one every time."""
        known = self._constants.get(id(array))
        if known is not None:
            return known[1]
        try:
            with _disable_current_modes():
                tensor: torch.Tensor = tensor_of(np.array(array))
        except InputError as error:
            raise CannotLift(str(error)) from error
        if not isinstance(tensor, torch.Tensor):
            raise CannotLift(f"an array of {array.dtype} has no counterpart in torch")
        self._constants[id(array)] = array, tensor
        if id(array) in self.names:
            self.named[tensor._cdata] = self.names[id(array)]
        return tensor

    def table(self, value: Any) -> Any:
        """Follow an array of the program's own, if such are; anything else stays what it is."""
        plain = self.tables and isinstance(value, np.ndarray) and not hasattr(value, "tracer")
        return self._wrap(value, self.constant(value), self) if plain and value.ndim and value.size else value

    def dtype_of(self, native: Any) -> torch.dtype:
        """Give torch's name of the format of an array."""
        return torch_dtype(np.asarray(native).dtype)

    # -- calls -------------------------------------------------------------------------------------------------

    def ufunc(self, function: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate a universal function, or a reduction or accumulation by one."""
        if method == "at":
            return self._at(function, *inputs)
        out, where = kwargs.pop("out", None), kwargs.pop("where", True)
        native = getattr(function, method)(*map(_native, inputs), **_native(kwargs))
        name = function.__name__
        with NamedOperation(f"numpy.{name}" if method == "__call__" else f"numpy.{name}.{method}"):
            if method == "__call__":
                tensors = self._called(function, inputs, kwargs)
            elif method == "outer":
                tensors = self._outer(function, inputs)
            else:
                tensors = _gathered(name, method, self.tensors(inputs), self.tensors(kwargs))
            result = self.results(native, tensors)
        if where is not True and where is not np._NoValue:  # what numpy's own code leaves out
            result = self._only_where(where, result, out)
        return self.write(out, result)

    def _called(self, function: np.ufunc, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = ufuncs.torch_ufunc(function.__name__)
        if call is None or set(kwargs) - {"dtype", "casting", "order", "subok"}:
            raise CannotLift(f"{function} has no float64 evaluation")
        loop = _loop(function, inputs, kwargs.get("dtype"))
        given = [self._operand(x, torch_dtype(d)) for x, d in zip(inputs, loop, strict=True)]
        if len(given) == 2 and not isinstance(given[0], torch.Tensor) and function.__name__ in ufuncs.COMMUTING:
            given.reverse()
        # torch computes little in unsigned formats; results become the format that numpy's have.
        given = [g.to(torch.int64) if isinstance(g, torch.Tensor) and g.dtype in _UNSIGNED else g for g in given]
        numbers = function.__name__ in ufuncs.NUMBERS
        formats = [torch.int64 if torch_dtype(d) in _UNSIGNED else torch_dtype(d) for d in loop]
        plain = [
            g if isinstance(g, torch.Tensor) or (numbers and k == 1) else torch.tensor(g, dtype=formats[k])
            for k, g in enumerate(given)
        ]
        return call(*plain)

    def _outer(self, function: np.ufunc, inputs: Sequence[Any]) -> Any:
        x, y = inputs
        left = np.reshape(x, np.shape(x) + (1,) * np.ndim(y))
        found = function(left, y)
        return found.tensor

    def _at(self, function: np.ufunc, target: Any, where: Any, *values: Any) -> None:
        """Write into an array at positions that may repeat, each time by the function."""
        name = f"numpy.{function.__name__}.at"
        with NamedOperation(name):
            if not hasattr(target, "tracer") or len(values) != 1:
                raise CannotLift(f"{name}, so called, has no float64 evaluation")
            native = target.native.copy()
            function.at(native, _native(where), _native(values[0]))
            positions = [self.tensor(w) for w in (where if isinstance(where, tuple) else (where,))]
            given = self.tensor(values[0]).to(target.tensor.dtype)
            found = functions.gathered_at(function.__name__, target.tensor, positions, given)
            target[...] = self.results(native, found)

    def _operand(self, x: Any, dtype: torch.dtype) -> Any:
        if type(x) in (bool, int, float, complex):
            return x
        value = self.tensor(x)
        return value if value.dtype == dtype else value.to(dtype)

    def function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate an array function of numpy."""
        if writing.writes(function):
            with NamedOperation(f"numpy.{function.__name__}"):
                self.write(*writing.written(function, args, kwargs))
            return None
        if function is np.nan_to_num and not (args[1] if len(args) > 1 else kwargs.pop("copy", True)):
            return self.write(args[0], np.nan_to_num(args[0], True, *args[2:], **kwargs))
        out = kwargs.pop("out", None)
        kwargs = {k: v for k, v in kwargs.items() if v is not np._NoValue}  # what numpy's own code leaves out
        native = function(*map(_native, args), **_native(kwargs))
        if not _holds_arrays(native):
            return native  # a shape, a decision: what numpy says
        name = f"{function.__module__}.{function.__name__}"
        if function is np.empty_like:
            native[...] = 0  # its content is nobody's
        with NamedOperation(name):
            try:
                return self.write(out, self._translated(function, name, native, args, kwargs))
            except CannotLift:
                body = self.own_code(function)
                if body is None:
                    raise
                return self.write(out, self._by_own_code(name, native, body(*args, **kwargs)))

    def _translated(self, function: Any, name: str, native: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        call = functions.torch_function(function)
        if call is None:
            raise CannotLift(f"{name} has no float64 evaluation")
        try:
            found = call(*map(self.tensors, args), **self.tensors(kwargs))
        except (TypeError, NotImplementedError, RuntimeError, ValueError, IndexError, AttributeError) as error:
            words = (str(error).strip().splitlines() or [""])[0]
            raise CannotLift(f"{name}, so called, has no float64 evaluation: {words}") from error
        return self.results(native, found)

    def _by_own_code(self, name: str, native: Any, found: Any) -> Any:
        """What numpy's own code gave on followed arrays, held against what numpy gave."""
        if isinstance(native, (list, tuple)):
            if not isinstance(found, (list, tuple)) or len(found) != len(native):
                raise CannotLift(f"{name} returns something else when it is followed")
            parts = [self._by_own_code(name, n, f) for n, f in zip(native, found, strict=True)]
            return parts if isinstance(native, list) else tuple(parts)
        if not isinstance(native, (np.ndarray, np.generic)):
            return native
        if np.shape(_native(found)) != np.shape(native):
            raise CannotLift(f"{name} gives something else when it is followed")
        # The same code on arrays laid out otherwise in memory may add in another order: the bits are numpy's own.
        return self.results(native, found.tensor if hasattr(found, "tracer") else self.tensor(native).clone())

    def write(self, out: Any, result: Any) -> Any:
        """Write a result where numpy was told to put it."""
        target = out[0] if isinstance(out, tuple) and len(out) == 1 else out
        if target is None:
            return result
        if not hasattr(target, "tracer"):
            raise CannotLift("it writes into an array that is not followed")
        target[...] = result
        return target

    def _only_where(self, where: Any, result: Any, out: Any) -> Any:
        target = out[0] if isinstance(out, tuple) else out
        if target is None:
            raise CannotLift("a universal function with where= and without out= leaves values that nobody set")
        return np.where(where, result, target)

    # -- values ------------------------------------------------------------------------------------------------

    def tensor(self, x: Any) -> torch.Tensor:
        """Give an array as a tensor; a number that is no Python number is a literal of its own format."""
        if hasattr(x, "tracer"):
            value: torch.Tensor = x.tensor
            return value
        if is_array(x) and not x.ndim:
            return torch.tensor(x.item(), dtype=torch_dtype(x.dtype))
        if is_array(x):
            return self.constant(x)
        return self.constant(np.asarray(_native(x)))

    def tensors(self, tree: Any) -> Any:
        """Tensors in the place of arrays and torch's dtypes in the place of numpy's; the rest as it is."""
        if hasattr(tree, "tracer") or isinstance(tree, (np.ndarray, np.generic)):
            return self.tensor(tree)
        if isinstance(tree, np.dtype) or (isinstance(tree, type) and issubclass(tree, np.generic)):
            return torch_dtype(np.dtype(tree))
        if type(tree) in (list, tuple):
            return type(tree)(map(self.tensors, tree))
        return {k: self.tensors(v) for k, v in tree.items()} if isinstance(tree, dict) else tree

    def results(self, native: Any, tensors: Any) -> Any:
        """Follow results: numpy's values, and tensors that take over their bits."""
        if isinstance(native, (tuple, list)):
            if not isinstance(tensors, (tuple, list)) or len(tensors) != len(native):
                raise CannotLift(f"{OPERATION.get()} returns something else than its counterpart in torch")
            return type(native)(map(self.results, native, tensors)) if type(native) in (tuple, list) else tuple(
                map(self.results, native, tensors))  # fmt: skip
        if not isinstance(tensors, torch.Tensor) or tuple(tensors.shape) != np.shape(native):
            raise CannotLift(f"{OPERATION.get()} returns another shape than its counterpart in torch")
        dtype = self.dtype_of(native)
        tensor = tensors if tensors.dtype == dtype else tensors.to(dtype)
        return self._wrap(np.asarray(native), self._with_bits(native, tensor), self)

    def _with_bits(self, native: Any, tensor: torch.Tensor) -> torch.Tensor:
        with _disable_current_modes():
            wanted = tensor_of(np.array(native))
            same = _same(tensor, wanted)
            if not same:
                if not _means_the_same(tensor, wanted):
                    raise CannotLift(f"{OPERATION.get()} means something else in torch")
                tensor.copy_(wanted)
        mode: Any = _get_current_dispatch_mode()
        if hasattr(mode, "settle"):
            mode.settle(tensor, made_elsewhere=not same)
        return tensor


@functools.cache
def torch_dtype(dtype: Any) -> torch.dtype:
    """Give torch's name of a format of numpy.

    Raises
    ------
    CannotLift
        If torch has no such format.
    """
    try:
        with _disable_current_modes():
            empty = tensor_of(np.empty(0, dtype))
    except InputError as error:
        raise CannotLift(f"torch has no format {dtype}") from error
    if not isinstance(empty, torch.Tensor):
        raise CannotLift(f"torch has no format {dtype}")
    return empty.dtype


def _native(tree: Any) -> Any:
    if hasattr(tree, "tracer"):
        return tree.native
    if type(tree) in (list, tuple):
        return type(tree)(map(_native, tree))
    return {k: _native(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def _holds_arrays(tree: Any) -> bool:
    if isinstance(tree, (tuple, list)):
        return any(map(_holds_arrays, tree))
    return isinstance(tree, (np.ndarray, np.generic)) and not isinstance(tree, np.bool_)


def _loop(function: np.ufunc, inputs: Sequence[Any], dtype: Any) -> list[np.dtype[Any]]:
    """The formats in which a universal function takes these operands."""
    if dtype is not None:
        return [np.dtype(dtype)] * len(inputs)
    given = [type(x) if type(x) in (int, float, complex) else np.asarray(_native(x)).dtype for x in inputs]
    return list(function.resolve_dtypes((*given, *[None] * function.nout)))[: len(inputs)]


def _gathered(name: str, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A reduction or an accumulation, whose axis is the first unless it is said."""
    x, *rest = inputs
    if method == "reduceat" and isinstance(x, torch.Tensor) and rest and (name, "reduce") in _GATHERING:
        axis = rest[1] if len(rest) > 1 else kwargs.pop("axis", 0)
        return functions.by_stretches(_GATHERING[name, "reduce"], x, [int(i) for i in rest[0]], axis)
    axis = rest[0] if rest else kwargs.pop("axis", 0)
    call = _GATHERING.get((name, method))
    if call is None or len(rest) > 1 or not isinstance(x, torch.Tensor):
        raise CannotLift(f"numpy.{name}.{method} has no float64 evaluation")
    return call(x, axis=axis, **kwargs)


_GATHERING: dict[tuple[str, str], Callable[..., Any]] = {
    ("add", "reduce"): functions.sum_,
    ("multiply", "reduce"): functions.named("prod"),
    ("maximum", "reduce"): functions.max_,
    ("minimum", "reduce"): functions.min_,
    ("logical_and", "reduce"): functions.named("all"),
    ("logical_or", "reduce"): functions.named("any"),
    ("logaddexp", "reduce"): functions.logsumexp,
    ("add", "accumulate"): lambda x, axis: torch.cumsum(x, axis),
    ("multiply", "accumulate"): lambda x, axis: torch.cumprod(x, axis),
    ("maximum", "accumulate"): lambda x, axis: torch.cummax(x, axis).values,
    ("minimum", "accumulate"): lambda x, axis: torch.cummin(x, axis).values,
    ("logaddexp", "accumulate"): lambda x, axis: torch.logcumsumexp(x, axis),
}


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype.itemsize == 0 or one.is_complex():
        return bool(torch.equal(torch.view_as_real(one.resolve_conj()), torch.view_as_real(other)))
    carrier = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.dtype.itemsize]
    return bool(torch.equal(one.contiguous().view(carrier), other.contiguous().view(carrier)))


def _means_the_same(tensor: torch.Tensor, wanted: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return bool(torch.equal(tensor, wanted))
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    one, other = (t.to(wide) for t in (tensor, wanted))
    both = one.isfinite() & other.isfinite()
    if not bool(both.any()):
        return True
    gap, size = (one - other)[both].abs().max(), other[both].abs().max()
    return bool(gap <= _MEANING * size) or bool(gap <= 64 * torch.finfo(tensor.dtype).eps * max(1.0, float(size)))


class NamedOperation:
    """Names the operation of numpy or JAX in progress; the outermost one stays."""

    def __init__(self, name: str):
        self.name = name
        self._token: Any = None

    def __enter__(self) -> None:
        if not OPERATION.get():
            self._token = OPERATION.set(self.name)

    def __exit__(self, *_: Any) -> None:
        if self._token is not None:
            OPERATION.reset(self._token)
