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


@pytest.mark.parametrize("width", [60, 100])
def test_one_edit_at_one_place_is_asked_for_once_however_each_transform_sees_it(width: int) -> None:
    where = Where(file="net.py", line=7, expression="kept = x.sin()")
    seen = {"vmap": "after vmap, kept holds a tensor mapped by vmap", "grad": "after grad, kept holds a tracked tensor"}
    findings = tuple(
        TransformFinding("T001", what, fix="return it", where=where, transform=name, transforms=tuple(seen))
        for name, what in seen.items()
    )
    text = kinds.text_of(TransformReport("f", dict.fromkeys(seen, "same"), findings=findings), width=width, color=False)
    assert text.count("T001") == 1
    assert "under  vmap, grad" in text
