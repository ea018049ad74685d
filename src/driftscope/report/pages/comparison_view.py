"""What the page draws of a comparison beside its sheet: outputs with their gauges, and the nodes on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.pages import gauges, node_chart
from driftscope.report.sheets.comparison import GLYPHS

_OPEN_DETAILS = 8  # with more outputs than this, their details start closed


def drawings(record: Comparison, anchor: str) -> dict[str, Any]:
    """Return what is drawn of one comparison; ``anchor`` is its id on the page."""
    return {
        "css": f"v-{record.verdict}",
        "first": f"{anchor}-outputs",
        "outputs": [output(o) for o in record.outputs],
        "sections": [],  # its table of outputs is drawn with gauges
        "tally": _tally(record),
        "way": node_chart.way_of(record, anchor),
        "closer": bool(wording.closer_sentence(record.outputs)),
        "open": len(record.outputs) <= _OPEN_DETAILS,
        "limits": wording.thresholds_line(record.thresholds, record.outputs),
    }


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
        "lifted": _cell(record.lifted_size, gauges.lifted_position(record.lifted)),
        "tau": gauges.lifted_position(record.lifted_threshold),
        "ulp": {"text": wording.steps(record.max_ulp), "sort": wording.sort_key(record.max_ulp)},
        "max_abs": _cell(record.max_abs),
        "error_a": _cell(error_a),
        "error_b": _cell(error_b),
        "closer": wording.closer(record),
        "reason": wording.one_line(record.reason),
        "facts": _facts(record),
        "tolerance": _tolerance(record),
    }


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
        limit = wording.number(record.lifted_threshold)
        if record.lifted_whole is not None:  # judged at the slice that stands furthest above it, not over the whole
            limit += f", judged where it is worst: {wording.number(record.lifted)}"
        facts.append(("Limit in float64", limit))
    return facts


def _tolerance(record: OutputRecord) -> dict[str, str] | None:
    t = wording.usable_tolerance(record)
    if t is None:
        return None
    return {"code": f"rtol={t.rtol:.2g}, atol={t.atol:.2g}", "reason": wording.one_line(t.reason)}


def _cell(value: float | None, position: float | None = None) -> dict[str, Any]:
    return {
        "text": wording.number(value),
        "sort": wording.sort_key(value),
        "x": None if position is None else round(position, 1),
    }
