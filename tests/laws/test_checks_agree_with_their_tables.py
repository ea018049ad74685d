"""The first line of a check follows from the table below it, whatever the outcomes and findings are."""

from __future__ import annotations

import itertools
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import record_examples
from driftscope.records.finding import Where
from driftscope.records.kinds.invariance_report import AXES, InvarianceFinding, InvarianceReport
from driftscope.records.kinds.invariance_report import OUTCOMES as AXIS_OUTCOMES
from driftscope.records.kinds.matrix import DriftMatrix
from driftscope.records.kinds.transform_report import OUTCOMES, TransformFinding, TransformReport
from driftscope.report import kinds
from driftscope.report.sheets.invariance import WORDS

AGREE = ("same", "rounding", "random")
TRANSFORMS = ("vmap", "grad", "jvp", "hessian")


@st.composite
def transform_reports(draw: Any) -> TransformReport:
    names = draw(st.lists(st.sampled_from(TRANSFORMS), min_size=1, unique=True))
    findings = tuple(
        TransformFinding(
            "T009", f"what {k}", draw(st.sampled_from(["", f"why {k}"])), note=draw(st.booleans()), transform=name,
            where=Where(file="m.py", line=draw(st.sampled_from([None, 10 + k])), expression=f"x{k}"),
        )
        for k, name in enumerate(draw(st.lists(st.sampled_from(names), max_size=3)))
    )  # fmt: skip
    return TransformReport("f (m.py:1)", {n: draw(st.sampled_from(list(OUTCOMES))) for n in names}, findings=findings)


@given(transform_reports())
def test_of_transforms_it_names_the_worst_and_counts_the_others(report: TransformReport) -> None:
    line = kinds.first_line_of(report)
    agree = [name for name, outcome in report.outcomes.items() if outcome in AGREE]
    bad = [name for name, outcome in report.outcomes.items() if outcome == report.worst and outcome not in AGREE]
    counted = re.search(r"(\d+) (?:others?|transforms?) gives? the plain program's values", line)
    assert int(counted[1] if counted else 0) == len(agree)
    assert not bad or line.startswith(f"{report.worst}: {', '.join(bad)}")
    acting = {f"m.py:{f.where.line}" for f in report.findings if not f.note and (not bad or f.transform in bad)}
    assert all(place in acting for place in re.findall(r"m\.py:\d+", line))


@st.composite
def invariance_reports(draw: Any) -> InvarianceReport:
    axes = draw(st.lists(st.sampled_from(sorted(AXES)), min_size=1, unique=True))
    findings = tuple(
        InvarianceFinding("I001", f"{axis} found", note=draw(st.booleans()), axis=axis)
        for axis in draw(st.lists(st.sampled_from(axes), max_size=3))
    )
    outcomes = {axis: draw(st.sampled_from(list(AXIS_OUTCOMES))) for axis in axes}
    return InvarianceReport("p", outcomes, {axis: f"{axis} reason" for axis in axes}, findings)


@given(invariance_reports())
def test_of_invariance_it_speaks_of_axes_with_the_worst_outcome(report: InvarianceReport) -> None:
    line = kinds.first_line_of(report)
    assert line.startswith(f"{WORDS.get(report.worst, report.worst)}: ")
    worst = {axis for axis, outcome in report.outcomes.items() if outcome == report.worst}
    acting = {f.axis for f in report.findings if not f.note}
    if report.worst in ("different", "refused"):
        assert "by rounding alone" not in line
        assert any(axis in line for axis in worst)
        assert all(f"{axis} found" not in line for axis in acting - worst)


EXAMPLES = (record_examples.identical, record_examples.rounding, record_examples.precision,
            record_examples.different, record_examples.inconclusive)  # fmt: skip


@given(st.lists(st.sampled_from(EXAMPLES), min_size=3, max_size=3))
def test_of_a_matrix_it_quotes_a_pair_of_the_verdict_it_gives(made: list[Any]) -> None:
    names = ("one", "two", "three")
    pairs = {pair: make() for pair, make in zip(itertools.combinations(names, 2), made, strict=True)}
    matrix = DriftMatrix(names, pairs, tuple((n,) for n in names))
    line = kinds.first_line_of(matrix)
    worst = max((c.verdict for c in pairs.values()), key=lambda v: v.rank)
    assert line.startswith(f"{worst}: of 3 pairs, ")
    assert sum(map(int, re.findall(r"(\d+) [A-Z]+\b", line.partition(". ")[0]))) == 3
    quoted = re.search(r"\. (\w+) \(B\) against (\w+) \(A\): (.+)$", line)
    if quoted:
        pair = matrix[quoted[2], quoted[1]]
        assert (pair.verdict, pair.answer) == (worst, quoted[3])
