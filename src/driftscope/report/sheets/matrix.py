"""Several programs compared pairwise, as a sheet: who has the same bits, and who is how far from whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from driftscope.records.finding import Finding
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.matrix import DriftMatrix
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.sheet import HeatMap, Mark, Section, Sheet, Table
from driftscope.report.sheets.comparison import GLYPHS, TONE


def sheet_of(matrix: DriftMatrix) -> Sheet:
    """Draw a matrix."""
    sections: list[Section] = [_grid(matrix), _classes(matrix), _pairs(matrix)]
    if matrix.refused:
        sections.append(
            Table("Programs that did not run", ("program", "what the runtime said"), tuple(matrix.refused.items()))
        )
    findings = _named(_found(matrix))
    verdict = matrix.verdict if matrix.pairs else Verdict.INCONCLUSIVE
    return Sheet(
        title=" · ".join(matrix.names),
        tone=TONE[verdict],
        headline=str(verdict),
        reason=_reason(matrix),
        figures=(
            ("Programs", str(len(matrix.names)), "each run on the same inputs"),
            ("Classes of equal bits", str(len(matrix.classes)), "programs in one class cannot be distinguished"),
            *_closest(matrix),
        ),
        findings=findings,
        sections=tuple(sections),
    )  # fmt: skip


def _named(found: Iterable[tuple[str, str, Finding]]) -> tuple[Finding, ...]:
    """Each finding once, and of which programs it speaks: A and B mean others in every pair."""
    same: dict[tuple[str, str, str | None, str], tuple[Finding, list[str]]] = {}
    for a, b, f in found:
        same.setdefault((f.code, f.what, f.where.node, a), (f, []))[1].append(b)
    return tuple(
        replace(f, what=f"{' and '.join(others)} (B) against {a} (A): {f.what}")
        for (_, _, _, a), (f, others) in same.items()
    )


def _found(matrix: DriftMatrix) -> Iterator[tuple[str, str, Finding]]:
    """Findings against the first program, which is the reference, and those of other pairs that these do not explain.

    Where a program differs from the reference, its pairs with the others show the same cause once more, some from the
    other side: the fix would then be to bring the mistake into a program that is right.
    """
    off = {pair[1] for pair, c in matrix.pairs.items() if pair[0] == matrix.names[0] and _acts(c)}
    # The worst pair first: the headline is its verdict.
    for pair, comparison in sorted(matrix.pairs.items(), key=lambda item: -item[1].verdict.rank):
        if pair[0] == matrix.names[0] or not off & set(pair):
            yield from ((*pair, finding) for finding in _acts(comparison))


def _acts(comparison: Comparison) -> list[Finding]:
    return [f for f in comparison.findings if not f.note]


def _closest(matrix: DriftMatrix) -> tuple[tuple[str, str, str], ...]:
    if not matrix.closest:
        return ()
    error = wording.number(matrix.errors[matrix.closest[0]])
    return (("Closest to exact", ", ".join(matrix.closest), f"{error} from its own float64 evaluation"),)


def _reason(matrix: DriftMatrix) -> str:
    counted: dict[Verdict, int] = {}
    for comparison in matrix.pairs.values():
        counted[comparison.verdict] = counted.get(comparison.verdict, 0) + 1
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counted.items(), key=lambda i: -i[0].rank))
    a, b, _ = next(_found(matrix), ("", "", None))
    worst = a and matrix[a, b].verdict is matrix.verdict and matrix[a, b].answer
    first = f". {b} (B) against {a} (A): {worst}" if worst else ""
    return f"of {wording.counted(len(matrix.pairs), 'pair')}, {counts}{first}"


def _grid(matrix: DriftMatrix) -> HeatMap:
    return HeatMap(
        "Pairwise drift in floors",
        matrix.names,
        matrix.names,
        tuple(tuple(_square(matrix, a, b) for b in matrix.names) for a in matrix.names),
        note="The largest of the outputs, in units of ordinary rounding, which ends at 1.5; = are the same bits.",
        legend=(
            ("good", "same bits or rounding"),
            ("fair", "precision"),
            ("bad", "different"),
            ("unsure", "not decided"),
        ),
    )


def _square(matrix: DriftMatrix, a: str, b: str) -> Mark:
    if a == b:
        return Mark("", tip=a)
    if (a, b) not in matrix.pairs and (b, a) not in matrix.pairs:
        return Mark("–", tip="did not run")
    comparison = matrix[a, b]
    floors = [o.floors for o in comparison.outputs if o.floors is not None]
    same = comparison.verdict is Verdict.IDENTICAL
    text = "=" if same else wording.number(max(floors)) if floors else GLYPHS[comparison.verdict]
    level = 0.2 if same else 0.55 if comparison.verdict is Verdict.ROUNDING else 1.0
    return Mark(text, TONE[comparison.verdict], level, tip=f"{a} and {b}: {comparison.verdict}: {comparison.answer}")


def _classes(matrix: DriftMatrix) -> Table:
    rows = tuple((i, ", ".join(members)) for i, members in enumerate(matrix.classes, start=1))
    return Table("Classes of equal bits", ("class", "programs"), rows)


def _pairs(matrix: DriftMatrix) -> Table:
    rows = tuple(
        (f"{a} and {b}", Mark(str(c.verdict), TONE[c.verdict], sort=float(c.verdict.rank)), c.answer or c.reason)
        for (a, b), c in matrix.pairs.items()
    )
    return Table("Every pair", ("pair", "verdict", "reason"), rows, "A is the first of a pair, B the second.")
