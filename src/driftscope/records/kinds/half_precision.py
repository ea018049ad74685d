"""The record of a half-precision check: what float16 or bfloat16 does to a program, operator by operator."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from driftscope.records.finding import Finding, Where
from driftscope.records.showing import Record
from driftscope.records.words import counted

HALF_SCHEMA = "driftscope/half-precision/1"


#: What is said of an error relative to nothing.
CANCELLED = "an error larger than the result itself, whose exact value is zero or cancels to almost zero"
_MEANINGLESS = 10.0  # relative errors above: nothing of the result is left, and how little says nothing


def error_words(error: float | None) -> str:
    """Say a relative error; one of a result that cancels to zero, or nearly, is a large number that says nothing."""
    if error is None or not math.isfinite(error):
        return "no finite result"
    if error > _MEANINGLESS:
        return CANCELLED
    return f"a relative error of {error:.1e}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A place where the format fails: a value that does not fit, or NaN where a wider format has a number.

    Parameters
    ----------
    kind : str
        ``"overflow"`` or ``"lost"``.
    where : Where
    magnitude, largest : float
        Largest |value| before rounding, and the largest number of the format.
    count, total : int
        Elements concerned, of how many.
    """

    kind: str
    where: Where
    magnitude: float
    largest: float
    count: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """What one type of operator costs: the error of the outputs with all operators of the type kept in float32."""

    operator: str
    count: int
    error: float


@dataclass(frozen=True, slots=True, repr=False)
class HalfPrecision(Record):
    """What a half format does to a program on a device that computes as declared.

    Parameters
    ----------
    answer : str
        One sentence.
    program, format : str
    failures : tuple of Failure
        Places where the format fails, in the order of the run; empty when everything fits.
    error : float
        rms error of the worst output against float64, relative to it; infinite when it is not finite.
    error_kept : float or None
        The same with ``keep`` in float32; None when nothing need be kept.
    keep : tuple of str
        The operators to keep in float32: nothing can be spared of them.
    keep_operators : tuple of str
        Their types; ``error_types`` is the error with every operator of these types kept.
    error_types : float or None
    by_operator : tuple of OperatorCost
        One row per type of operator, those first that cost most; empty unless asked for.
    paste : tuple of str
        The arguments that float16 conversion tools take (onnxruntime.transformers.float16, onnxconverter-common).
    computed_wide : tuple of two int, or None
        Of the rounding operators that a runtime ran, how many it computed in float32; None when no runtime ran it.
    findings : tuple of Finding
    runs : int
        Runs in float64 that were made.
    """

    answer: str
    program: str
    format: str
    failures: tuple[Failure, ...] = ()
    error: float = 0.0
    error_kept: float | None = None
    keep: tuple[str, ...] = ()
    keep_operators: tuple[str, ...] = ()
    error_types: float | None = None
    by_operator: tuple[OperatorCost, ...] = ()
    paste: tuple[str, ...] = ()
    computed_wide: tuple[int, ...] | None = None
    findings: tuple[Finding, ...] = field(default_factory=tuple)
    runs: int = 0
    schema: str = HALF_SCHEMA

    @property
    def fits(self) -> bool:
        """Whether every value that float64 has is a number in this format too."""
        return not self.failures

    def __str__(self) -> str:
        rows = [self.answer]
        for failure in self.failures[:5]:
            size = (
                f"{failure.magnitude:.3g} > {failure.largest:.5g}" if failure.kind == "overflow" else "NaN or infinite"
            )
            rows.append(
                f"  {failure.kind} at {failure.where}: {size} ({failure.count} of {counted(failure.total, 'element')})"
            )
        if len(self.failures) > 5:
            rows.append(f"  and {counted(len(self.failures) - 5, 'more place')}")
        rows += [f"  {line}" for line in self.paste]
        rows += [f"  {c.operator} x{c.count} in float32: error {c.error:.2g}" for c in self.by_operator[:8]]
        return "\n".join(rows)
