"""What a user hands to an exact reduction, brought to contiguous rows; every refusal is made here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from driftscope.accumulation.exact.formats import STORED, StoredFormat
from driftscope.errors import InputError

_ACCEPTED = "float64, float32, float16 or bfloat16"

#: Other subclasses need not have memory of their own: a FakeTensor has none.
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

Dims = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Along:
    """Which axes to reduce, in torch's words or in numpy's."""

    dim: Dims = None
    axis: Dims = None
    keepdim: bool = False
    keepdims: bool = False

    @property
    def given(self) -> Dims:
        """The one of ``dim`` and ``axis`` that was given."""
        if self.dim is not None and self.axis is not None:
            raise InputError("dim and axis are two names of one argument; give one of them.")
        return self.axis if self.dim is None else self.dim

    @property
    def keep(self) -> bool:
        """Whether reduced axes stay, with size 1."""
        return self.keepdim or self.keepdims


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor as a matrix whose rows are reduced.

    Parameters
    ----------
    data : Tensor, shape ``(R, n)``, contiguous
    shape : tuple of int
        Of the result.
    """

    data: torch.Tensor
    shape: tuple[int, ...]


def tensor_of(x: Any, what: str) -> torch.Tensor:
    """Return a torch tensor of an accepted dtype that shares memory where it can.

    Parameters
    ----------
    x : Tensor or ndarray
    what : str
        The function that was called, for the refusal.

    Raises
    ------
    InputError
        For anything else, with what to do about it.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise InputError(f"{what} would read what is masked: pass x.compressed(), or x.filled(0).")
    if isinstance(x, np.ndarray | np.floating):
        return _tensor_of_array(np.asarray(x), what)
    if not isinstance(x, torch.Tensor):
        raise InputError(
            f"{what} takes a torch tensor or a numpy array, not {type(x).__name__}: "
            "pass torch.tensor(x) or numpy.asarray(x)."
        )
    if x.dtype not in STORED:
        raise InputError(_refused_dtype(what, str(x.dtype).removeprefix("torch."), "x.to(torch.float64)"))
    if x.layout is not torch.strided or x.device.type == "meta":
        kind = "meta" if x.device.type == "meta" else str(x.layout).removeprefix("torch.")
        raise InputError(f"{what} needs the values of a dense tensor, not a {kind} tensor: pass x.to_dense().")
    if type(x) not in _PLAIN or torch._C._functorch.is_functorch_wrapped_tensor(x):
        kind = type(x).__name__ if type(x) not in _PLAIN else "one inside a torch.func transform"
        raise InputError(f"{what} reads the memory of a plain tensor, not of {kind}: call it on what that wraps.")
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError(f"{what} has no derivative: call it under torch.no_grad(), or pass x.detach().")
    return x.resolve_neg()


def pair_of(a: Any, b: Any, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two operands as tensors; both must be of one kind, dtype and device."""
    x, y = tensor_of(a, what), tensor_of(b, what)
    if isinstance(a, torch.Tensor) is not isinstance(b, torch.Tensor) or x.dtype != y.dtype or x.device != y.device:
        raise InputError(
            f"{what} takes two operands of one kind, dtype and device, not {_words(a, x)} and {_words(b, y)}: "
            "convert one of them."
        )
    return x, y


def stored_as(dtype: Any, like: torch.Tensor, what: str) -> StoredFormat:
    """Return the format of the result.

    Parameters
    ----------
    dtype : torch.dtype, anything numpy takes for a dtype, or None
        None is the dtype of the input.
    """
    if dtype is None:
        return STORED[like.dtype]
    if isinstance(dtype, torch.dtype):
        name = str(dtype).removeprefix("torch.")
    else:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
    for stored in STORED.values():
        if stored.name == name:
            return stored
    raise InputError(f"{what} rounds to {_ACCEPTED}, not to {name}: leave dtype out for the input's own.")


def axes_of(dims: Dims, ndim: int, what: str) -> tuple[int, ...]:
    """Return the reduced axes as sorted non-negative integers; None is all of them."""
    if dims is None:
        return tuple(range(ndim))
    given = (dims,) if isinstance(dims, int | np.integer) else tuple(dims)
    if not given:
        return tuple(range(ndim))
    limit = max(ndim, 1)
    for axis in given:
        if not isinstance(axis, int | np.integer) or isinstance(axis, bool) or not -limit <= axis < limit:
            raise InputError(
                f"{what} has no axis {axis!r} to reduce: the input has {ndim} axes, so {-limit} to {limit - 1} exist."
            )
    axes = tuple(sorted(int(axis) % limit for axis in given))
    if len(set(axes)) != len(axes):
        raise InputError(f"{what} was given an axis twice in {given}: name each axis once.")
    return axes if ndim else ()


def rows_of(x: torch.Tensor, axes: tuple[int, ...], keep: bool, *, paired: bool = False) -> Rows:
    """Bring the reduced axes of a tensor last and flatten both groups.

    Elements of a row come in any order, unless they are ``paired`` with those of another tensor.
    """
    shape = tuple(x.shape)
    if keep:
        result = tuple(1 if i in axes else size for i, size in enumerate(shape))
    else:
        result = tuple(size for i, size in enumerate(shape) if i not in axes)
    if len(axes) == x.ndim and not paired:
        # A transposed tensor is read as it lies in memory, without a copy.
        strides = x.stride()
        moved = x if x.is_contiguous() else x.permute(sorted(range(x.ndim), key=lambda i: -strides[i]))
    elif axes == tuple(range(x.ndim - len(axes), x.ndim)):
        moved = x
    else:
        moved = x.permute([i for i in range(x.ndim) if i not in axes] + list(axes))
    n = math.prod(shape[i] for i in axes)
    rows = math.prod(size for i, size in enumerate(shape) if i not in axes)
    return Rows(moved.reshape(rows, n).contiguous(), result)


def like_input(result: torch.Tensor, x: Any) -> Any:
    """Return a result as what the input was: a tensor on its device, an array, a numpy scalar."""
    if isinstance(x, torch.Tensor):
        return result if result.device == x.device else result.to(x.device)
    if result.dtype is torch.bfloat16:
        import ml_dtypes

        return result.view(torch.int16).numpy().view(ml_dtypes.bfloat16)[()]
    return result.numpy()[()]


def _tensor_of_array(x: np.ndarray[Any, Any], what: str) -> torch.Tensor:
    if x.dtype.name not in {s.name for s in STORED.values()}:
        raise InputError(_refused_dtype(what, x.dtype.name, "x.astype(numpy.float64)"))
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    # torch takes neither negative or odd strides nor memory it must not write to.
    if any(stride < 0 or stride % x.itemsize for stride in x.strides) or not (x.flags.writeable and x.flags.aligned):
        x = x.copy()
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def _words(given: Any, x: torch.Tensor) -> str:
    kind = "a tensor" if isinstance(given, torch.Tensor) else "an array"
    return f"{kind} of {str(x.dtype).removeprefix('torch.')} on {x.device}"


def _refused_dtype(what: str, name: str, conversion: str) -> str:
    if "complex" in name:
        return f"{what} takes {_ACCEPTED}, not {name}: reduce x.real and x.imag one after the other."
    return f"{what} takes {_ACCEPTED}, not {name}: convert it first, as in {conversion}."
