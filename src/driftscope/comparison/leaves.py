"""Two flattened output trees, leaf by leaf: every difference, each at its path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.comparison.measuring.metrics import Drift, measure
from driftscope.comparison.measuring.operands import Operand, operand
from driftscope.comparison.pairing import Pairing, pair_leaves
from driftscope.records.paths import Path
from driftscope.records.words import agreeing, all_of, counted


@dataclass(frozen=True, slots=True)
class LeafComparison:
    """How one leaf differs.

    Parameters
    ----------
    path : Path
        In ``a``'s tree; in ``b``'s for a leaf that only ``b`` has.
    kind : str
        The most serious difference: ``"structure"`` (only one side has this leaf), ``"kind"`` (None, number,
        text and tensor are different kinds), ``"opaque"`` (objects that know no ``==``), ``"shape"``, ``"nan"``
        (NaNs or infinities stand against something else, both sides floating), ``"dtype"``, ``"value"``,
        ``"same"``.
    detail : str
        Every difference in words, the most serious first; "" when bits, dtype and shape are the same.
    drift : Drift or None
        Measured wherever the shapes agree, whatever else differs.
    a_dtype, b_dtype : str or None
        Plain names (``"float32"``, ``"str"``, ``"None"``); None where the leaf is missing.
    a_shape, b_shape : tuple of int or None
    index_a, index_b : int or None
        Position in the list of leaves; None where the leaf is missing.
    floating : bool
        Whether both sides are floating-point (or complex) numbers.
    """

    path: Path
    kind: str
    detail: str = ""
    drift: Drift | None = None
    a_dtype: str | None = None
    b_dtype: str | None = None
    a_shape: tuple[int, ...] | None = None
    b_shape: tuple[int, ...] | None = None
    index_a: int | None = None
    index_b: int | None = None
    floating: bool = False

    @property
    def same_bits(self) -> bool:
        """Whether kind, shape, dtype and every bit are the same."""
        return self.kind == "same" and (self.drift is None or self.drift.same_bits)

    @property
    def all_nan(self) -> bool:
        """Whether every element is NaN on both sides: nothing was compared."""
        return self.drift is not None and self.drift.all_nan


Leaves = Sequence[tuple[Path, Any]]


def compare_leaves(a: Leaves, b: Leaves, *, flat: bool = False) -> list[LeafComparison]:
    """Compare two lists of leaves.

    Parameters
    ----------
    a, b : sequence of (Path, leaf)
        Two flattened trees; ``a`` is the reference. A leaf is whatever :func:`operand` understands.
    flat : bool
        Whether one side is a flat list of named outputs, whose containers say nothing: leaves are then paired by
        name when the names are the other side's, else by order when the counts agree; a leaf that is None may be
        missing on the flat side, and a Python number is compared with a tensor by value.

    Returns
    -------
    list of LeafComparison
        One for every leaf of either side, ``a``'s order first. Nothing is broadcast, and nothing stops at the
        first difference.

    Raises
    ------
    InputError
        If a tensor has no values (meta device).
    """
    return [_compare_pair(a, b, pairing, flat) for pairing in pair_leaves(a, b, flat=flat)]


def _compare_pair(a: Leaves, b: Leaves, pairing: Pairing, flat: bool) -> LeafComparison:
    i, j = pairing.index_a, pairing.index_b
    if i is not None and j is not None:
        return compare_leaf(a[i][0], operand(a[i][1]), operand(b[j][1]), places=(i, j), flat=flat)
    if i is not None:
        path, x = a[i][0], operand(a[i][1])
        kind, detail = ("same", "") if pairing.dispensable else ("structure", f"only A has it: {_name(x)}")
        return LeafComparison(path, kind, detail, a_dtype=x.dtype, a_shape=x.shape, index_a=i)
    if j is None:
        raise ValueError("a pairing names a leaf of at least one side")
    path, x = b[j][0], operand(b[j][1])
    kind, detail = ("same", "") if pairing.dispensable else ("structure", f"only B has it: {_name(x)}")
    return LeafComparison(path, kind, detail, b_dtype=x.dtype, b_shape=x.shape, index_b=j)


def compare_leaf(
    path: Path, x: Operand, y: Operand, *, places: tuple[int | None, int | None] = (None, None), flat: bool = False
) -> LeafComparison:
    """Compare two leaves that belong together.

    Parameters
    ----------
    path : Path
    x, y : Operand
        The reference and the other.
    places : pair of int or None
        Their positions in the lists of leaves.
    flat : bool
        Compare a Python number with a tensor by value.
    """
    dtypes = _dtypes(x, y)

    def found(kind: str, detail: str, drift: Drift | None = None, floating: bool = False) -> LeafComparison:
        return LeafComparison(path, kind, detail, drift, *dtypes, x.shape, y.shape, *places, floating)

    if x.absent or y.absent:
        if x.absent and y.absent:
            return found("same", "")
        return found("kind", f"{_name(x)} against {_name(y)}")
    if (x.tensor is None) is not (y.tensor is None) and not (x.weak and y.weak):
        return found("kind", f"{_name(x)} against {_name(y)}")
    if x.opaque and y.opaque and x.dtype == y.dtype and x.objects[0] is not y.objects[0]:
        return found(
            "opaque", f"objects of class {x.dtype} are equal to nothing but themselves: these cannot be compared"
        )
    floating = x.floating and y.floating
    if x.shape != y.shape:
        return found("shape", f"shape {x.shape} against {y.shape}", floating=floating)
    drift = measure(x, y)
    parts = _differences(x, y, dtypes, drift, floating)
    if x.weak is not y.weak and not flat:
        parts.insert(0, ("kind", f"{_name(x)} against {_name(y)}"))
    kind = next((k for k in _SERIOUS_FIRST if any(k == part for part, _ in parts)), "same")
    ordered = sorted(parts, key=lambda part: _SERIOUS_FIRST.index(part[0]))
    return found(kind, "; ".join(detail for _, detail in ordered), drift, floating)


_SERIOUS_FIRST = ("structure", "kind", "shape", "nan", "dtype", "value", "same")


def _differences(
    x: Operand, y: Operand, dtypes: tuple[str, str], drift: Drift, floating: bool
) -> list[tuple[str, str]]:
    """List every difference of two leaves of one shape as (kind, words)."""
    found = []
    if dtypes[0] != dtypes[1]:
        found.append(("dtype", f"{dtypes[0]} against {dtypes[1]}"))
    if x.description != y.description:
        found.append(("dtype", f"{x.description or 'plain'} against {y.description or 'plain'}"))
    if drift.special_differ:
        found.append(("nan" if floating else "value", special_words(drift)))
    if drift.differing > drift.special_differ:
        found.append(("value", value_words(drift)))
    if drift.all_nan:
        found.append(
            ("same", f"{all_of(drift.count, 'element')} {agreeing(drift.count, 'is', 'are')} NaN on both sides")
        )
    if not drift.same_bits and drift.same_values and dtypes[0] == dtypes[1]:
        found.append(("same", _equal_words(drift)))
    return found


def _equal_words(drift: Drift) -> str:
    has = agreeing(drift.mismatched, "has an equal value", "have equal values")
    return f"{drift.mismatched} of {counted(drift.count, 'element')} {has} in different bits"


def special_words(drift: Drift) -> str:
    """Say where NaNs and infinities stand against something else."""
    parts = [f"NaN in {side} only: {n}" for side, n in (("A", drift.nan_a), ("B", drift.nan_b)) if n]
    if drift.inf_differ:
        parts.append(f"infinity against another value: {drift.inf_differ}")
    return f"{', '.join(parts)} of {counted(drift.count, 'element')}"


def value_words(drift: Drift) -> str:
    """Say how many values differ, by how much and where."""
    count = drift.differing - drift.special_differ
    words = f"{count} of {counted(drift.count, 'element')} differ"
    if drift.max_abs:
        words += f", by up to {drift.max_abs:.3g}"
    if drift.worst_index is not None and drift.worst_values is not None:
        words += f"{place_words(drift.worst_index)}: {drift.worst_values[0]} against {drift.worst_values[1]}"
    return words


def place_words(index: tuple[int, ...]) -> str:
    """Say where; nothing for a scalar, which has only one place."""
    return f" at {index}" if index else ""


def _dtypes(x: Operand, y: Operand) -> tuple[str, str]:
    """Return both dtypes; a Python number has that of its partner where it can take it."""
    if x.weak and not y.weak and _takes(x, y):
        return y.dtype, y.dtype
    if y.weak and not x.weak and _takes(y, x):
        return x.dtype, x.dtype
    return x.dtype, y.dtype


_RANKS = {"bool": 0, "int64": 1, "float64": 2, "complex128": 3}


def _takes(number: Operand, partner: Operand) -> bool:
    if partner.tensor is None or number.dtype not in _RANKS:
        return False
    dtype = partner.tensor.dtype
    rank = 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1 if partner.dtype != "bool" else 0
    # As in torch and numpy: an int stands for any number, a float for any float, a bool only for a bool.
    return (
        _RANKS[number.dtype] == rank
        or (_RANKS[number.dtype] == 1 and rank > 1)
        or (number.dtype == "float64" and rank == 3)
    )


def _name(x: Operand) -> str:
    if x.absent:
        return "None"
    if x.weak:
        return f"a Python number ({x.dtype})"
    if x.shape is None:
        return f"a {x.dtype}"
    return f"{x.dtype} of shape {x.shape}"
