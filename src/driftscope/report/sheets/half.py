"""A half-precision check as a sheet: where the format fails, what to keep in float32, what each operator costs."""

from __future__ import annotations

from driftscope.records.kinds.half_precision import Failure, HalfPrecision, error_words
from driftscope.report import wording
from driftscope.report.sheet import Listing, Mark, Section, Sheet, Table
from driftscope.report.terminal.lines import folded


def sheet_of(half: HalfPrecision) -> Sheet:
    """Draw a check."""
    sections: list[Section] = []
    if half.failures:
        columns = ("what", "where", "largest value", "largest of the format", "elements")
        sections.append(Table(f"Where {half.format} fails", columns, tuple(_failure(f) for f in half.failures)))
    if half.paste:
        sections.append(Listing("To keep in float32", "\n".join(half.paste), _effect(half)))
    if half.by_operator:
        rows = tuple((c.operator, c.count, c.error) for c in half.by_operator)
        note = f"Relative error that is left; it is {wording.number(_left(half))} with none of them."
        sections.append(Table("Error with one type of operator in float32", ("operator", "count", "error"), rows, note))
    return Sheet(
        title=f"{half.program} in {half.format}",
        tone="good" if half.fits else "bad",
        headline="fits" if half.fits else f"fails at {wording.counted(len(half.failures), 'place')}",
        reason=half.answer,
        figures=_figures(half),
        findings=half.findings,
        sections=tuple(sections),
    )


def _left(half: HalfPrecision) -> float:
    return half.error if half.error_kept is None else half.error_kept


def _figures(half: HalfPrecision) -> tuple[tuple[str, str, str], ...]:
    figures = [("Relative error", wording.number(half.error), "every operator's result rounded as declared")]
    if half.error_kept is not None:
        kept = wording.counted(len(half.keep), "operator")
        figures.append(("With some in float32", wording.number(half.error_kept), kept))
    if half.computed_wide is not None:
        wide, total = half.computed_wide
        figures.append(("Computed in float32 here", f"{wide} of {total}", "rounding operators of the runtime"))
    return tuple(figures)


def _failure(failure: Failure) -> tuple[str | int | float | Mark | None, ...]:
    count = f"{failure.count:,} of {failure.total:,}"
    if failure.kind == "overflow":
        return (Mark("overflow", "bad"), wording.place(failure.where), failure.magnitude, failure.largest, count)
    return (Mark("lost", "bad"), wording.place(failure.where), None, failure.largest, count)


def _effect(half: HalfPrecision) -> str:
    words = f"Measured: {error_words(half.error_kept)}"
    if half.error_types is not None:
        words += f"; with every operator of these types, {wording.number(half.error_types)}"
    return f"{words}. Casts to float16 between two operators that are kept must go, too."


def render(half: HalfPrecision, *, width: int, color: bool) -> str:
    """Write a check for a terminal."""
    return folded(wording.clean(half), width, whole=half.paste)
