"""The answer to "is it still the same program?" in plain words, made from what a comparison measured and found."""

from __future__ import annotations

import re
from collections.abc import Sequence

from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.user_code import written
from driftscope.records.verdict import Verdict


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
    return reason


def _different(findings: Sequence[Finding], outputs: Sequence[OutputRecord]) -> str:
    first = next((f for f in findings if not f.note), None)
    drifts = [o.lifted for o in outputs if o.lifted is not None and _function_differs(o)]
    if first is None or not drifts:
        return _unlifted(outputs)
    said = _what_differs(first)
    largest = max(drifts)
    # NaN: one side's float64 run left the range; the place is worth saying, a size there is none.
    return f"{said}. In float64 the outputs still differ by {share(largest)}." if said and largest == largest else ""


def _function_differs(output: OutputRecord) -> bool:
    limit = output.lifted_threshold
    return output.verdict is Verdict.DIFFERENT and limit is not None and not (output.lifted or 0.0) <= limit


def _what_differs(finding: Finding) -> str:
    cause = str(finding.evidence.get("cause") or "").strip().rstrip(".")
    place = place_of(finding.where)
    if finding.code == "N001" and place:
        return f"B computes something else from {place} on" + (f": {cause}" if cause else "")
    if finding.code.startswith("W"):
        said = finding.what.strip().rstrip(".")
        return f"at {place}, {said}" if place else said
    return ""


def place_of(where: Where) -> str:
    """Write a place as ``node (module, file:line)``, as much of it as is known."""
    file = written(where.file) if where.file else ""
    source = f"{file}:{where.line}" if file and where.line else file
    first, *others = [part for part in (where.node, where.module, source) if part] or [""]
    return f"{first} ({', '.join(others)})" if others else first


def share(relative: float) -> str:
    """Write a relative size: as a percentage where one can be read, else as a multiple or a power of ten."""
    if relative == float("inf"):
        return "more than any number"
    if relative >= 0.995:
        return f"{relative:.2g} times their size"
    return f"{100 * relative:.2g} %" if relative >= 1e-4 else f"{relative:.1e} of their size"


def _rounding(outputs: Sequence[OutputRecord]) -> str:
    worst = max(outputs, key=lambda o: o.floors or 0.0, default=None)
    drifting = [o for o in outputs if o.verdict is Verdict.ROUNDING]
    if worst is not None and worst.lifted is None and worst.floors and worst.reason.startswith(BY_FLOOR):
        return _unlifted(outputs)
    # A tie, or a drift that no floor measures, has a sentence of its own.
    if worst is None or not drifting or any(o.lifted is None or not o.floors for o in drifting):
        return ""
    large = next((o for o in drifting if not o.reason.endswith("ordinary rounding")), None)
    if large is not None:
        return ""
    return f"the same function; they differ by {_times(worst.floors or 0.0)} ordinary rounding"


#: How the judge begins where only rounding's size decided.
BY_FLOOR = "by floor only"


def _unlifted(outputs: Sequence[OutputRecord]) -> str:
    """Where B has no float64 run, the size of the drift is all there is: it tells a bug only if that is larger."""
    worst = max((o for o in outputs if o.reason.startswith(BY_FLOOR)), key=lambda o: o.floors or 0.0, default=None)
    if worst is None or not worst.floors or worst.lifted is not None:
        return ""
    size = f"they differ by {_times(worst.floors)} ordinary rounding"
    if worst.verdict is Verdict.DIFFERENT:
        return f"{size}. B cannot be evaluated in float64, so the cause is not known."
    return f"{size}. B cannot be evaluated in float64, so a bug smaller than that would not be seen."


# How the judge ends its sentence on a drift above rounding: its size in floors, where, and what was found to make it.
_CAUSED = re.compile(r" floors?(?: \([^)]*\))?: (?P<how>consistent with|explained by) (?P<cause>.+)$")


def _precision(findings: Sequence[Finding], outputs: Sequence[OutputRecord]) -> str:
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
        return f"{floors:,.0f} times"
    return f"{floors:.1f} times" if 1.0 <= floors < 9.95 else f"{floors:.2g} times"
