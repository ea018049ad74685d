"""numpy's functions that write into their first argument and return nothing, as what that holds afterwards.

Each is written with functions that are followed; masks and places that depend on the inputs decide again in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from driftscope.errors import CannotLift


def _copied(dst: Any, src: Any, *way: Any, where: Any = True, **_casting: Any) -> Any:
    where = way[1] if len(way) > 1 else where
    return src if where is True else np.where(where, src, dst)


def _on_diagonal(a: Any, val: Any, wrap: bool = False) -> Any:
    moved = np.zeros(a.shape, np.int64)
    np.fill_diagonal(moved, 1 + np.arange(np.size(val)).reshape(np.shape(val)), wrap)
    return np.where(moved > 0, _flat(val, a)[np.where(moved > 0, moved - 1, 0)], a)


def _placed(arr: Any, mask: Any, vals: Any) -> Any:
    given = _flat(vals, arr)
    if np.size(given) == 1:
        return np.where(mask, given[0], arr)
    return np.where(mask, given[np.reshape(np.cumsum(mask) - 1, arr.shape) % np.size(given)], arr)


def _masked(a: Any, mask: Any, values: Any) -> Any:
    given = _flat(values, a)
    return np.where(mask, given[np.arange(a.size).reshape(a.shape) % np.size(given)], a)


def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> Any:
    places = ind if hasattr(ind, "tracer") else np.asarray(ind)
    if mode == "clip":
        places = np.clip(places, 0, a.size - 1)
    places = np.ravel(places % a.size if mode == "wrap" else places)
    given, flat = _flat(v, a), a.flatten()
    flat[places] = given[np.arange(np.size(places)) % np.size(given)]
    return flat.reshape(a.shape)


def _put_along(arr: Any, indices: Any, values: Any, axis: int | None) -> Any:
    if axis is None:
        return _put(arr, indices, values)
    found, axis = arr.copy(), axis % arr.ndim
    places: list[Any] = list(np.ogrid[tuple(map(slice, arr.shape))])
    places[axis] = indices
    found[tuple(places)] = values
    return found


_WRITERS: dict[Any, Callable[..., Any]] = {
    np.copyto: _copied, np.fill_diagonal: _on_diagonal, np.place: _placed, np.put: _put,
    np.put_along_axis: _put_along, np.putmask: _masked,
}  # fmt: skip


def writes(function: Any) -> bool:
    """Whether it returns nothing, and what it does is what its first argument holds afterwards."""
    return function in _WRITERS


def written(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Give what such a function writes into, and what that holds afterwards.

    Raises
    ------
    CannotLift
        If what it writes into is not followed.
    """
    target = args[0] if args else next((kwargs[name] for name in ("a", "arr", "dst") if name in kwargs), None)
    if not hasattr(target, "tracer"):
        raise CannotLift("it writes into an array that is not followed")
    return target, _WRITERS[function](*args, **kwargs)


def _flat(values: Any, like: Any) -> Any:
    """Values in a row, followed: places that are followed can be looked up in no other array."""
    if not hasattr(values, "tracer"):
        plain = np.asarray(values, like.dtype)
        values = like.tracer.results(plain, like.tracer.tensor(plain))
    return np.ravel(values)
