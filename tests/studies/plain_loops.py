"""The reduction study the plain way: one order after another, outputs sorted, a table made by pandas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas

from driftscope.numerics.formats import numpy_dtype
from driftscope.studies.reduction_study.distributions import permutation_rng, sample


def normalised(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    centred = wide - wide.mean()
    deviation = np.sqrt((centred * centred).mean()) + wide.dtype.type(1e-6)
    return (centred / deviation).astype(x.dtype)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: np.mean(x).astype(x.dtype),
    "layer_norm": normalised,
    "sum": lambda x: np.sum(x),
    "softmax": lambda x: (lambda e: (e / e.sum()).astype(x.dtype))(np.exp(_wide(x) - _wide(x).max())),
}


def _wide(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x.astype(np.float32) if x.dtype == np.float16 else x


def spreads(
    functions: Sequence[str], laws: Sequence[str], sizes: Sequence[int], dtypes: Sequence[str], permutations: int
) -> pandas.DataFrame:
    """Return the spread by function, law and size, dtypes as columns."""
    observed = []
    for function in functions:
        for law in laws:
            for size in sizes:
                for dtype in dtypes:
                    observed += _observations(function, law, size, dtype, permutations)
    table = pandas.DataFrame(observed)
    extremes = table.groupby(["function", "law", "size", "dtype"], sort=False)["value"].agg(["min", "max"])
    return (extremes["max"] - extremes["min"]).unstack("dtype")


def _observations(function: str, law: str, size: int, dtype: str, permutations: int) -> list[dict[str, Any]]:
    call = FUNCTIONS[function]
    x = sample(law, size).astype(numpy_dtype(dtype))
    rng = permutation_rng(size)
    first = call(x)
    found = []
    for n in range(1 + permutations):
        if n == 0:
            y = x
        elif n == 2:
            y = np.sort(x)
        elif n == 3:
            y = np.sort(x)[::-1]
        else:
            y = rng.permutation(x)
        got = call(y)
        value = np.abs(np.sort(first) - np.sort(got)).max() if np.ndim(got) else got
        place = {"function": function, "law": law, "size": size, "dtype": dtype}
        found.append(place | {"n": n, "value": float(value)})
    return found
