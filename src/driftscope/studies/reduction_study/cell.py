"""One cell of the reduction study: one vector, one function, many orders; how far the results spread."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from driftscope.numerics.formats import numpy_dtype
from driftscope.studies.reduction_study.distributions import order_blocks, orders, stored
from driftscope.studies.reduction_study.functions import REDUCTIONS, TORCH, known, outputs_of
from driftscope.studies.reduction_study.prediction import Prediction, predict

Array = np.ndarray[Any, np.dtype[Any]]
_Sample = tuple[str, int, str, int, int]  # law, size, dtype, permutations, seed

SAME_BITS, ROUNDING, MORE, NOT_FINITE = "same bits", "rounding", "more than rounding", "not finite"

#: Largest honest ratio of observed deviation to floor in the whole default grid is 1.3 (docs/howto/run-a-study.md).
_ROUNDING_FLOORS = 2.5
VECTORS = ("layer_norm", "softmax")  # functions whose result is a vector
_QUANTILES = {"q05": 5, "q25": 25, "q50": 50, "q75": 75, "q95": 95}
_SHARES = np.array([*_QUANTILES.values()]) / 100


def reduction_cell(
    function: str,
    law: str,
    size: int,
    dtype: str,
    *,
    threads: int,
    batch: int,
    permutations: int,
    data_seed: int,
    beside: Sequence[str] = (),
) -> dict[str, Any]:
    """Reduce one vector in many orders.

    Parameters
    ----------
    function, law, size, dtype
        What is reduced and how; names of :mod:`reduction_functions` and :mod:`reduction_data`.
    threads, batch : int
        Threads inside an operator, and rows of one call; torch's kernels alone depend on them.
    permutations : int
        Orders beside the one drawn.
    data_seed : int
    beside : sequence of str
        Functions whose cells follow: what they have in common with this one is kept for them. No result depends on it.

    Returns
    -------
    dict
        ``spread``: for a number the largest minus the smallest result; for a vector the largest change of an element
        of the sorted output against the first order. ``random_spread``: the same without ascending and descending
        order, which are no random orders; ``predicted_spread`` beside it, ``ratio`` of the two. ``step``: one ulp of
        the result; ``steps``: the random spread in it; ``distinct`` results. ``floor`` and ``floors``: the rms rounding
        error, and the rms change between random orders over sqrt(2) of it. ``ordered_floors``: the rms change of
        ascending or descending order, the larger one, in floors; ``ordered_times``: how far it goes over how far the
        farthest random order goes, None where no random order changes anything. ``verdict``: of the random orders;
        ``values``: every order's own result.
    """
    known(function)
    sample = (law, size, dtype, permutations, data_seed)
    with np.errstate(all="ignore"), _threads(function, threads):
        values, rms, ordered_rms = (
            _of_torch(function, sample, batch) if function in TORCH else _of_numpy(function, sample, beside)
        )
        random = _at_random(len(values))
        prediction = predict(function, stored(law, size, dtype, data_seed)[0], int(random.sum()))
        ascending = np.sort(values)
        vector = function.removeprefix("torch.") in VECTORS
        # Infinity minus infinity is not warned of here: the cell is called not finite.
        spread, random_spread = (
            float(some.max() - (0.0 if vector else some.min())) for some in (values, values[random])
        )
        far = values if vector else np.abs(values - _median(values[random]))
        sorted_rms = ordered_rms if vector else float(far[~random].max(initial=0.0))
    floors = _in_floors(rms, math.sqrt(2) * prediction.floor)
    listed = values.tolist()
    return {
        "spread": spread,
        "random_spread": random_spread,
        "predicted_spread": prediction.spread,
        "ratio": _ratio(random_spread, prediction.spread),
        "step": prediction.step,
        "steps": _ratio(random_spread, prediction.step),
        "distinct": len(set(listed)),
        "observations": len(values),
        "floor": prediction.floor,
        "floors": floors,
        "ordered_floors": _in_floors(sorted_rms, prediction.floor),
        "ordered_times": _ratio(float(far[~random].max(initial=0.0)), float(far[random].max(initial=0.0))),
        "verdict": _verdict(spread, random_spread, floors, prediction),
        **_quantiles(ascending),
        "values": listed,
    }


def _in_floors(change: float, floor: float) -> float:
    return change / floor if floor > 0 else 0.0 if change == 0 else math.inf


def _of_torch(function: str, sample: _Sample, batch: int) -> tuple[Array, float, float]:
    """Return what each order gave, in float64, the rms change between two random orders, and that of sorted ones."""
    outputs = outputs_of(function, orders(*sample), batch).astype(np.float64)
    if outputs.ndim == 1:
        return outputs, _rms_between(outputs), 0.0
    outputs.sort(axis=-1)
    return _changes(outputs, np.arange(len(outputs)))


def _of_numpy(function: str, sample: _Sample, beside: Sequence[str]) -> tuple[Array, float, float]:
    """The same for a function of this study, without ever making a permuted output."""
    reduction = REDUCTIONS[function]
    numbers = _numbers(function, sample, beside)
    if reduction.map is None:
        values = numbers[0].astype(numpy_dtype(sample[2])).astype(np.float64)
        return values, _rms_between(values), 0.0
    whole = np.stack([n.astype(np.float64) for n in numbers], axis=1)
    if not np.isfinite(whole).all():
        return np.full(len(whole), np.nan), math.nan, math.nan
    distinct, which = _distinct(whole)
    law, size, dtype, _, seed = sample
    columns = [distinct[:, [k]].astype(number.dtype) for k, number in enumerate(numbers)]
    return _changes(reduction.map(stored(law, size, dtype, seed)[1], *columns), which)


def _numbers(function: str, sample: _Sample, beside: Sequence[str]) -> tuple[Array, ...]:
    """Return what depends on the order, for every order; one pass where another function of the study has it too."""
    reduction = REDUCTIONS[function]
    _, size, dtype, _, _ = sample
    narrow = reduction.takes_stored(numpy_dtype(dtype), size)
    if reduction.within in beside and not narrow:
        return _collected(reduction.within, sample, False)[:1]
    if any(REDUCTIONS[other].within == function for other in beside if other in REDUCTIONS):
        return _collected(function, sample, narrow)
    return _collect(function, sample, narrow)


def _collect(function: str, sample: _Sample, narrow: bool) -> tuple[Array, ...]:
    blocks = [REDUCTIONS[function].numbers(rows) for rows in order_blocks(*sample, wide=not narrow)]
    return tuple(np.concatenate(column) for column in zip(*blocks, strict=True))


_collected = functools.lru_cache(maxsize=4)(_collect)


def _quantiles(ascending: Array) -> dict[str, float]:
    found = np.interp(_SHARES * (len(ascending) - 1), np.arange(len(ascending)), ascending)
    return dict(zip(_QUANTILES, found.tolist(), strict=True))


def _distinct(numbers: Array) -> tuple[Array, Array]:
    """Return distinct rows of numbers, the first order's first, and which of them each order has."""
    bits, width = numbers.tobytes(), numbers.shape[1] * numbers.itemsize
    seen: dict[bytes, int] = {}  # a hundred rows: sorting them costs more
    which = np.array([seen.setdefault(bits[k : k + width], len(seen)) for k in range(0, len(bits), width)])
    return np.frombuffer(b"".join(seen)).reshape(-1, numbers.shape[1]), which


