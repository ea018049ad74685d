"""A check of function transforms on a terminal: the answer, one line per outcome, then what to change and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from driftscope.records.finding import Finding
from driftscope.records.first_line import ended
from driftscope.records.kinds.transform_report import OUTCOMES, TransformFinding, TransformReport
from driftscope.records.user_code import written
from driftscope.records.verdict import FailOn
from driftscope.records.words import listed
from driftscope.report import wording
from driftscope.report.terminal.lines import MAX_LINES, MIN_WIDTH, Lines, room
from driftscope.report.terminal.sheet import STYLES

TONE = {
    "same": "good",
    "rounding": "good",
    "random": "good",
    "plain-refuses": "fair",
    "not-reproducible": "unsure",
    "refused": "fair",
    "wrong": "bad",
}


_EXPRESSION = 80  # columns of an expression in the first line; below it stands whole


def render(record: TransformReport, *, width: int = 100, color: bool = False, lines: int = MAX_LINES) -> str:
    """Write a check for a person who has ten seconds.

    Parameters
    ----------
    record : TransformReport
    width : int
        Columns to fit, at least 40.
    color : bool
        Whether to use ANSI colours.
    lines : int
        At most this many, without a final newline.
    """
    lines = room(lines, width)
    page = Lines(max(width, MIN_WIDTH), color)
    tone, headline, reason = verdict_of(record)
    page.add(Text.assemble((f"{headline}: ", STYLES[tone]), reason))
    page.paragraph(wording.one_line(record.function), "dim", indent=2)
    for outcome, names in by_outcome(record):
        page.labelled(f"  {outcome}", " ".join(names), STYLES[TONE[outcome]], indent=20)
    left = _findings(page, told_once(record.findings), lines - 1)
    if left:
        page.add(Text(f"more: {wording.counted(left, 'finding')}: see --json or -o page.html", "dim"))
    return "\n".join(page.lines[:lines])


def by_outcome(record: TransformReport) -> list[tuple[str, list[str]]]:
    """Return the transforms of each outcome, the most serious outcome first."""
    order = list(OUTCOMES)
    found = {outcome: [n for n, o in record.outcomes.items() if o == outcome] for outcome in reversed(order)}
    return [(outcome, names) for outcome, names in found.items() if names]


def actions(record: TransformReport) -> list[TransformFinding]:
    """Return the findings that are no notes."""
    return [f for f in record.findings if not f.note]


def told_once(findings: Sequence[TransformFinding]) -> tuple[TransformFinding, ...]:
    """Return findings without those that ask for the same edit at the same place: each names all its transforms.

    Those that ask for none are told apart by what they say.
    """
    seen: dict[tuple[object, ...], TransformFinding] = {}
    for finding in findings:
        says = (finding.fix,) if finding.fix else (finding.what, finding.why)
        seen.setdefault((finding.code, finding.note, finding.where, *says), finding)
    return tuple(seen.values())


def outcome_fails(outcome: str, limit: FailOn) -> bool:
    """Whether an outcome is bad enough to end with exit code 1."""
    bad = {
        FailOn.DIFFERENT: {"wrong"},
        FailOn.PRECISION: {"wrong", "refused", "not-reproducible"},
        FailOn.FUNCTION: {"wrong", "refused", "not-reproducible"},
        FailOn.ROUNDING: {"wrong", "refused", "not-reproducible", "rounding"},
        FailOn.NEVER: set(),
    }
    return outcome in bad[limit]


def record_fails(record: TransformReport, limit: FailOn) -> bool:
    """Whether a check ends with exit code 1: an outcome that is bad enough, or a finding to act on."""
    found = limit in (FailOn.PRECISION, FailOn.FUNCTION, FailOn.ROUNDING) and bool(actions(record))
    return found or any(outcome_fails(outcome, limit) for outcome in record.outcomes.values())


def verdict_of(record: TransformReport) -> tuple[str, str, str]:
    """Return tone, headline and the sentence behind it."""
    worst = record.worst
    names = [name for name, outcome in record.outcomes.items() if outcome == worst]
    agree = sum(TONE[outcome] == "good" for outcome in record.outcomes.values())
    waiting = actions(record)
    if TONE[worst] != "good":
        cause = next((f for f in waiting if f.transform in names), None)
        at = f" at {_place(cause)}" if cause is not None and cause.where.line else ""
        # Where the cause is known it says more than what the outcome means.
        why = f". {ended(wording.one_line(cause.why))}" if cause is not None and cause.why else f" ({OUTCOMES[worst]})."
        gives = "gives" if agree == 1 else "give"
        rest = f" {wording.counted(agree, 'other')} {gives} the plain program's values." if agree else ""
        return TONE[worst], worst, f"{listed(names, 4)}{at}{why}{rest}"
    said = f"{wording.counted(agree, 'transform')} {'gives' if agree == 1 else 'give'} the plain program's values"
    if waiting:
        at = f"at {_place(waiting[0])}: " if waiting[0].where.line else ""
        return "fair", "same values", f"{said}, yet {at}{waiting[0].what}"
    return "good", "same" if worst == "same" else f"same ({worst})", said


def _place(finding: TransformFinding) -> str:
    where = finding.where
    expression = f" `{wording.elide(wording.one_line(where.expression), _EXPRESSION)}`" if where.expression else ""
    file = f"{written(where.file)}:" if where.file else "line "
    return f"{file}{where.line}{expression}"


def _findings(page: Lines, findings: Sequence[TransformFinding], lines: int) -> int:
    """Append as many findings as fit, and return how many are left."""
    waiting: list[TransformFinding] = sorted(findings, key=wording.seriousness)
    while waiting:
        one = Lines(page.width, page.color)
        one.blank()
        _finding(one, waiting[0])
        if len(page.lines) + len(one.lines) > lines and len(waiting) < len(findings):
            break
        page.lines.extend(one.lines)
        waiting.pop(0)
    return len(waiting)


def _finding(page: Lines, finding: TransformFinding) -> None:
    head = f"{finding.code} note" if finding.note else finding.code
    page.labelled(head, wording.place(finding.where), indent=len(head) + 1)
    under = ", ".join(finding.transforms or ((finding.transform,) if finding.transform else ()))
    at = finding.where.expression or ""
    told = [("at", at), ("under", under), ("what", finding.what), ("why", finding.why), ("fix", fix_words(finding))]
    for label, text in told:
        if text and not (finding.note and label in ("why", "under")):
            # The place and the fix are always whole: they are what is acted on.
            limit = {"at": None, "fix": None}.get(label, room(3, page.width))
            page.labelled(f"  {label}", wording.one_line(text), indent=9, limit=limit)


def fix_words(finding: Finding) -> str:
    """Return the fix and how it was tried."""
    if not finding.fix or not finding.verified:
        return finding.fix
    tried = finding.evidence.get("repair")
    tried = tried if isinstance(tried, Mapping) else {}
    examples = f" on {wording.counted(int(tried['examples']), 'example')}" if tried.get("examples") else ""
    also = " and their derivative" if tried.get("derivative") not in (None, "none") else ""
    bits = ", same bits" if tried.get("values") == tried.get("derivative") == "same" else ""
    return f"{finding.fix} (tried{examples}{also}: it works{bits})"
