"""Numbers, names and sentences, spelled the same way on the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.output import OutputRecord, Side, Tolerance
from driftscope.records.user_code import written
from driftscope.records.verdict import Verdict
from driftscope.records.words import clean as clean  # noqa: PLC0414 - a word of this room

NOTHING = "–"  # not measured


def one_line(text: object) -> str:
    """Return ``text`` cleaned, on one line."""
    return " ".join(clean(text).split())


def elide(text: str, width: int) -> str:
    """Shorten ``text`` to ``width`` columns by leaving out its middle: both ends of a path tell where it is."""
    if len(text) <= width:
        return text
    if width < 5:
        return text[:width]
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def number(value: float | None, digits: int = 2) -> str:
    """Write a measurement with ``digits`` significant digits; small and large ones in scientific notation."""
    if value is None:
        return NOTHING
    try:
        value = float(value)
    except OverflowError:  # a whole number from a damaged record
        value = math.inf
    if not math.isfinite(value):
        return {"inf": "∞", "-inf": "-∞"}.get(str(value), "NaN")
    if value == 0:
        return "0"
    if 1e-2 <= abs(value) < 1e4:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{digits - 1}e}"


def steps(value: float | None) -> str:
    """Write a number of ulps: a count, so no decimals; thousands apart until it is too long to read."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return number(value)
    return f"{int(value):,}" if abs(value) < 1e7 else f"{value:.1e}"


def shape(dims: Iterable[int] | None) -> str:
    """Write a shape as people say it: ``64x10``; ``scalar`` for no dimensions."""
    if dims is None:
        return ""
    return "x".join(str(d) for d in dims) or "scalar"


def type_of(side: Side | None) -> str:
    """Write dtype and shape of one side."""
    if side is None:
        return "missing"
    return f"{one_line(side.dtype)} {shape(side.shape)}".strip()


def types(output: OutputRecord) -> str:
    """Write dtype and shape of an output, both sides when they disagree."""
    a, b = type_of(output.a), type_of(output.b)
    if output.a is None and output.b is None:
        return ""
    return a if a == b else f"A {a}, B {b}"


def error_floors(side: Side | None) -> float | None:
    """Return a side's error against its own float64 run, in floors."""
    return None if side is None else side.error_floors


def usable_tolerance(output: OutputRecord) -> Tolerance | None:
    """Return the suggested tolerance, unless nothing was decided: what cannot be judged cannot be tested either."""
    return None if output.verdict is Verdict.INCONCLUSIVE else output.tolerance


#: Two functions have two exact results, and a program that does not repeat itself has none.
_NOT_RANKED = (Verdict.DIFFERENT, Verdict.INCONCLUSIVE)


def closer(output: OutputRecord) -> str:
    """Name the side that is closer to float64; of two functions neither is, nor one of two errors that read alike."""
    if output.verdict in _NOT_RANKED:
        return NOTHING
    errors = [side.error for side in (output.a, output.b) if side is not None and side.error is not None]
    if output.closer in ("a", "b") and len(errors) == 2 and number(errors[0]) == number(errors[1]):
        return "equal"
    return {"a": "A", "b": "B", "equal": "equal"}.get(output.closer or "", NOTHING)


def closer_sentence(outputs: Iterable[OutputRecord]) -> str:
    """Say which side is closer to the exact result, over all outputs; empty when that says nothing.

    Of two different functions neither is closer, and two errors that print the same are equal.
    """
    known = [o for o in outputs if o.closer in ("a", "b", "equal")]
    if any(o.verdict in _NOT_RANKED for o in known):
        return ""
    if not known:
        return ""
    if len(known) == 1:
        (only,) = known
        if only.closer == "equal":
            return "both sides are equally close to float64"
        near, far = (only.a, only.b) if only.closer == "a" else (only.b, only.a)
        shares = ""
        # In absolute numbers: the two sides may have floors of different formats.
        if near and far and near.error is not None and far.error is not None:
            if number(near.error) == number(far.error):
                return "both sides are equally close to float64"
            shares = f": rms error {number(near.error)}, the other {number(far.error)}"
        return f"{closer(only)} is closer to float64{shares}"
    counts = {side: sum(o.closer == side for o in known) for side in ("a", "b", "equal")}
    words = (("a", "A on {}"), ("b", "B on {}"), ("equal", "equal on {}"))
    parts = [words_.format(counts[side]) for side, words_ in words if counts[side]]
    return f"closer to float64: {', '.join(parts)} of {len(known)} outputs"


