"""A comparison as a sheet: what every screen shows of it; the page draws its outputs and nodes besides."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.sheet import Mark, Sheet, Table

TONE = {
    Verdict.IDENTICAL: "good",
    Verdict.ROUNDING: "good",
    Verdict.PRECISION: "fair",
    Verdict.INCONCLUSIVE: "unsure",
    Verdict.DIFFERENT: "bad",
}
GLYPHS = {
    Verdict.IDENTICAL: "=",
    Verdict.ROUNDING: "≈",
    Verdict.PRECISION: "↓",
    Verdict.INCONCLUSIVE: "?",
    Verdict.DIFFERENT: "≠",
}


def sheet_of(record: Comparison) -> Sheet:
    """Draw a comparison."""
    rows = tuple(
        (
            o.path,
            Mark(str(o.verdict), TONE[o.verdict], sort=float(o.verdict.rank)),
            o.floors,
            o.lifted_size,
            Mark(wording.steps(o.max_ulp), sort=o.max_ulp),
            o.max_abs,
            o.reason,
        )
        for o in record.outputs
    )
    sides = _sides(record)
    return Sheet(
        title=" vs ".join(name for _, name, _ in sides),
        tone=TONE[record.verdict],
        headline=str(record.verdict),
        reason=record.answer,
        figures=_figures(record),
        findings=record.findings,
        sections=(Table("Outputs", ("output", "verdict", "floors", "in float64", "ulp", "max abs", "reason"), rows),),
        command=record.command,
        panels=_panels(record),
        sign=GLYPHS[record.verdict],
        meaning=record.verdict.meaning,
        sides=sides,
    )


def _sides(record: Comparison) -> tuple[tuple[str, str, str], ...]:
    described = {key: record.programs.get(key) for key in ("a", "b")}
    known = {key: side if isinstance(side, Mapping) else {} for key, side in described.items()}
    return tuple((key.upper(), str(s.get("name") or "?"), str(s.get("runtime") or "")) for key, s in known.items())


# Where the judge found the largest drift, when that is not the whole tensor.
_PLACE = re.compile(r" relative at (axis [^(]+?) \(limit")


def _figures(record: Comparison) -> tuple[tuple[str, str, str], ...]:
    """Return the few numbers to read first: label, number, remark."""
    worst_floors = _largest(record.outputs, "floors")
    worst_lifted = _largest(record.outputs, "lifted_size")
    figures = []
    if worst_floors is not None:
        remark = "1.5 is where ordinary rounding ends"
        limit = record.thresholds.get("rounding")
        if isinstance(limit, (int, float)):
            remark = f"ordinary rounding ends at {wording.number(limit)}"
        figures.append(("Native drift", wording.floors(worst_floors.floors), remark))
    if worst_lifted is not None:
        # What is judged is the slice that stands furthest above its limit; what is told, the output as a whole.
        place = _PLACE.search(worst_lifted.reason)
        worst = f", worst at {place[1]}: {wording.number(worst_lifted.lifted)}" if place else ""
        remark = f"relative{worst}; the limit is {wording.number(worst_lifted.lifted_threshold)}"
        figures.append(("Drift in float64", wording.number(worst_lifted.lifted_size), remark))
    different = sum(o.mismatched for o in record.outputs)
    total = sum(o.count for o in record.outputs)
    if total:
        figures.append(("Bits differ", f"{different:,}", f"of {wording.counted(total, 'element')}"))
    return (*figures, *_closer_figure(record))


def _closer_figure(record: Comparison) -> list[tuple[str, str, str]]:
    sides = Counter(wording.closer(o) for o in record.outputs if o.closer)
    if not sides or not wording.closer_sentence(record.outputs):
        return []
    (side, count), total = sides.most_common(1)[0], sides.total()
    if total == 1:
        return [("Closer to exact", "equal" if side == "equal" else side, "each against its own float64 run")]
    if 2 * count <= total:
        return [("Closer to exact", "mixed", ", ".join(f"{name} on {n}" for name, n in sorted(sides.items())))]
    return [("Closer to exact", side, f"on {count} of {wording.counted(total, 'output')}")]


def _largest(outputs: tuple[OutputRecord, ...], name: str) -> OutputRecord | None:
    known = [o for o in outputs if getattr(o, name) is not None]
    return max(known, key=lambda o: wording.sort_key(getattr(o, name)), default=None)


def _panels(record: Comparison) -> dict[str, Any]:
    return {
        "Programs": record.programs,
        "Inputs": record.inputs,
        "Evidence": record.evidence,
        "Thresholds used": record.thresholds,
        "Environment": record.environment,
        "Seconds": record.times,
    }
