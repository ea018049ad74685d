"""Reading many comparisons: how many are the same program, and which are not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from driftscope.records.first_line import ended
from driftscope.records.kinds.study import Statement, StudyRecord
from driftscope.records.runs.rows import OK
from driftscope.records.runs.tables import frame_of
from driftscope.records.verdict import Verdict
from driftscope.studies.sentences import counted

_SHOWN = ("verdict", "finding", "node", "floors", "lifted")
_NAMED = 5  # pairs that are not the same, named in words; the table has them all


def matrix(record: StudyRecord, value: str | None = None) -> Any:
    """Return the pairs with their verdicts and numbers, or with one column."""
    table = frame_of(tuple(row for row in record.rows if row.get("outcome") == OK)).set_index("pair")
    return table[[value]] if value is not None else table[[name for name in _SHOWN if name in table]]


def plot(record: StudyRecord, path: Path) -> Path:
    """Draw how many pairs got each verdict."""
    from driftscope.studies.figures import bars, saved

    found = _verdicts(record)
    figure = bars(list(found), {"pairs": [float(n) for n in found.values()]}, title="verdicts", label="pairs")
    return saved(figure, path)


def conclude(record: StudyRecord) -> tuple[Statement, ...]:
    """Count the verdicts, and name the first pairs that are not the same program."""
    found = _verdicts(record)
    words = ", ".join(f"{count} {verdict}" for verdict, count in found.items())
    said = [Statement(f"{counted(sum(found.values()), 'pair')}: {words or 'none was compared'}.", dict(found))]
    same = (Verdict.IDENTICAL, Verdict.ROUNDING)
    parted = [row for row in record.rows if row.get("outcome") == OK and row.get("verdict") not in same]
    for row in parted[:_NAMED]:
        code = f" ({row['finding']})" if row.get("finding") else ""
        fix = f" Fix: {row['fix']} (tried: it works)" if row.get("fix") else ""
        text = f"{row['pair']}: {row['verdict']}{code}: {ended(row['what'])}{fix}"
        said.append(Statement(text, {"pair": row["pair"]}))
    if len(parted) > _NAMED:
        more = len(parted) - _NAMED
        said.append(Statement(f"{counted(more, 'more pair')} are not the same program; see the table.", {"more": more}))
    return tuple(said)


def _verdicts(record: StudyRecord) -> dict[str, int]:
    found = Counter(str(row["verdict"]) for row in record.rows if row.get("outcome") == OK)
    return {str(v): found[str(v)] for v in Verdict if found[str(v)]}
