"""How two values of one shape differ, measured in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.comparison.measuring.aligned import Aligned, align
from driftscope.comparison.measuring.operands import Operand, operand
from driftscope.comparison.measuring.pieces import pieces, position, same_bits
from driftscope.comparison.measuring.tally import Tally


@dataclass(frozen=True, slots=True)
class Drift:
    """The measured difference ``b - a`` of two values of one shape; ``a`` is the reference.

    Sizes (``max_abs`` to ``max_ulp`` and ``above``) are taken over the elements that are finite on both sides;
    NaNs and infinities are counted beside them and never mixed in. A complex number counts as two elements, its
    parts; a sparse tensor counts the elements stored on either side.

    Parameters
    ----------
    count : int
        Elements.
    mismatched : int
        Elements whose bits differ; for two different dtypes, whose values differ.
    differing : int
        Elements whose values differ. ``-0.0`` equals ``+0.0``, NaN equals NaN, an infinity equals itself.
    nan_a, nan_b, nan_both : int
        Elements that are NaN on one side only, and on both.
    inf_differ, inf_both : int
        Infinities against another value (not NaN), and equal infinities.
    max_abs : float
        Largest ``|b - a|``, computed in float64; exact in the sense that it is 0.0 only for equal values.
    worst_index : tuple of int or None
        Where ``max_abs`` is (the first such place, row by row), else the first place where the values differ;
        None when they do not.
    worst_values : tuple of two str or None
        Both values there, in full: they read back to the same bits.
    rms, sum_abs : float
        Root mean square and sum of ``|b - a|``.
    max_rel : float
        Largest ``|b - a| / |a|``; 0/0 is 0, anything else over 0 is infinite.
    max_ulp : float or None
        Largest distance in representable steps of the coarser of the two formats (the finer side is rounded to
        it first). None where a side is not floating.
    above : tuple of (float, int)
        For each threshold asked for, how many ``|b - a|`` exceed it.
    """

    count: int
    mismatched: int = 0
    differing: int = 0
    nan_a: int = 0
    nan_b: int = 0
    nan_both: int = 0
    inf_differ: int = 0
    inf_both: int = 0
    max_abs: float = 0.0
    worst_index: tuple[int, ...] | None = None
    worst_values: tuple[str, str] | None = None
    rms: float = 0.0
    sum_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float | None = None
    above: tuple[tuple[float, int], ...] = ()

    @property
    def same_bits(self) -> bool:
        """Whether no bits differ."""
        return self.mismatched == 0

    @property
    def same_values(self) -> bool:
        """Whether no values differ."""
        return self.differing == 0

    @property
    def all_nan(self) -> bool:
        """Whether there are elements and each is NaN on both sides: nothing was compared."""
        return 0 < self.count == self.nan_both

    @property
    def special_differ(self) -> int:
        """NaNs and infinities that stand against something else."""
        return self.nan_a + self.nan_b + self.inf_differ


def measure(
    a: Any, b: Any, *, thresholds: Sequence[float] = (), rel_offset: float = 0.0, size: int | None = None
) -> Drift:
    """Measure how ``b`` differs from ``a``.

    Parameters
    ----------
    a, b : any leaf that :func:`operand` understands, or Operand
        Of one shape. Dtypes, devices, strides and layouts may differ: different dtypes are compared by value
        (in float64; 64-bit integers exactly).
    thresholds : sequence of float
        Count how many ``|b - a|`` exceed each.
    rel_offset : float
        Added to the denominator of ``max_rel``, as some peers do.
    size : int or None
        Elements in one piece, for tests; the result does not depend on it but for the last digits of sums.

    Returns
    -------
    Drift

    Raises
    ------
    ValueError
        If the shapes differ: there is no difference to measure, and nothing is broadcast.
    """
    a, b = (x if isinstance(x, Operand) else operand(x) for x in (a, b))
    if a.shape != b.shape:
        raise ValueError(f"values of shapes {a.shape} and {b.shape} have no elementwise difference")
    if a.tensor is None or b.tensor is None:
        return _compare_objects(a, b)
    pair = align(a, b)
    tally = Tally(pair, tuple(float(t) for t in thresholds), rel_offset)
    if pair.comparable_bits and same_bits(pair.a, pair.b):
        tally.add_same(pair.a)
    else:
        for start, x, y in pieces(pair.a, pair.b, size):
            stop = start + x.numel()
            tally.add(start, x, y, pair.low_between(start, stop))
    return _drift(pair, tally)


def _drift(pair: Aligned, tally: Tally) -> Drift:
    index = values = None
    if tally.place is not None:
        inner = position(tally.place, tuple(pair.a.shape))
        index, values = pair.index(inner), pair.values(inner)
    return Drift(
        count=pair.a.numel(),
        mismatched=tally.mismatched if pair.comparable_bits else tally.differing,
        differing=tally.differing,
        nan_a=tally.nan_a,
        nan_b=tally.nan_b,
        nan_both=tally.nan_both,
        inf_differ=tally.inf_differ,
        inf_both=tally.inf_both,
        max_abs=tally.max_abs,
        worst_index=index,
        worst_values=values,
        rms=tally.rms,
        sum_abs=tally.sum_abs,
        max_rel=tally.max_rel,
        max_ulp=tally.max_ulp,
        above=tuple(zip(tally.thresholds, tally.above, strict=True)),
    )


def _compare_objects(a: Operand, b: Operand) -> Drift:
    """Compare what can only be equal or not: strings, objects, integers beyond 64 bits."""
    left, right = (list(x.objects) if x.tensor is None else x.tensor.reshape(-1).tolist() for x in (a, b))
    unequal = [i for i, (x, y) in enumerate(zip(left, right, strict=True)) if not _equal(x, y)]
    if not unequal:
        return Drift(count=len(left))
    first = unequal[0]
    numeric = all(isinstance(v, (int, float)) for v in (left[first], right[first]))
    return Drift(
        count=len(left),
        mismatched=len(unequal),
        differing=len(unequal),
        max_abs=float(abs(right[first] - left[first])) if numeric else 0.0,
        worst_index=position(first, a.shape or ()),
        worst_values=(repr(left[first]), repr(right[first])),
    )


def _equal(x: Any, y: Any) -> bool:
    if x is y or (_is_nan(x) and _is_nan(y)):
        return True
    numbers = isinstance(x, (int, float)) and isinstance(y, (int, float))
    if not numbers and type(x) is not type(y):
        return False
    try:
        return bool(x == y)
    except (TypeError, ValueError):  # an == that answers element by element: not known to be equal
        return False


def _is_nan(x: Any) -> bool:
    return isinstance(x, float) and x != x
