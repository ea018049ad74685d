"""What the page shows of a record: rows and words, decided here so that the template only draws."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from driftscope.records.kinds.collection import Collection, Entry
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.pages import details, gauges, node_chart

GLYPHS = {
    Verdict.IDENTICAL: "=",
    Verdict.ROUNDING: "≈",
    Verdict.PRECISION: "↓",
    Verdict.INCONCLUSIVE: "?",
    Verdict.DIFFERENT: "≠",
}
_DEEPEST = 4  # levels of a mapping drawn as a list; deeper ones are written as JSON
_SHOWN_FINDINGS = 5  # the others are folded away
_EXCERPT_FINDINGS, _EXCERPT_ROWS = 3, 12  # in a notebook
_OPEN_DETAILS = 8  # with more outputs than this, their details start closed


def document(record: Comparison | Collection) -> dict[str, Any]:
    """Return everything the page template draws."""
    if isinstance(record, Collection):
        entries = [entry(e, f"entry-{i}") for i, e in enumerate(record.entries, start=1)]
        title, heading = wording.one_line(record.title), wording.one_line(record.title)
    else:
        entries = [entry(Entry("", "", record), "entry-1")]
        title, heading = f"{record.verdict}: {' vs '.join(_names(record))}", ""
    return {"title": title, "heading": heading, "entries": entries, "many": bool(heading), "shown": _SHOWN_FINDINGS}


def entry(source: Entry, anchor: str) -> dict[str, Any]:
    """Return what is drawn of one comparison."""
    record = source.comparison
    findings = [details.finding(f) for f in record.findings]
    return {
        "id": anchor,
        "title": wording.one_line(source.title),
        "comment": wording.one_line(source.comment),
        "verdict": str(record.verdict),
        "glyph": GLYPHS[record.verdict],
        "meaning": record.verdict.meaning,
        "reason": wording.one_line(record.answer),
        "sides": _sides(record),
        "figures": _figures(record),
        "findings": [f for f in findings if not f["note"]],
        "notes": [f for f in findings if f["note"]],
        "outputs": [output(o) for o in record.outputs],
        "tally": _tally(record),
        "way": node_chart.way_of(record, anchor),
        "closer": bool(wording.closer_sentence(record.outputs)),
        "open": len(record.outputs) <= _OPEN_DETAILS,
        "limits": wording.thresholds_line(record.thresholds, record.outputs),
        "command": wording.clean(record.command),
        "panels": _panels(record),
    }


def excerpt(record: Comparison) -> dict[str, Any]:
    """Return what the notebook version draws: the beginning of everything, and how much was left out."""
    drawn = entry(Entry("", "", record), "driftscope")
    more = (len(drawn["findings"]) - _EXCERPT_FINDINGS, "finding"), (len(drawn["notes"]), "note")
    remainder = " and ".join(wording.counted(count, noun) for count, noun in more if count > 0)
    return drawn | {"few": _EXCERPT_FINDINGS, "rows": _EXCERPT_ROWS, "remainder": remainder}


def output(record: OutputRecord) -> dict[str, Any]:
    """Return one row of the outputs table, with the values it is sorted by."""
    error_a, error_b = wording.error_floors(record.a), wording.error_floors(record.b)
    return {
        "path": wording.one_line(record.path),
        "types": wording.types(record),
        "verdict": str(record.verdict),
        "rank": record.verdict.rank,
        "glyph": GLYPHS[record.verdict],
        "floors": _cell(record.floors, gauges.floors_position(record.floors)),
        "lifted": _cell(record.lifted, gauges.lifted_position(record.lifted)),
        "tau": gauges.lifted_position(record.lifted_threshold),
        "ulp": {"text": wording.steps(record.max_ulp), "sort": _sort(record.max_ulp)},
        "max_abs": _cell(record.max_abs),
        "error_a": _cell(error_a),
        "error_b": _cell(error_b),
        "closer": wording.closer(record),
        "reason": wording.one_line(record.reason),
        "facts": _facts(record),
        "tolerance": _tolerance(record),
    }


def _names(record: Comparison) -> list[str]:
    sides = (record.programs.get(side) for side in ("a", "b"))
    return [wording.one_line(s.get("name") or "?") if isinstance(s, Mapping) else "?" for s in sides]


def _sides(record: Comparison) -> list[tuple[str, str, str]]:
    sides = []
    for key, name in zip(("a", "b"), _names(record), strict=True):
        described = record.programs.get(key)
        runtime = wording.one_line(described.get("runtime") or "") if isinstance(described, Mapping) else ""
        sides.append((key.upper(), name, runtime))
    return sides


# Where the judge found the largest drift, when that is not the whole tensor.
_PLACE = re.compile(r" relative at (axis [^(]+?) \(limit")


def _figures(record: Comparison) -> list[tuple[str, str, str]]:
    """Return the few numbers to read first: label, number, remark."""
    worst_floors = _largest(record.outputs, "floors")
    worst_lifted = _largest(record.outputs, "lifted")
    figures = []
    if worst_floors is not None:
        remark = "1.5 is where ordinary rounding ends"
        limit = record.thresholds.get("rounding")
        if isinstance(limit, (int, float)):
            remark = f"ordinary rounding ends at {wording.number(limit)}"
        figures.append(("Native drift", wording.floors(worst_floors.floors), remark))
    if worst_lifted is not None:
        # Of one slice it may be more than the last node's, which is measured over the whole tensor.
        place = _PLACE.search(worst_lifted.reason)
        largest = f"relative, largest at {place[1]}" if place else "relative"
        remark = f"{largest}; the limit is {wording.number(worst_lifted.lifted_threshold)}"
        figures.append(("Drift in float64", wording.number(worst_lifted.lifted), remark))
    different = sum(o.mismatched for o in record.outputs)
    total = sum(o.count for o in record.outputs)
    if total:
        figures.append(("Bits differ", f"{different:,}", f"of {wording.counted(total, 'element')}"))
    return [*figures, *_closer_figure(record)]


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
    return max(known, key=lambda o: _sort(getattr(o, name)), default=None)


def _tally(record: Comparison) -> list[tuple[str, int]]:
    counts = Counter(o.verdict for o in record.outputs)
    return [(str(v), counts[v]) for v in reversed(Verdict) if counts[v]]


def _facts(record: OutputRecord) -> list[tuple[str, str]]:
    facts = []
    if record.count:
        facts.append(("Bits differ", f"{record.mismatched:,} of {wording.counted(record.count, 'element')}"))
    if record.max_rel is not None or record.rms is not None:
        facts.append(("Largest relative", wording.number(record.max_rel)))
        facts.append(("rms", wording.number(record.rms)))
    if record.worst_index is not None:
        place = f"at [{', '.join(map(str, record.worst_index))}]"
        values = " A {}, B {}".format(*map(wording.one_line, record.worst_values)) if record.worst_values else ""
        facts.append(("Worst element", place + values))
    floor_a, floor_b = (side.floor if side else None for side in (record.a, record.b))
    if floor_a is not None or floor_b is not None:
        facts.append(("Noise floor", f"A {wording.number(floor_a)}, B {wording.number(floor_b)}"))
    if record.lifted_threshold is not None:
        facts.append(("Limit in float64", wording.number(record.lifted_threshold)))
    return facts


def _tolerance(record: OutputRecord) -> dict[str, str] | None:
    t = wording.usable_tolerance(record)
    if t is None:
        return None
    return {"code": f"rtol={t.rtol:.2g}, atol={t.atol:.2g}", "reason": wording.one_line(t.reason)}


def _panels(record: Comparison) -> list[tuple[str, Any]]:
    shown = (
        ("Programs", record.programs),
        ("Inputs", record.inputs),
        ("Evidence", record.evidence),
        ("Thresholds used", record.thresholds),
        ("Environment", record.environment),
        ("Seconds", record.times),
    )
    drawn = ((title, details.tree(data)) for title, data in shown)
    return [(title, data) for title, data in drawn if data]


def _cell(value: float | None, position: float | None = None) -> dict[str, Any]:
    return {"text": wording.number(value), "sort": _sort(value), "x": None if position is None else round(position, 1)}


def _sort(value: float | None) -> float:
    """Order of a number in a column: not measured first, then by size, then infinity, then NaN."""
    if value is None:
        return -1.0
    if value != value:
        return 1.7e308
    return min(float(value), 1.6e308)
