"""numpy's array functions as functions of torch tensors: few of our own, the rest torch's own translation of numpy.

``torch._numpy`` is what ``torch.compile`` puts in the place of numpy. It is private: it is named in this file alone,
and was seen in torch 2.8 to 2.13. Every result is held against numpy's own, so a translation that means something
else is found out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from driftscope.errors import CannotLift

Function = Callable[..., Any]


def _fft(name: str) -> Function:
    def call(a: torch.Tensor, n: Any = None, axis: Any = -1, norm: Any = None) -> torch.Tensor:
        found: torch.Tensor = getattr(torch.fft, name)(a, n, dim=axis, norm=norm)
        return found

    return call


def _fft_many(name: str, axes: Any = None) -> Function:
    def call(a: torch.Tensor, s: Any = None, axes: Any = axes, norm: Any = None) -> torch.Tensor:
        found: torch.Tensor = getattr(torch.fft, name)(a, s, dim=axes, norm=norm)
        return found

    return call


def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> torch.Tensor:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if isinstance(low, torch.Tensor) != isinstance(high, torch.Tensor):
        low, high = (None if v is None else torch.as_tensor(v, dtype=a.dtype) for v in (low, high))
    return torch.clamp(a, low, high)


def _axes(a: torch.Tensor, axis: Any) -> list[int]:
    return list(range(a.dim())) if axis is None else [axis] if isinstance(axis, int) else list(axis)


def _mean(a: torch.Tensor, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> torch.Tensor:
    given = a if a.is_floating_point() or a.is_complex() else a.double()
    return torch.mean(given, _axes(a, axis), keepdims, dtype=dtype)


def sum_(a: torch.Tensor, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> torch.Tensor:
    """Add along axes; all of them unless it is said."""
    return torch.sum(a, _axes(a, axis), keepdims, dtype=dtype)


def _var(
    a: torch.Tensor, axis: Any = None, dtype: Any = None, *, ddof: float = 0, correction: Any = None,
    keepdims: bool = False,
) -> torch.Tensor:  # fmt: skip
    given = a.to(dtype) if dtype is not None else a if a.is_floating_point() else a.double()
    return torch.var(given, _axes(a, axis), correction=ddof if correction is None else correction, keepdim=keepdims)


def _std(a: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.sqrt(_var(a, *args, **kwargs))


def max_(a: torch.Tensor, axis: Any = None, *, keepdims: bool = False) -> torch.Tensor:
    """Find the largest along axes."""
    return torch.amax(a, _axes(a, axis), keepdims)


def min_(a: torch.Tensor, axis: Any = None, *, keepdims: bool = False) -> torch.Tensor:
    """Find the smallest along axes."""
    return torch.amin(a, _axes(a, axis), keepdims)


def logsumexp(a: torch.Tensor, axis: Any = None, *, keepdims: bool = False) -> torch.Tensor:
    """Add in the domain of logarithms, as ``numpy.logaddexp.reduce`` does one after the other."""
    return torch.logsumexp(a, _axes(a, axis), keepdims)


def _where(condition: Any, x: Any, y: Any) -> torch.Tensor:
    return torch.where(condition, x, y)


def _pad(array: torch.Tensor, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> torch.Tensor:
    widths = np.broadcast_to(np.asarray(pad_width), (array.dim(), 2))
    if mode == "constant":
        if np.size(constant_values) != 1:
            raise CannotLift("numpy.pad with more than one value is not evaluated in float64")
        flat = [int(w) for pair in widths[::-1] for w in pair]
        return functional.pad(array, flat, value=float(np.ravel(constant_values)[0]))
    for dim, (before, after) in enumerate(widths):
        # The positions that numpy itself reads, whatever the mode.
        if mode not in ("edge", "reflect", "symmetric", "wrap"):
            raise CannotLift(f"numpy.pad in mode {mode!r} is not evaluated in float64")
        index = np.pad(np.arange(array.shape[dim]), (int(before), int(after)), mode=mode)  # type: ignore[call-overload]
        array = array.index_select(dim, torch.from_numpy(index))
    return array


def _interp(x: torch.Tensor, xp: torch.Tensor, fp: torch.Tensor) -> torch.Tensor:
    right = torch.searchsorted(xp.contiguous(), x.contiguous(), right=True).clamp(1, xp.shape[0] - 1)
    x0, y0 = xp[right - 1], fp[right - 1]
    inside = y0 + (fp[right] - y0) / (xp[right] - x0) * (x - x0)
    return torch.where(x <= xp[0], fp[0], torch.where(x >= xp[-1], fp[-1], inside))


def _sliding(x: torch.Tensor, window_shape: Any, axis: Any = None) -> torch.Tensor:
    sizes = (window_shape,) if isinstance(window_shape, int) else tuple(window_shape)
    axes = range(x.dim()) if axis is None else (axis,) if isinstance(axis, int) else axis
    dims = [a % x.dim() for a in axes]
    for dim, size in zip(dims, sizes, strict=True):
        x = x.unfold(dim, size, 1)
    return x


def _softmax(x: torch.Tensor, axis: Any = None) -> torch.Tensor:
    return torch.softmax(x.flatten(), 0).reshape(x.shape) if axis is None else torch.softmax(x, axis)


def _nan_mean(a: torch.Tensor, axis: Any = None, keepdims: bool = False) -> torch.Tensor:
    return torch.nanmean(a, axis, keepdim=keepdims)


def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> torch.Tensor:
    like = next(c for c in choicelist if isinstance(c, torch.Tensor))
    found = torch.as_tensor(default, dtype=like.dtype)
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        found = torch.where(condition, choice, found)
    return found


def _median(a: torch.Tensor, axis: int | None = None, *, keepdims: bool = False) -> torch.Tensor:
    whole = axis is None
    rows = a.flatten() if axis is None else a.movedim(axis, -1)
    count = rows.shape[-1]
    middle = torch.sort(rows, -1).values[..., (count - 1) // 2 : count // 2 + 1].mean(-1)
    if not keepdims:
        return middle
    return middle.reshape([1] * a.dim()) if whole else middle.unsqueeze(axis)  # type: ignore[arg-type]


def _reshape(a: torch.Tensor, shape: Any, order: str) -> torch.Tensor:
    if order not in ("C", "A"):
        raise CannotLift(f"numpy.reshape in order {order!r} has no float64 evaluation")
    return a.reshape(shape)


def _trapezoid(y: torch.Tensor, x: Any = None, dx: float = 1.0, axis: int = -1) -> torch.Tensor:
    steps = dx if x is None else x.diff(dim=axis if x.dim() > 1 else 0)
    pairs = y.narrow(axis, 1, y.shape[axis] - 1) + y.narrow(axis, 0, y.shape[axis] - 1)
    return (steps * pairs / 2.0).sum(axis)


_OWN: dict[str, Function] = {
    "numpy.mean": _mean,
    "numpy.sum": sum_,
    "numpy.var": _var,
    "numpy.std": _std,
    "numpy.max": max_,
    "numpy.amax": max_,
    "numpy.min": min_,
    "numpy.amin": min_,
    "numpy.empty_like": lambda a, dtype=None, **_: torch.zeros_like(a, dtype=dtype),
    "numpy.median": _median,
    "numpy.clip": _clip,
    "numpy.where": _where,
    "numpy.pad": _pad,
    "numpy.interp": _interp,
    "numpy.select": _select,
    "numpy.trapezoid": _trapezoid,
    "numpy.nanmean": _nan_mean,
    "numpy.astype": lambda x, dtype, /, *, copy=True: x.to(dtype),
    "numpy.matrix_transpose": lambda x: x.mT,
    "numpy.linalg.matrix_transpose": lambda x: x.mT,
    "numpy.linalg.matmul": torch.matmul,
    "numpy.linalg.vector_norm": lambda x, axis=None, keepdims=False, **ord: torch.linalg.vector_norm(
        x, dim=axis, keepdim=keepdims, **ord
    ),
    "numpy.reshape": lambda a, shape, order="C", **kw: _reshape(a, shape, order),
    "numpy.transpose": lambda a, axes=None: a.permute(*(range(a.dim())[::-1] if axes is None else axes)),
    "numpy.cumulative_sum": lambda x, axis=None: torch.cumsum(x, 0 if axis is None else axis),
    "numpy.lib.stride_tricks.sliding_window_view": _sliding,
    **{f"numpy.fft.{name}": _fft(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"numpy.fft.{name}": _fft_many(name) for name in ("fftn", "ifftn", "rfftn", "irfftn")},
    **{f"numpy.fft.{name}": _fft_many(name, (-2, -1)) for name in ("fft2", "ifft2", "rfft2", "irfft2")},
}


def torch_function(function: Any) -> Function | None:
    """Find what stands for an array function of numpy on torch tensors; None where nothing does."""
    name = f"{function.__module__}.{function.__name__}"
    return _OWN.get(name) or _translated(name)


def named(name: str) -> Function:
    """Give numpy's function of that name on tensors, found when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        found = _translated(f"numpy.{name}")
        if found is None:
            raise CannotLift(f"numpy.{name} has no float64 evaluation")
        return found(*args, **kwargs)

    return call


