"""The answer to "is it still the same program?" in plain words, made from what a comparison measured and found."""

from __future__ import annotations

import re
from collections.abc import Sequence

from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.user_code import written
from driftscope.records.verdict import Verdict
from driftscope.records.words import all_of, part_of


def answer_of(verdict: Verdict, reason: str, findings: Sequence[Finding], outputs: Sequence[OutputRecord]) -> str:
    """Say what an engineer in a hurry needs: the place, the cause, the size; no unit that has to be looked up.

    Returns
    -------
    str
        One or two sentences. ``reason`` is the judge's own sentence, with its units and limits; it is returned where
        nothing plainer can be said of the same evidence.
    """
    if verdict is Verdict.DIFFERENT:
        return _different(findings, outputs) or reason
    if verdict is Verdict.ROUNDING:
        return _rounding(outputs) or reason
    if verdict is Verdict.PRECISION:
        return _precision(findings, outputs) or reason
    if verdict is Verdict.INCONCLUSIVE:
        return _undecided(reason, findings)
    if verdict is Verdict.IDENTICAL and len(outputs) > 1 and reason.partition(": ")[2].startswith("the same bits ("):
        return f"the same bits in {all_of(len(outputs), 'output')}"
    return reason


def _undecided(reason: str, findings: Sequence[Finding]) -> str:
    """Say where random numbers are drawn, or what draws them."""
    first = next((f for f in findings if not f.note), None)
    if first is not None and first.code == "N017" and first.where.node:
        return f"{ended(reason)} The first NaN is made at {place_of(first.where)}."
    if first is not None and first.code == "N012":
        return "the program amplifies rounding beyond its own values, even in float64: no function can be certified"
    if first is None or all(f.code != "N014" for f in findings):
        return reason
    if first.code in ("O003", "O004"):
        return f"{ended(reason)} {ended(first.what)}"
    place = place_of(first.where) if first.where.node else ""
    return f"{ended(reason)} It draws random numbers at {place}." if place else reason


def _different(findings: Sequence[Finding], outputs: Sequence[OutputRecord]) -> str:
    first = next((f for f in findings if not f.note), None)
    differing = [o for o in outputs if o.lifted is not None and _function_differs(o)]
    if first is not None and not differing and first.code == "N010" and first.where.node:
        output = next((o for o in outputs if o.path == first.where.output), None)
        return f"{ended(_what_differs(first))} {'' if output is None else ended(output.reason)}".strip()
    if first is None or not differing:
        return _unlifted(findings, outputs)
    said = _what_differs(first) or ("B computes something else" if first.code == "N001" else "")
    if not said:
        return ""
    largest = max((s for o in differing if (s := o.lifted_size) is not None and s == s), default=None)
    if largest is None:
        # One side's float64 run left the range; what became of the numbers is a size of its own.
        return f"{ended(said)} {ended(differing[0].reason.partition(';')[0].partition(', and ')[0])}"
    which, whose = "the outputs still differ", "their"
    if len(differing) < len(outputs):
        which = part_of(len(differing), len(outputs), "output", "still differs", "still differ")
        whose = "its" if len(differing) == 1 else "their"
    without, left = first.evidence.get("without"), first.evidence.get("left")
    rest = f", and {without} by {share(float(left), whose)}" if without and left is not None else ""
    return f"{ended(said)} In float64 {which} by {share(largest, whose)}{rest}."


def _function_differs(output: OutputRecord) -> bool:
    limit = output.lifted_threshold
    return output.verdict is Verdict.DIFFERENT and limit is not None and not (output.lifted or 0.0) <= limit


#: What was noticed before any number was computed, or by leaving one optimisation out: facts that need no place.
_TOLD_BY_THEMSELVES = ("O003", "O004", "O005", "O006", "O013", "O015")


def _what_differs(finding: Finding) -> str:
    cause = str(finding.evidence.get("cause") or "").strip()
    place = place_of(finding.where)
    if finding.code in ("N001", "N010") and place:
        return f"B computes something else from {place} on" + (f": {cause}" if cause else "")
    if finding.code.startswith("W"):
        said = finding.what.strip()
        return f"at {place}, {said}" if place else said
    return finding.what.strip() if finding.code in _TOLD_BY_THEMSELVES else ""


def ended(sentence: str) -> str:
    """Return a sentence with one full stop; one that trails off in three of them stays as it is."""
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def place_of(where: Where) -> str:
    """Write a place as ``node (module, file:line)``, as much of it as is known."""
    file = written(where.file) if where.file else ""
    source = f"{file}:{where.line}" if file and where.line else file
    first, *others = [part for part in (where.node, where.module, source) if part] or [""]
    return f"{first} ({', '.join(others)})" if others else first


def share(relative: float, whose: str = "its") -> str:
    """Write a relative size: as a percentage where one can be read, else as a multiple or a power of ten."""
    if relative == float("inf"):
        return "more than any number"
    if 0.995 <= relative < 1.05:
        return "100 %"
    if relative >= 1.05:
        return f"{relative:.2g} times {whose} size"
    return f"{100 * relative:.2g} %" if relative >= 1e-4 else f"{relative:.1e} of {whose} size"


