"""The spread that ordinary rounding predicts for a permuted reduction, from the error model alone.

Let ``e_p`` be the rounding error of the sum in order ``p``. The model takes it as a normal variable whose standard
deviation follows from the tree of additions (:mod:`driftscope.numerics.groupings`). The largest minus the smallest
of ``N`` such draws is expected to be ``2 Phi^-1((N - 0.375) / (N + 0.25))`` deviations (Blom, *Statistical Estimates
and Transformed Beta-Variables*, 1958). Storing the result on a grid of steps ``h`` leaves that expectation as it is
when the spread is below a step: then it is a whole step now and then, and nothing otherwise.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from driftscope.numerics.formats import FORMATS, Format
from driftscope.numerics.groupings import ROUNDING_RMS, growth, lanes, sequential

Array = np.ndarray[Any, np.dtype[Any]]

_MEAN_ABSOLUTE = math.sqrt(2 / math.pi)  # of a standard normal variable


@dataclass(frozen=True, slots=True)
class Prediction:
    """What rounding alone does to a reduction.

    Parameters
    ----------
    floor : float
        Root-mean-square error of one result, storing it included.
    spread : float
        Expected observed spread over the orders tried.
    step : float
        One unit in the last place of the largest result, in the format it is stored in.
    """

    floor: float
    spread: float
    step: float


def numpy_folds(n: int) -> tuple[float, ...]:
    """How numpy groups a contiguous sum: eight running sums in blocks of 128, blocks in pairs.

    Source: ``pairwise_sum`` in numpy/_core/src/umath/loops_utils.h.src.
    """
    if n < 8:
        return sequential(n)
    if n <= 128:
        return lanes(n, 8)
    return (*lanes(128, 8), *(2.0,) * max(1, round(math.log2(n / 128))))


def predict(function: str, x: Array, observations: int) -> Prediction:
    """Predict floor and spread of a reduction of ``x`` in ``observations`` orders.

    Parameters
    ----------
    function : str
        A name of this study, as ``"mean"`` or ``"torch.layer_norm"``.
    x : ndarray of shape ``(n,)``, in the dtype under study
    observations : int

    Returns
    -------
    Prediction
        NaN where a value is not finite. A sum of two terms is the same in both orders.
    """
    fmt = _format(x.dtype)
    values = x.astype(np.float64)
    if not np.isfinite(values).all():
        return Prediction(math.nan, math.nan, math.nan)
    storage = fmt.unit_roundoff
    family = function.removeprefix("torch.")
    accumulator = FORMATS["float64" if function == "torch.var" else "float32"].unit_roundoff
    folds = numpy_folds(len(x)) if function == family else _torch_folds(family, len(x), x.dtype.itemsize)
    sums = _Sums(storage, min(storage, accumulator), folds, len(x))
    if family in ("layer_norm", "softmax"):
        return _of_elements(family, values, fmt, sums, observations)
    return _of_number(family, values, fmt, sums, observations)


def _torch_folds(family: str, n: int, itemsize: int) -> tuple[float, ...]:
    """How torch's CPU kernels group a row.

    Sums cascade. The variance is Welford's update, one term after the other, kept in float64 whatever the input. A norm
    keeps one running sum in each lane of a 32-byte vector.
    """
    if family == "var":
        return sequential(n)
    if family == "norm":
        return lanes(n, max(32 // max(itemsize, 4), 1))
    from driftscope.numerics.error_model import TORCH

    return TORCH.softmax(n) if family == "softmax" else TORCH.sum(n)


@dataclass(frozen=True, slots=True)
class _Sums:
    storage: float
    accumulator: float
    folds: tuple[float, ...]
    n: int

    def error(self, terms: Array) -> float:
        """Standard deviation of the part of a sum's error that depends on the order of its terms."""
        if self.n <= 2:
            return 0.0
        grown = _growth(self.folds)
        total = float(terms.sum())
        variance = grown.terms * float(terms @ terms) + grown.total * total * total
        return ROUNDING_RMS * self.accumulator * math.sqrt(variance)


def _of_number(family: str, x: Array, fmt: Format, sums: _Sums, observations: int) -> Prediction:
    n = len(x)
    if family == "mean":
        result, error = float(x.mean()), sums.error(x) / n
    elif family == "sum":
        result, error = float(x.sum()), sums.error(x)
    elif family == "var":
        squares = (x - x.mean()) ** 2
        result, error = float(squares.mean()), sums.error(squares) / n
    else:
        result = float(np.sqrt((x * x).sum()))
        error = sums.error(x * x) / (2 * result) if result else 0.0
    step = fmt.ulp(abs(result))
    floor = math.hypot(error, ROUNDING_RMS * sums.storage * abs(result))
    return Prediction(floor, error * _range(observations), step)


def _of_elements(family: str, x: Array, fmt: Format, sums: _Sums, observations: int) -> Prediction:
    """The largest change of an element against the first order, over all other orders."""
    if family == "softmax":
        terms = np.exp(x - x.max())
        y = terms / terms.sum()
        each = np.abs(y) * sums.error(terms) / float(terms.sum())
    else:
        centred = x - x.mean()
        squares = centred * centred
        deviation = math.sqrt(float(squares.mean())) + 1e-6
        y = centred / deviation
        scale = sums.error(squares) / (2 * float(squares.sum())) if squares.any() else 0.0
        each = np.hypot(sums.error(x) / len(x) / deviation, y * scale)
    # How far the first order and the farthest of the others are apart, in deviations of one order.
    apart = _range(observations) / 2 + _MEAN_ABSOLUTE
    exponents = np.frexp(np.maximum(np.abs(y), fmt.smallest_normal))[1]
    steps = np.ldexp(1.0, exponents - fmt.p)
    floor = math.sqrt(float(np.mean(each**2 + (ROUNDING_RMS * sums.storage * y) ** 2)))
    return Prediction(floor, _largest_step(each * apart, steps), float(steps.max()))


def _largest_step(change: Array, steps: Array) -> float:
    """Expected largest change of an element once all of them are stored on their grids.

    An element changes by ``max(h, d)`` if a grid point lies inside its change ``d``, which has probability
    ``min(1, d / h)``; binade by binade, the coarsest first.
    """
    binades = -np.frexp(steps)[1].astype(np.int16)
    order = np.argsort(binades, kind="stable")  # of 16-bit integers: a radix sort
    change, ends = change[order], np.cumsum(np.bincount(binades - binades[order[0]]))
    expected, none_yet, start = 0.0, 1.0, 0
    for end in ends[np.diff(ends, prepend=0) > 0].tolist():
        inside, h = change[start:end], float(steps[order[start]])
        some = 1.0 - float(np.prod(1.0 - np.minimum(1.0, inside / h)))
        expected += none_yet * some * max(float(inside.max()), h)
        none_yet *= 1.0 - some
        start = end
        if none_yet < 1e-12:
            break
    return expected


@functools.lru_cache(maxsize=16)
def _format(dtype: np.dtype[Any]) -> Format:
    return FORMATS[dtype.name]  # which numpy puts together each time it is asked


_growth = functools.lru_cache(maxsize=256)(growth)


@functools.lru_cache(maxsize=64)
def _range(count: int) -> float:
    """Expected range of ``count`` independent standard normal draws."""
    return 0.0 if count < 2 else 2 * NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
