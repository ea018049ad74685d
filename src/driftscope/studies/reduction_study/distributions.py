"""The vectors that the reduction study permutes: laws, samples, orders. All of it by name and seed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from driftscope.errors import InputError
from driftscope.numerics.formats import numpy_dtype
from driftscope.numerics.seeds import seed_of

Array = np.ndarray[Any, np.dtype[Any]]
Law = Callable[[np.random.Generator, int], Array]

_BLOCK = 1 << 18  # bytes permuted or gathered at once

DTYPES = ("float64", "float32", "float16", "bfloat16")


def _fixed(_rng: np.random.Generator, size: int) -> Array:
    values = np.full(size, -1e-4)
    values[::128] = 100.0
    return values


def _cancelling(rng: np.random.Generator, size: int) -> Array:
    half = rng.standard_normal((size + 1) // 2)
    return np.stack([half, -half], axis=1).reshape(-1)[:size]


def _wide(rng: np.random.Generator, size: int) -> Array:
    return rng.standard_normal(size) * np.exp2(rng.integers(-12, 13, size))


LAWS: dict[str, Law] = {
    "normal": lambda rng, size: rng.standard_normal(size),  # the usual activation
    "fixed": _fixed,  # small equal values and one outlier of 100 in every 128
    "pareto": lambda rng, size: rng.pareto(1.0, size),  # a tail so long that the mean does not exist
    "uniform": lambda rng, size: rng.random(size),  # all of one sign: the partial sums grow
    "lognormal": lambda rng, size: rng.lognormal(0.0, 2.0, size),
    "cauchy": lambda rng, size: rng.standard_cauchy(size),
    "cancelling": _cancelling,  # pairs x, -x: the true sum is zero, or one element
    "wide": _wide,  # magnitudes spread over 24 binades
    "shifted": lambda rng, size: 1000.0 + rng.standard_normal(size),  # a mean far larger than the deviations
}


@functools.lru_cache(maxsize=32)
def sample(law: str, size: int, seed: int = 0) -> Array:
    """Draw the vector of a law.

    Parameters
    ----------
    law : str
        A name of :data:`LAWS`, or ``"module:function"`` for ``function(rng, size)``.
    size : int
        Elements. A shorter sample of the named laws is the beginning of a longer one.
    seed : int

    Returns
    -------
    ndarray of float64, shape ``(size,)``
        Read-only.

    Raises
    ------
    InputError
        If there is no such law, or a function gives another shape.
    """
    draw: Law | None = LAWS.get(law)
    if draw is None:
        from driftscope.programs.loading.references import find, is_reference

        if not is_reference(law):
            raise InputError(f"there is no law {law!r}; there are {', '.join(LAWS)}, or name one as module:function")
        draw = find(law)
    values = np.asarray(draw(np.random.default_rng(seed_of("reduction", seed, law)), size), dtype=np.float64)
    if values.shape != (size,):
        raise InputError(f"law {law!r} gave an array of shape {values.shape}, not ({size},)")
    values.setflags(write=False)
    return values


def permutation_rng(size: int, seed: int = 0) -> np.random.Generator:
    """Return the stream that permutations of ``size`` elements are drawn from."""
    return np.random.default_rng(seed_of("permutations", seed, size))


@functools.lru_cache(maxsize=16)
def permutations(size: int, count: int, seed: int = 0) -> Array:
    """Draw permutations of ``size`` elements.

    Returns
    -------
    ndarray of intp, shape ``(count, size)``
        Each row a permutation; the same ones for every law and dtype, so that columns can be compared. They are what
        ``permutation_rng(size, seed).permutation(size)`` gives when it is called ``count`` times.
    """
    rng = permutation_rng(size, seed)
    drawn, unpermuted = np.empty((count, size), np.intp), np.arange(size)
    step = max(1, _BLOCK // unpermuted.nbytes)
    for start in range(0, count, step):
        rows = drawn[start : start + step]
        rows[:] = unpermuted
        # Row by row, in place and while they are in the cache: what rng.permutation(size) draws.
        rng.permuted(rows, axis=1, out=rows)
    drawn.setflags(write=False)
    return drawn


@functools.lru_cache(maxsize=8)
def stored(law: str, size: int, dtype: str, seed: int = 0) -> tuple[Array, Array]:
    """Return the vector of a law in a dtype, as drawn and ascending.

    Raises
    ------
    InputError
        For an unknown law or dtype.
    """
    if dtype not in DTYPES:
        raise InputError(f"there is no dtype {dtype!r} in this study; there are {', '.join(DTYPES)}")
    with np.errstate(over="ignore"):  # a value beyond float16 becomes infinite, as it would in the user's program
        x = sample(law, size, seed).astype(numpy_dtype(dtype))
    # Rounding keeps order, so the sorted values are rounded: ml_dtypes has no fast sort.
    up = np.sort(x.astype(np.float32)).astype(x.dtype) if dtype == "bfloat16" else np.sort(x)
    for array in (x, up):
        array.setflags(write=False)
    return x, up


def order_blocks(law: str, size: int, dtype: str, count: int, seed: int = 0, *, wide: bool = False) -> Iterator[Array]:
    """Walk over one vector in many orders, some rows at a time.

    Parameters
    ----------
    wide : bool
        Give the 16-bit formats in float32: a vector is converted once, not each of its orders.

    Yields
    ------
    ndarray of ``dtype``, or float32, shape ``(k, size)``
        Rows of :func:`orders` in their order, in a buffer that the next block overwrites. Blocks fit into the second
        cache level of a core, where gathering and adding are several times faster than in memory.
    """
    x, up = stored(law, size, dtype, seed)
    if wide and x.dtype.itemsize == 2:
        x, up = x.astype(np.float32), up.astype(np.float32)
    special = [x, None, up, up[::-1]][: 1 + count]
    drawn = permutations(size, max(count - 2, 1), seed)
    buffer = np.empty((min(1 + count, max(1, _BLOCK // (size * x.itemsize))), size), x.dtype)
    for start in range(0, 1 + count, len(buffer)):
        rows = buffer[: min(len(buffer), 1 + count - start)]
        first = max(start, len(special))  # from here on every row is a drawn permutation
        if first < start + len(rows):
            # "wrap" skips the check of every index, which costs as much as the copying; these are in range.
            x.take(drawn[first - 3 : start + len(rows) - 3], out=rows[first - start :], mode="wrap")
        for index in range(start, min(start + len(rows), len(special))):
            given = special[index]
            rows[index - start] = x[drawn[0]] if given is None else given
        yield rows


def orders(law: str, size: int, dtype: str, count: int, seed: int = 0) -> Array:
    """Return one vector in many orders.

    Returns
    -------
    ndarray of ``dtype``, shape ``(1 + count, size)``
        As drawn; then a permutation, ascending, descending, and permutations: the first ``1 + count`` of these.

    Raises
    ------
    InputError
        For an unknown law or dtype.
    """
    return np.concatenate([block.copy() for block in order_blocks(law, size, dtype, count, seed)])