def program_line(description: object) -> str:
    """Write who a side is and what runs it."""
    if not isinstance(description, Mapping):
        return one_line(description) if description else "not described"
    name, runtime = (one_line(description.get(key) or "") for key in ("name", "runtime"))
    return ", ".join(part for part in (name, runtime) if part) or "not described"


def place(where: Where) -> str:
    """Write a place, its source path from the project's folder."""
    return one_line(replace(where, file=written(where.file) if where.file else None))


def fix_of(finding: Finding) -> str:
    """Write what to change, and whether that was tried."""
    if not finding.fix:
        return ""
    tried = {True: " (tried: it works)", False: " (tried: it is not enough)", None: ""}[finding.verified]
    return f"{finding.fix}{tried}"


def message(finding: Finding) -> str:
    """Write a finding as sentences on one line, for hosts that show one line: what, why, and what to change."""
    fix = fix_of(finding)
    said = [one_line(text) for text in (finding.what, finding.why, fix and f"Fix: {fix}") if text]
    ended = [text if text.endswith((".", "!", "?")) else f"{text}." for text in said[:-1]]
    return " ".join([*ended, *said[-1:]])


def seriousness(finding: Finding) -> int:
    """Order in which findings are shown: things to act on before notes."""
    return 1 if finding.note else 0


def counted(count: int, noun: str) -> str:
    """Write ``1 finding``, ``3 findings``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def floors(value: float | None) -> str:
    """Write ``1 floor``, ``0.68 floors``."""
    text = number(value)
    return f"{text} floor{'' if text == '1' else 's'}"


def next_step(comparison: Comparison) -> str:
    """Say what to do now, in one sentence."""
    actions = [f for f in comparison.findings if not f.note]
    first = actions[0] if actions else None
    if comparison.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING):
        if first is not None:
            return f"driftscope rule {first.code} explains the first finding"
        if any(usable_tolerance(o) for o in comparison.outputs):
            return "use the tolerance above in your test; -v says how it was judged, -o page.html shows it"
        return "nothing to mend; -o page.html keeps the evidence"
    if first is None:
        return "-o page.html shows all the evidence"
    if first.fix:
        return f"make that change and compare again; driftscope rule {first.code} explains the code"
    return f"driftscope rule {first.code} explains the code; -o page.html shows all the evidence"


def thresholds_line(thresholds: Mapping[str, Any], outputs: Iterable[OutputRecord]) -> str:
    """Name the limits this comparison was judged by; empty when the record carries none."""
    parts = []
    rounding, large = thresholds.get("rounding"), thresholds.get("large")
    if isinstance(rounding, (int, float)):
        beyond = f", unusual to {number(large)}" if isinstance(large, (int, float)) else ""
        parts.append(f"rounding up to {number(rounding)} floors{beyond}")
    limits = sorted({o.lifted_threshold for o in outputs if o.lifted_threshold is not None})
    if limits:
        span = number(limits[0]) if limits[0] == limits[-1] else f"{number(limits[0])} to {number(limits[-1])}"
        parts.append(f"same function up to a lifted drift of {span}")
    elif isinstance(thresholds.get("lifted"), (int, float)):
        parts.append(f"same function up to a lifted drift of {number(thresholds['lifted'])}")
    return "; ".join(parts)


def sort_key(value: float | None) -> float:
    """Return the order of a number in a column: not measured first, then by size, then infinity, then NaN."""
    if value is None:
        return -1.0
    if value != value:
        return 1.7e308
    return min(float(value), 1.6e308)