def _rounding(outputs: Sequence[OutputRecord]) -> str:
    worst = max(outputs, key=lambda o: o.floors or 0.0, default=None)
    drifting = [o for o in outputs if o.verdict is Verdict.ROUNDING]
    if worst is not None and worst.lifted is None and worst.floors and worst.reason.startswith(BY_FLOOR):
        return _unlifted((), outputs)
    formats = {(o.a.dtype, o.b.dtype) for o in drifting if o.a is not None and o.b is not None and o.max_abs == 0.0}
    one, other = formats.pop() if len(formats) == 1 and all(o.max_abs == 0.0 for o in outputs) else ("", "")
    if one != other:
        return f"the same numbers, as {other} where A gives {one}"
    # A tie, or a drift that no floor measures, has a sentence of its own.
    if worst is None or not drifting or any(o.lifted is None or not o.floors for o in drifting):
        return ""
    large = next((o for o in drifting if not o.reason.endswith("ordinary rounding")), None)
    if large is not None:
        return ""
    return f"the same function; they differ by {_times(worst.floors or 0.0)} ordinary rounding"


#: How the judge begins where only rounding's size decided.
BY_FLOOR = "by floor only"


def _unlifted(findings: Sequence[Finding], outputs: Sequence[OutputRecord]) -> str:
    """Where B has no float64 run, the size of the drift is all there is: it tells a bug only if that is larger."""
    if any(o.verdict is Verdict.DIFFERENT and not o.reason.startswith(BY_FLOOR) for o in outputs):
        return ""  # a shape, a missing output or NaN needs no float64
    worst = max((o for o in outputs if o.reason.startswith(BY_FLOOR)), key=lambda o: o.floors or 0.0, default=None)
    if worst is None or not worst.floors or worst.lifted is not None:
        return ""
    size = f"they differ by {_times(worst.floors)} ordinary rounding"
    if worst.verdict is not Verdict.DIFFERENT:
        return f"{size}. B cannot be evaluated in float64, so a bug smaller than that would not be seen."
    first = next((f for f in findings if not f.note), None)
    noticed = "" if first is None else _what_differs(first)
    if noticed:
        return f"{ended(noticed)} {size[0].upper()}{size[1:]}; B cannot be evaluated in float64."
    return f"{size}. B cannot be evaluated in float64, so the cause is not known."


# How the judge ends its sentence on a drift above rounding: its size in floors, where, and what was found to make it.
_CAUSED = re.compile(r" floors?(?: \([^)]*\))?: (?P<how>consistent with|explained by) (?P<cause>.+)$")


# How it ends its sentence on a value that left the range of its format.
_OVERFLOWED = re.compile(
    r": (?P<what>(?:over|under)flow in [AB], .+? (?:exceeds the largest|is below the smallest) [^,]+, [^ ]+"
    r"|(?:rounding|approximation) in [AB], .+? is not finite)(?: at .*)?$"
)


def _overflow(finding: Finding, outputs: Sequence[OutputRecord]) -> str:
    output = next((o for o in outputs if o.path == finding.where.output), None)
    found = _OVERFLOWED.search(output.reason) if output is not None else None
    place = place_of(finding.where)
    if output is None or found is None or not place:
        return ""
    overflow, number = found["what"].split(", ", 1)
    # Infinity in the output itself is a difference without a size.
    seen = output.reason[: found.start()].partition(";")[0] if output.kind == "nan" else ""
    size = f"they differ by {_times(output.floors)} ordinary rounding" if output.floors and not seen else seen
    return f"{overflow} at {place}: {number}" + (f"; {size}" if size else "")


def _precision(findings: Sequence[Finding], outputs: Sequence[OutputRecord]) -> str:
    leading = next((f for f in findings if not f.note), None)
    if leading is not None and leading.code == "N004":
        return _overflow(leading, outputs)
    first = next((f for f in findings if not f.note and f.code == "N003"), None)
    output = next((o for o in outputs if first is not None and o.path == first.where.output), None)
    found = _CAUSED.search(output.reason) if output is not None else None
    if first is None or output is None or found is None or not output.floors:
        return ""
    # What is left of it in floors of that format is for those who ask how it was judged.
    cause = re.sub(r", [^,]* floors of that format$", "", found["cause"])
    node = first.where.node or ""
    around = place_of(first.where).removeprefix(node).strip() if node in cause else ""  # the cause names the node
    place = f" {around}" if around else ""
    size = f"they differ by {_times(output.floors)} ordinary rounding, {found['how']} {cause}{place}"
    return size if output.lifted is None else f"the same function; {size}"


def _times(floors: float) -> str:
    """Write a multiple with the two digits that a measured floor is good for."""
    if floors >= 100:
        return f"{float(f'{floors:.2g}'):,.0f} times"
    return f"{floors:.1f} times" if 1.0 <= floors < 9.95 else f"{floors:.2g} times"
