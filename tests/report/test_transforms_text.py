"""A check of transforms on a terminal and on a page: what several transforms show alike is said once."""

from __future__ import annotations

import pytest

from driftscope.records.finding import Where
from driftscope.records.kinds.transform_report import TransformFinding, TransformReport
from driftscope.report import kinds
from driftscope.report.sheets import transforms as sheets

NAMES = ("grad", "vjp", "jvp")


def report(*fixes: str) -> TransformReport:
    where = Where(file="net.py", line=7, expression="x.detach()")
    findings = tuple(
        TransformFinding("T020", "no derivative flows through `x.detach()`", fix=fix, where=where, note=True,
                         transform=name, cause="T020", transforms=NAMES)
        for name, fix in zip(NAMES, fixes, strict=True)
    )  # fmt: skip
    return TransformReport(function="f (net.py:6)", outcomes=dict.fromkeys(NAMES, "same"), findings=findings)


@pytest.mark.parametrize("width", [60, 100])
def test_equal_findings_are_said_once_and_all_are_in_the_record(width: int) -> None:
    same = report("write x", "write x", "write x")
    assert kinds.text_of(same, width=width, color=False).count("T020") == 1
    assert len(sheets.sheet_of(same).findings) == 1
    assert len(same.to_dict()["findings"]) == 3
    # Twin: another fix is other news.
    assert kinds.text_of(report("write x", "write y", "write x"), width=width, color=False).count("T020") == 2
