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


def _mean(
    a: torch.Tensor, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None
) -> torch.Tensor:
    given = a if a.is_floating_point() or a.is_complex() else a.double()
    if where is None:
        return torch.mean(given, _axes(a, axis), keepdims, dtype=dtype)
    return sum_(given, axis, dtype, keepdims=keepdims, where=where) / _counted(a, axis, keepdims, where)


def _counted(a: torch.Tensor, axis: Any, keepdims: bool, where: Any) -> torch.Tensor:
    return torch.as_tensor(where).expand(a.shape).sum(_axes(a, axis), keepdims)


def sum_(
    a: torch.Tensor, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> torch.Tensor:  # fmt: skip
    """Add along axes; all of them unless it is said."""
    kept = a if where is None else torch.where(torch.as_tensor(where), a, 0)
    found = torch.sum(kept, _axes(a, axis), keepdims, dtype=dtype)
    return found if initial is None else found + initial


def _var(
    a: torch.Tensor, axis: Any = None, dtype: Any = None, *, ddof: float = 0, correction: Any = None,
    keepdims: bool = False, where: Any = None,
) -> torch.Tensor:  # fmt: skip
    given = a.to(dtype) if dtype is not None else a if a.is_floating_point() else a.double()
    free = ddof if correction is None else correction
    if where is None:
        return torch.var(given, _axes(a, axis), correction=free, keepdim=keepdims)
    squares = (given - _mean(given, axis, keepdims=True, where=where)).square()
    total = sum_(squares, axis, keepdims=keepdims, where=where)
    return total / (_counted(a, axis, keepdims, where) - free).clamp(min=0)


def _std(a: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.sqrt(_var(a, *args, **kwargs))


def max_(a: torch.Tensor, axis: Any = None, *, keepdims: bool = False, initial: Any = None) -> torch.Tensor:
    """Find the largest along axes."""
    found = torch.amax(a, _axes(a, axis), keepdims)
    return found if initial is None else torch.maximum(found, torch.as_tensor(initial, dtype=a.dtype))


def min_(a: torch.Tensor, axis: Any = None, *, keepdims: bool = False, initial: Any = None) -> torch.Tensor:
    """Find the smallest along axes."""
    found = torch.amin(a, _axes(a, axis), keepdims)
    return found if initial is None else torch.minimum(found, torch.as_tensor(initial, dtype=a.dtype))


def logsumexp(a: torch.Tensor, axis: Any = None, *, keepdims: bool = False) -> torch.Tensor:
    """Add in the domain of logarithms, as ``numpy.logaddexp.reduce`` does one after the other."""
    return torch.logsumexp(a, _axes(a, axis), keepdims)


def by_stretches(reduce: Function, x: torch.Tensor, starts: Sequence[int], axis: int) -> torch.Tensor:
    """Reduce an axis from each start to the next, as ``numpy.add.reduceat``."""
    ends = [*starts[1:], x.shape[axis]]
    parts = [x.narrow(axis, start, max(end - start, 1)) for start, end in zip(starts, ends, strict=True)]
    ones = [part.shape[axis] == 1 for part in parts]
    return torch.stack(
        [p.select(axis, 0) if one else reduce(p, axis=axis) for p, one in zip(parts, ones, strict=True)], axis
    )


_AT = {"maximum": "amax", "minimum": "amin", "multiply": "prod"}


def gathered_at(name: str, x: torch.Tensor, where: Sequence[torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Give ``x`` with values gathered at integer positions of its first axes, as ``numpy.add.at`` writes them.

    Raises
    ------
    CannotLift
        If the function or the positions are of another kind.
    """
    if any(w.dtype.is_floating_point or w.dtype == torch.bool for w in where):
        raise CannotLift(f"numpy.{name}.at with positions that are no integers has no float64 evaluation")
    if name in ("add", "subtract"):
        return x.index_put(tuple(w.long() for w in where), values if name == "add" else -values, accumulate=True)
    if name not in _AT:
        raise CannotLift(f"numpy.{name}.at has no float64 evaluation")
    first = x.shape[: len(where)]
    flat = torch.zeros((), dtype=torch.int64)
    for size, w in zip(first, where, strict=True):
        flat = flat * size + w.long() % size
    rows = x.reshape(-1, *x.shape[len(where) :])
    given = values.expand(*flat.shape, *rows.shape[1:]).reshape(-1, *rows.shape[1:])
    return rows.index_reduce(0, flat.reshape(-1), given, _AT[name]).reshape(x.shape)


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


def _interp(x: torch.Tensor, xp: Any, fp: Any, left: Any = None, right: Any = None) -> torch.Tensor:
    x, xp, fp = (torch.as_tensor(v, dtype=torch.float64) for v in (x, xp, fp))  # numpy computes it in float64
    low, high = (fp[0] if left is None else torch.as_tensor(left, dtype=fp.dtype)), fp[-1]
    high = high if right is None else torch.as_tensor(right, dtype=fp.dtype)
    after = torch.searchsorted(xp.contiguous(), x.contiguous(), right=True).clamp(1, xp.shape[0] - 1)
    x0, y0 = xp[after - 1], fp[after - 1]
    inside = y0 + (fp[after] - y0) / (xp[after] - x0) * (x - x0)
    inside = torch.where(x == xp[0], fp[0], torch.where(x == xp[-1], fp[-1], inside))
    return torch.where(x < xp[0], low, torch.where(x > xp[-1], high, inside))


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


def _turned(a: torch.Tensor) -> torch.Tensor:
    return a.permute(*range(a.dim())[::-1])


def _reshape(a: torch.Tensor, shape: Any, order: str) -> torch.Tensor:
    if order in ("C", "A"):
        return a.reshape(shape)
    if order != "F":
        raise CannotLift(f"numpy.reshape in order {order!r} has no float64 evaluation")
    return _turned(_turned(a).reshape((shape,) if isinstance(shape, int) else tuple(shape)[::-1]))


def _quantile(name: str) -> Function:
    def call(a: torch.Tensor, q: Any, axis: Any = None, **kwargs: Any) -> Any:
        if axis is None and not kwargs.get("keepdims"):
            a, axis = a.flatten(), 0
        return named(name)(a, q, axis=axis, **kwargs)

    return call


def _convolve(a: torch.Tensor, v: torch.Tensor, mode: str = "full") -> torch.Tensor:
    if len(v) > len(a):
        a, v = v, a
    full: torch.Tensor = named("convolve")(a, v)
    cut = {"full": 0, "same": (len(v) - 1) // 2, "valid": len(v) - 1}[mode]
    return full.narrow(0, cut, {"full": len(full), "same": len(a), "valid": len(a) - len(v) + 1}[mode])


def _correlate(a: torch.Tensor, v: torch.Tensor, mode: str = "valid") -> torch.Tensor:
    if len(v) > len(a):
        return _correlate(v, a, mode).flip(0)
    return _convolve(a, v.flip(0), mode)


def _running(name: str) -> Function:
    def call(a: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return named(name)(a.long() if a.dtype is torch.bool else a, *args, **kwargs)

    return call


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
    "numpy.empty_like": lambda a, dtype=None, *, shape=None, **_: torch.zeros(
        a.shape if shape is None else shape, dtype=dtype or a.dtype
    ),
    "numpy.median": _median,
    "numpy.clip": _clip,
    "numpy.where": torch.where,
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
    "numpy.ravel": lambda a, order="C": _reshape(a, -1, "C" if order == "K" and a.is_contiguous() else order),
    "numpy.convolve": _convolve,
    "numpy.correlate": _correlate,
    "numpy.cumsum": _running("cumsum"),
    "numpy.cumprod": _running("cumprod"),
    "numpy.polymul": _convolve,
    "numpy.quantile": _quantile("quantile"),
    "numpy.percentile": _quantile("percentile"),
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
