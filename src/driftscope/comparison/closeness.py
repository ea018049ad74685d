"""Whether two values are close by tolerances, with torch.testing's decisions and every mismatch instead of the first.

What decides is torch's own rule, ``|actual - expected| <= atol + rtol * |expected|`` in the values' own dtype. For
plain tensors it is evaluated here piece by piece with the same operations; anything unusual (other layouts,
quantised or complex numbers, Python scalars, mixed types) is put to ``torch.testing.assert_close`` itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from driftscope.comparison.measuring.metrics import Drift, measure
from driftscope.comparison.measuring.operands import operand
from driftscope.comparison.measuring.pieces import pieces, same_bits
from driftscope.errors import InputError
from driftscope.records.paths import Path
from driftscope.records.words import counted


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of ``torch.testing.assert_close``, by their names and defaults."""

    allow_subclasses: bool = True
    rtol: float | None = None
    atol: float | None = None
    equal_nan: bool = False
    check_device: bool = True
    check_dtype: bool = True
    check_layout: bool = True
    check_stride: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place where two trees are not close.

    Parameters
    ----------
    path : Path
    what : str
        In one sentence.
    drift : Drift or None
        Expected against actual, where the shapes agree.
    beyond : int or None
        Elements outside the tolerances; None where they were not counted.
    dtype : str
        Of the expected value; "" for structure.
    """

    path: Path
    what: str
    drift: Drift | None = None
    beyond: int | None = None
    dtype: str = ""


#: (rtol, atol) that torch documents for each dtype; everything else is compared exactly.
DEFAULT_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}

_PLAIN_DTYPES = {
    *DEFAULT_TOLERANCES, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip


def mismatches(actual: Any, expected: Any, rules: Rules) -> list[Mismatch]:
    """Find every place where two trees of sequences, mappings, tensors and numbers are not close.

    Raises
    ------
    ValueError, TypeError
        As ``torch.testing.assert_close``: only one tolerance given; two things that cannot be compared.
    """
    found = []
    try:
        for mismatch in _walk(actual, expected, rules, Path()):
            found.append(mismatch)
    except TypeError:  # behind a missing item, things meet that do not belong together
        if all(mismatch.dtype for mismatch in found):
            raise
    return found


def _walk(actual: Any, expected: Any, rules: Rules, path: Path) -> Iterator[Mismatch]:
    if _is_sequence(actual) and _is_sequence(expected):
        if len(actual) != len(expected):
            yield Mismatch(path, f"a sequence of {len(actual)} items, expected {len(expected)}")
        for i, (x, y) in enumerate(zip(actual, expected, strict=False)):
            yield from _walk(x, y, rules, path / i)
    elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
        yield from _walk_mapping(actual, expected, rules, path)
    else:
        found = _compare(actual, expected, rules, path)
        if found is not None:
            yield found


def _is_sequence(x: Any) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str)


def _walk_mapping(
    actual: Mapping[Any, Any], expected: Mapping[Any, Any], rules: Rules, path: Path
) -> Iterator[Mismatch]:
    missing = [key for key in expected if key not in actual]
    extra = [key for key in actual if key not in expected]
    if missing or extra:
        parts = [f"{words} {keys}" for words, keys in (("lacks", missing), ("has the unexpected", extra)) if keys]
        yield Mismatch(path, f"a mapping that {' and '.join(parts)}")
    for key in expected:
        if key in actual:
            step = key if isinstance(key, (str, int)) else str(key)
            yield from _walk(actual[key], expected[key], rules, path / step)


def _compare(actual: Any, expected: Any, rules: Rules, path: Path) -> Mismatch | None:
    plain = _plain(actual, expected, rules)
    if plain is None:
        return _ask_torch(actual, expected, rules, path)
    x, y, rtol, atol = plain
    if same_bits(x, y) and (rules.equal_nan or not _has_nan(x)):
        return None
    beyond = sum(_beyond(p, q, rtol, atol, rules.equal_nan) for _, p, q in pieces(x, y))
    if not beyond:
        return None
    what = f"{beyond} of {counted(x.numel(), 'element')} beyond {_bound(rtol, atol)}"
    both = 0 if rules.equal_nan else sum(int((p.isnan() & q.isnan()).sum()) for _, p, q in pieces(x, y))
    if both:
        what += f", {both} of them NaN on both sides, which equal_nan=True takes for equal"
    return Mismatch(path, what, measure(y, x), beyond, operand(y).dtype)


def _bound(rtol: float, atol: float) -> str:
    return f"atol={atol:g} + rtol={rtol:g} * |expected|" if rtol or atol else "equality"


def _plain(actual: Any, expected: Any, rules: Rules) -> tuple[torch.Tensor, torch.Tensor, float, float] | None:
    """Return both as dense real tensors with their tolerances, or None for what torch itself must look at."""
    if type(actual) is np.ndarray and type(expected) is np.ndarray:
        if not all(_shareable(array) for array in (actual, expected)):
            return None
        x, y = torch.from_numpy(actual), torch.from_numpy(expected)
    elif _related(actual, expected, rules):
        x, y = actual.detach(), expected.detach()
    else:
        return None
    same = x.shape == y.shape and x.dtype == y.dtype and x.device == y.device
    dense = x.layout == y.layout == torch.strided and not (x.is_nested or y.is_nested)
    if not same or not dense or x.dtype not in _PLAIN_DTYPES or x.device.type in ("meta", "mps"):
        return None
    if rules.check_stride and x.stride() != y.stride():
        return None
    rtol, atol = rules.rtol, rules.atol
    if rtol is None and atol is None:
        rtol, atol = DEFAULT_TOLERANCES.get(x.dtype, (0.0, 0.0))
    if rtol is None or atol is None or not (rtol >= 0 and atol >= 0):
        return None
    return x.resolve_neg(), y.resolve_neg(), rtol, atol


def _shareable(array: np.ndarray[Any, np.dtype[Any]]) -> bool:
    return (
        array.dtype.kind in "bif" and array.dtype.itemsize <= 8 and array.dtype.isnative
        and array.flags.writeable and all(stride >= 0 for stride in array.strides)
    )  # fmt: skip


def _related(actual: Any, expected: Any, rules: Rules) -> bool:
    kinds = (type(actual), type(expected))
    known = all(kind in (torch.Tensor, torch.nn.Parameter) for kind in kinds)
    return known and (rules.allow_subclasses or kinds[0] is kinds[1])


def _has_nan(x: torch.Tensor) -> bool:
    if not x.dtype.is_floating_point or x.numel() == 0:
        return False
    total = x.sum(dtype=None if x.dtype.itemsize > 2 else torch.float32)
    # A sum is NaN for opposite infinities too, so it only clears; it takes a tenth of the time of looking.
    return bool(torch.isnan(total)) and bool(torch.isnan(x).any())


def _beyond(x: torch.Tensor, y: torch.Tensor, rtol: float, atol: float, equal_nan: bool) -> int:
    """Count the elements of a piece that are not close."""
    if x.dtype.is_floating_point:
        # The operations of torch.isclose in its order, so that the last bit decides as it does there. A difference
        # of two floats has the sign of the comparison; NaN and infinities end in NaN and are looked at again.
        slack = y.mul(rtol).abs_().add_(atol)
        slack.sub_(torch.sub(x, y).abs_())
        least = float(slack.amin())
        if not math.isnan(least):
            return 0 if least >= 0 else int(torch.count_nonzero(slack < 0))
    matches = torch.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)
    return x.numel() - int(torch.count_nonzero(matches))


def _ask_torch(actual: Any, expected: Any, rules: Rules, path: Path) -> Mismatch | None:
    try:
        torch.testing.assert_close(actual, expected, **asdict(rules))
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        what = " ".join(lines[:2]) if lines else "not close"
        return Mismatch(path, what, _drift(actual, expected), None, operand_name(expected))
    return None


def operand_name(value: Any) -> str:
    """Return the plain dtype name of a value that torch refused to call close."""
    try:
        return operand(value).dtype
    except InputError:
        return "meta"


def _drift(actual: Any, expected: Any) -> Drift | None:
    """Measure what torch rejected, where it has values of one shape."""
    if any(isinstance(x, torch.Tensor) and x.is_meta for x in (actual, expected)):
        return None
    if len({x.layout for x in (actual, expected) if isinstance(x, torch.Tensor)}) > 1:
        return None
    e, a = operand(expected), operand(actual)
    return measure(e, a) if e.shape == a.shape and not (e.absent or a.absent) else None