def _changes(outputs: Array, which: Array) -> tuple[Array, float, float]:
    """Return the largest change of an element against the first order, for each order, and the rms changes.

    The first rms is over random orders, the second that of the sorted order that changes more.
    """
    wide = outputs if outputs.dtype.itemsize >= 4 else outputs.astype(np.float32)
    # In the outputs' own format when it is wide enough: the difference of two neighbours is exact there.
    change = wide - wide[which[0]]
    np.abs(change, out=change)
    largest = change.max(axis=-1).astype(np.float64)
    squares = np.einsum("ij,ij->i", change, change, dtype=np.float64) / change.shape[-1]
    each, random = squares[which], _at_random(len(which))
    return largest[which], math.sqrt(float(each[random].mean())), math.sqrt(float(each[~random].max(initial=0.0)))


def _rms_between(values: Array) -> float:
    """Return the rms difference of two results in random order: sqrt(2) times their standard deviation."""
    # Neighbouring float64 numbers: their mean would be rounded, their differences from one of them are exact.
    return math.sqrt(2) * float(np.std((values - values[0])[_at_random(len(values))]))


def _median(values: Array) -> float:
    """Return what numpy's median does, which would import its masked arrays: a twentieth of a study."""
    ordered = np.sort(values)  # with NaN last
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    return math.nan if math.isnan(ordered[-1]) else float(middle.mean())


@functools.lru_cache(maxsize=16)
def _at_random(count: int) -> Array:
    """Say which orders are random: sorted terms make partial sums that no random order makes."""
    random = np.ones(count, dtype=bool)
    random[2:4] = False
    random.setflags(write=False)
    return random


def _verdict(spread: float, random_spread: float, floors: float, prediction: Prediction) -> str:
    if not math.isfinite(spread):
        return NOT_FINITE
    if spread == 0:
        return SAME_BITS
    # A single step of the format is what storing the result can do by itself.
    return ROUNDING if floors <= _ROUNDING_FLOORS or random_spread <= prediction.step else MORE


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


@contextmanager
def _threads(function: str, count: int) -> Iterator[None]:
    if not function.startswith("torch."):
        yield  # numpy adds on one thread
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
