"""What is said of the rows of any study is true of them: NaN, equal numbers, yes and no, one row."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.records.kinds.study import StudyRecord
from driftscope.studies import general_views


def record(values: list[object], outcome: str = "ok", missing: int = 0) -> StudyRecord:
    rows = tuple({"size": i, "outcome": outcome, "words": "it broke", "v": v} for i, v in enumerate(values))
    return StudyRecord("mine", {"size": list(range(len(values)))}, rows, missing=missing)


@pytest.mark.parametrize(("values", "said"), [
    ([1.0, 2.0], ["mine: 2 rows from 2 sizes.", "v lies between 1 and 2, the largest at size=1."]),
    ([3.0], ["mine: 1 row from 1 size.", "v is 3 in the one row."]),
    ([3.0, 3.0], ["mine: 2 rows from 2 sizes.", "v is 3 in all 2 rows."]),
    ([math.nan, 1.0, 2.0], ["mine: 3 rows from 3 sizes.",
                            "v lies between 1 and 2, the largest at size=2; 1 row has NaN."]),
    ([math.nan], ["mine: 1 row from 1 size.", "v is NaN in the one row."]),
    ([True, False], ["mine: 2 rows from 2 sizes."]),
])  # fmt: skip
def test_the_range_of_a_result(values: list[object], said: list[str]) -> None:
    assert [s.text for s in general_views.conclude(record(values))] == said


@given(st.lists(st.floats(allow_infinity=False) | st.integers(-9, 9), min_size=1, max_size=6))
def test_no_range_contradicts_its_rows(values: list[float]) -> None:
    known = [float(v) for v in values if not math.isnan(v)]
    _, said = general_views.conclude(record(list(values)))
    if "lies between" in said.text:
        assert (said.evidence["smallest"], said.evidence["largest"]) == (min(known), max(known))
        low, high = said.text.split(" between ")[1].split(", the largest")[0].split(" and ")
        assert low != high
    assert ("NaN" in said.text) == (len(known) < len(values))


def test_failures_and_missing_cells_agree_with_their_number() -> None:
    (failed,) = general_views.failures(record([None], outcome="raised"))
    assert failed.text == "1 cell gave no result (1 raised); the first is size=0: it broke."
    (missing,) = general_views.unfinished(record([1.0], missing=1))
    assert missing.text.startswith("1 of ")
    assert " is not made yet: " in missing.text
