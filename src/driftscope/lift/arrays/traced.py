"""The array that a followed numpy function sees in the place of its inputs.

It is no ``numpy.ndarray``: what would quietly take numpy's value out of it raises instead, so that nothing computed
from an input passes for a constant. ``isinstance`` says that it is one, because functions ask.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from driftscope.errors import CannotLift
from driftscope.lift.arrays.functions import get_item, set_item
from driftscope.lift.arrays.tracing import Tracer, torch_dtype

# Methods of arrays that are functions of numpy.
_METHODS = frozenset({
    "all", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum", "diagonal", "dot", "max", "mean",
    "min", "nonzero", "prod", "put", "ravel", "repeat", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes",
    "take", "trace", "var",
})  # fmt: skip


class TracedArray(NDArrayOperatorsMixin):
    """One array of a followed call.

    Parameters
    ----------
    native : ndarray
        What numpy has there.
    tensor : Tensor
        The same bits, made by recorded operations.
    tracer : Tracer
    """

    __slots__ = ("native", "tensor", "tracer")
    __array_priority__ = 1e6

    def __init__(self, native: np.ndarray[Any, Any], tensor: torch.Tensor, tracer: Tracer):
        self.native = native
        self.tensor = tensor
        self.tracer = tracer

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return np.ndarray

    # -- dispatch ----------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return self.tracer.ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self.tracer.function(func, args, dict(kwargs))

    def __array__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise CannotLift("it takes the values of an array that depends on the inputs out of numpy's dispatch")

    # -- facts -------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.native.shape)

    @property
    def dtype(self) -> Any:
        return self.native.dtype

    @property
    def ndim(self) -> int:
        return self.native.ndim

    @property
    def size(self) -> int:
        return self.native.size

    @property
    def itemsize(self) -> int:
        return self.native.itemsize

    @property
    def nbytes(self) -> int:
        return self.native.nbytes

    @property
    def flags(self) -> Any:
        return self.native.flags

    def __len__(self) -> int:
        return len(self.native)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"<followed {self.native!r}>"

    __hash__ = None  # type: ignore[assignment]

    # -- numbers that decide -----------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.native)

    def __index__(self) -> int:
        return operator.index(self.native)

    def __int__(self) -> int:
        return int(self.native)

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def item(self, *args: Any) -> Any:
        """Give a Python number where it is an integer or a boolean: those decide, floats would be lost."""
        if self.dtype.kind in "fcV":
            raise CannotLift("it turns a float that depends on the inputs into a Python number")
        return self.native.item(*args)

    def tolist(self) -> Any:
        """Give Python numbers, as :meth:`item`."""
        if self.dtype.kind in "fcV":
            raise CannotLift("it turns floats that depend on the inputs into Python numbers")
        return self.native.tolist()

    # -- parts -------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        with_tensors = _key(key, self.tracer)
        return self.tracer.results(self.native[_plain(key)], get_item(self.tensor, with_tensors))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.native[_plain(key)] = value.native if hasattr(value, "tracer") else value
        given = self.tracer.tensor(value) if not isinstance(value, (bool, int, float)) else value
        if isinstance(given, torch.Tensor):
            given = given.to(self.tensor.dtype)
        set_item(self.tensor, _key(key, self.tracer), given)

    @property
    def T(self) -> Any:  # noqa: N802
        return np.transpose(self)

    @property
    def mT(self) -> Any:  # noqa: N802
        return np.swapaxes(self, -1, -2)

    @property
    def real(self) -> Any:
        return np.real(self) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Any:
        return np.imag(self)

    # -- methods -----------------------------------------------------------------------------------------------

    def astype(self, dtype: Any, *_args: Any, copy: bool = True, **_kwargs: Any) -> Any:
        """Round to another format."""
        wanted = np.dtype(dtype)
        if wanted == self.dtype and not copy:
            return self
        return self.tracer.results(self.native.astype(wanted), self.tensor.to(torch_dtype(wanted), copy=True))

    def view(self, dtype: Any = None, *_args: Any) -> Any:
        """Read the bits as another format of as many bytes."""
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        if wanted.itemsize != self.itemsize or _args:
            raise CannotLift("numpy.ndarray.view as another type has no float64 evaluation")
        seen = self.tensor if wanted == self.dtype else self.tensor.view(torch_dtype(wanted))
        return self.tracer.results(self.native.view(wanted), seen)

    def __array_prepare__(self, array: Any, *_args: Any) -> Any:  # asked for before numpy 2
        return array

    def __array_wrap__(self, array: Any, *_args: Any) -> Any:
        return array

    def clip(self, min: Any = None, max: Any = None, **kwargs: Any) -> Any:
        """Limit values, from one end or both."""
        return np.clip(self, min, max, **kwargs)

    def copy(self, *_args: Any, **_kwargs: Any) -> Any:
        """Copy both values."""
        return self.tracer.results(self.native.copy(), self.tensor.clone())

    __copy__ = copy

    def __deepcopy__(self, _memo: Any) -> Any:
        return self.copy()

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Give another shape, in one argument or several."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, **kwargs)

    def transpose(self, *axes: Any) -> Any:
        """Permute axes, in one argument or several."""
        wanted = axes[0] if len(axes) == 1 else axes or None
        return np.transpose(self, wanted)

    def flatten(self, *_args: Any) -> Any:
        """Give a flat copy."""
        return np.ravel(self).copy()

    def conj(self) -> Any:
        """Give the complex conjugate."""
        return np.conjugate(self)

    conjugate = conj

    def fill(self, value: Any) -> None:
        """Write one value everywhere."""
        self[...] = value

    def sort(self, axis: int = -1, **kind: Any) -> None:
        """Sort in place."""
        self[...] = np.sort(self, axis, **kind)

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            function = getattr(np, name)
            return lambda *args, **kwargs: function(self, *args, **kwargs)
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        raise CannotLift(f"numpy.ndarray.{name} has no float64 evaluation")


def _key(key: Any, tracer: Tracer) -> Any:
    if isinstance(key, tuple):
        return tuple(_key(k, tracer) for k in key)
    if hasattr(key, "tracer") or isinstance(key, np.ndarray):
        return tracer.tensor(key)
    if isinstance(key, np.generic):
        return key.item()
    if isinstance(key, slice):
        ends = (key.start, key.stop, key.step)
        return slice(*(None if end is None else operator.index(end) for end in ends))
    return key


def _plain(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_plain, key))
    return key.native if hasattr(key, "tracer") else key
