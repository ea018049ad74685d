"""What of one record must not contradict anything else of it, whatever it is printed on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from driftscope.records.first_line import share
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.pages import page
from driftscope.report.terminal.comparison import render

#: Findings that say that the two are not the same program; none of them stands beside a verdict that says they are.
AGAINST = re.compile(r"N001|N006|N007|N008|N009|N010|W00[4-689]|W01[0-2]|R003|O006")
_SAME = (Verdict.IDENTICAL, Verdict.ROUNDING)


def contradictions(record: Comparison) -> list[str]:
    """Return what contradicts something else, in words."""
    found = [*_in_the_record(record)]
    for width in (60, 100):
        found += [f"{width} columns: {words}" for words in _in_the_text(record, width)]
    if record.answer and _squeezed(record.answer) not in _squeezed(page.markdown(record).replace("\\", "")):
        found.append("Markdown gives another answer")
    return found


def _in_the_record(c: Comparison) -> Iterator[str]:
    acting = [f for f in c.findings if not f.note]
    if c.outputs and c.verdict is not max((o.verdict for o in c.outputs), key=lambda v: v.rank):
        yield f"the verdict is {c.verdict}, the outputs' {[str(o.verdict) for o in c.outputs]}"
    if c.verdict in _SAME and (against := [f.code for f in acting if AGAINST.match(f.code)]):
        yield f"{c.verdict} beside {against}"
    if c.verdict is Verdict.DIFFERENT and not acting:
        yield "DIFFERENT without a finding"
    if c.verdict is Verdict.DIFFERENT and re.search(r"(?<!not )the same function|ordinary rounding$", c.answer):
        yield f"DIFFERENT: {c.answer}"
    if c.verdict in _SAME and "computes something else" in c.answer:
        yield f"{c.verdict}: {c.answer}"
    if "cause is not known" in c.answer and (acting and acting[0].code != "R003"):
        yield f"no known cause beside {acting[0]}"
    place = re.match(r"(?:B computes something else from|at) ([^ ,]+)", c.answer)
    if place and place[1] != acting[0].where.node:
        yield f"the answer names {place[1]}, the finding {acting[0].where.node}"
    yield from _sizes(c)


def _sizes(c: Comparison) -> Iterator[str]:
    """The same measurement, in the answer, in the findings and in the outputs."""
    lifted = {share(o.lifted_size, whose) for o in c.outputs if o.lifted_size is not None for whose in ("its", "their")}
    said = re.findall(r"(?:still differs? by|program's output is off by) (.+?)(?:\.?$|\. |\.?\n)", c.answer)
    for f in c.findings:
        said += re.findall(r"program's output is off by (.+?)(?:\.?$|\. |\.?\n)", f"{f.what}\n{f.why}")
    for size in said:
        if size.rstrip(".") not in lifted:
            yield f"{size} is not what the outputs say: {sorted(lifted)}"
    for o in c.outputs:
        if o.verdict is Verdict.IDENTICAL and (o.mismatched or o.max_abs):
            yield f"{o.path} is IDENTICAL and {o.mismatched} elements differ by up to {o.max_abs}"
        if o.verdict in (Verdict.DIFFERENT, Verdict.INCONCLUSIVE) and wording.closer(o) != wording.NOTHING:
            yield f"{o.path} is {o.verdict} and {wording.closer(o)} is closer"
        # The tolerance is offered for a test of this very pair.
        numbers = [abs(float(v)) for v in o.worst_values or () if re.fullmatch(r"-?[\d.]+(e[-+]\d+)?", v)]
        size = max(numbers, default=0.0)
        if (
            o.verdict is Verdict.ROUNDING
            and o.tolerance is not None
            and o.max_abs is not None
            and (o.max_abs > o.tolerance.atol + o.tolerance.rtol * size)
        ):
            yield f"{o.path} is ROUNDING and fails its own tolerance: {o.max_abs}, {o.tolerance}"


def _in_the_text(c: Comparison, width: int) -> Iterator[str]:
    text = render(c, width=width)
    flat = _squeezed(text)
    acting, notes = [f for f in c.findings if not f.note], [f for f in c.findings if f.note]
    if not text.startswith(str(c.verdict)):
        yield "the first line does not begin with the verdict"
    for o in c.outputs:
        if len(c.outputs) <= 6 and _squeezed(f"{o.path}{o.verdict}") not in flat:
            yield f"the table does not say that {o.path} is {o.verdict}"
    if acting and acting[0].fix and _squeezed(wording.fix_of(acting[0])) not in flat:
        yield "the fix of the first finding is not there whole"
    shown = [re.match(r"([A-Z]\d{3})( note)?(?: |$)", line) for line in text.split("\n")]
    given = [0, 0]
    for head in filter(None, shown):
        given[1 if head[2] else 0] += 1
    for k, noun in enumerate(("finding", "note")):
        more = re.search(rf"(\d+) {noun}s? ", re.sub(r"\s+", " ", text[text.rfind("more: see") - 40 :]))
        left = int(more[1]) if more and "more: see" in text else 0
        if given[k] + left != len((acting, notes)[k]):
            yield f"{given[k]} {noun}s shown, {left} more, {len((acting, notes)[k])} in the record"


def _squeezed(text: str) -> str:
    """Words without the spaces between them: a terminal may break a line at any of these."""
    return re.sub(r"\s+", "", text)