@functools.cache
def _translated(name: str) -> Function | None:
    import torch._numpy as translation

    module, _, function = name.rpartition(".")
    home: Any = {"numpy": translation, "numpy.linalg": translation.linalg}.get(module)
    call = getattr(home, function, None)
    if call is None:
        return None

    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        return _tensors(call(*map(_arrays, args), **{k: _arrays(v) for k, v in kwargs.items()}))

    return on_tensors


def _arrays(tree: Any) -> Any:
    """torch's numpy arrays in the place of tensors, its dtypes in the place of ours."""
    import torch._numpy as translation

    if isinstance(tree, torch.Tensor):
        return translation.ndarray(tree)  # type: ignore[attr-defined, no-untyped-call]
    if isinstance(tree, torch.dtype):
        return str(tree).removeprefix("torch.")
    return type(tree)(map(_arrays, tree)) if type(tree) in (list, tuple) else tree


def _tensors(tree: Any) -> Any:
    if hasattr(tree, "tensor"):
        return tree.tensor
    return [_tensors(t) for t in tree] if isinstance(tree, (list, tuple)) else tree


def get_item(x: torch.Tensor, key: Any) -> torch.Tensor:
    """Index a tensor by numpy's rules; integer and boolean arrays in ``key`` are tensors."""
    x, key = _forward(x, key)
    found: torch.Tensor = _arrays(x)[_arrays(key)].tensor
    return found


def set_item(x: torch.Tensor, key: Any, value: Any) -> None:
    """Write into a tensor by numpy's rules."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(p, slice) and (p.step or 1) < 0 for p in parts):
        raise CannotLift("writing through a slice that runs backwards is not followed")
    _arrays(x)[_arrays(key)] = _arrays(value)


def _forward(x: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    """Turn axes that a slice reads backwards, which torch has no view for."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if not any(isinstance(p, slice) and (p.step or 1) < 0 for p in parts):
        return x, key
    if Ellipsis in [p for p in parts if not isinstance(p, torch.Tensor)]:
        at = next(k for k, p in enumerate(parts) if p is Ellipsis)
        taken = sum(p is not None for p in parts) - 1
        parts[at : at + 1] = [slice(None)] * (x.dim() - taken)
    dim = 0
    for k, part in enumerate(parts):
        if part is None:
            continue
        if isinstance(part, slice) and (part.step or 1) < 0:
            x = x.index_select(dim, torch.tensor(list(range(*part.indices(x.shape[dim])))))
            parts[k] = slice(None)
        dim += 1
    return x, tuple(parts)
