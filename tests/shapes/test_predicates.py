"""Conditions in plain Python and in JSON say what the arrays say; chosen conditions let nothing wrong pass."""

from __future__ import annotations

from pathlib import Path as FilePath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.errors import RecordError
from driftscope.records.paths import Path
from driftscope.shapes.conditions.expressions import Number, Operation, Size, holds, text
from driftscope.shapes.conditions.predicates import all_of, compiled, from_json, to_json
from driftscope.shapes.conditions.separating import UncheckedRuns, distinct, separate
from driftscope.shapes.probe.axes import Axis

NAMES = ("a", "b", "c")
AXES = tuple(Axis(i, Path((), name), None, 3) for i, name in enumerate(NAMES))
A, B = Size("a"), Size("b")

numbers = st.sampled_from([-3, -2, -1, 1, 2, 5, 9]).map(Number)
terms = st.recursive(
    st.one_of(numbers, st.sampled_from(NAMES).map(Size)),
    lambda inner: st.builds(
        lambda symbol, a, b: Operation(symbol, (a, b)),
        st.sampled_from(["+", "*", "//", "%", "max", "min"]),
        inner,
        inner,
    ),
    max_leaves=6,
)
conditions = st.builds(
    lambda symbol, a, b: Operation(symbol, (a, b)), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), terms, terms
)
points = st.lists(st.tuples(*[st.integers(0, 12)] * 3), min_size=1, max_size=12, unique=True)


@given(conditions, points)
def test_plain_python_agrees_with_arrays(condition, rows):
    columns = dict(zip(NAMES, np.array(rows, np.int64).T, strict=True))
    expected = holds(condition, columns, len(rows))
    assert [bool(compiled(condition)(sizes(row))) for row in rows] == expected.tolist()


@given(conditions)
def test_json_keeps_a_condition(condition):
    assert from_json(to_json(condition)) == condition


@pytest.mark.parametrize("data", [None, [], ["=="], ["import", 1], [["=="], 1], {"a": 1}])
def test_other_json_is_refused(data):
    with pytest.raises(RecordError, match="not a condition"):
        from_json(data)


def sizes(row):
    return dict(zip(NAMES, row, strict=True))


@given(points, st.sets(st.integers(0, 11)), st.lists(conditions, max_size=4))
@pytest.mark.slow
def test_no_wrong_point_passes(rows, chosen, recorded):
    wrong = [row for i, row in enumerate(rows) if i in chosen]
    right = [row for row in rows if row not in wrong]
    kept = separate(recorded, UncheckedRuns(AXES, right, wrong, []))
    if kept is not None:
        admits = all_of(kept)
        assert not any(admits(sizes(row)) for row in wrong)


def test_the_recorded_condition_that_explains_is_kept_and_the_needless_one_is_not():
    short = Operation("<=", (A, Number(4)))
    needless = Operation("!=", (B, Number(2)))
    right = [(a, b, 0) for a in range(5) for b in range(5)]
    wrong = [(a, b, 0) for a in range(5, 9) for b in range(5)]
    kept = separate([needless, short], UncheckedRuns(AXES, right, wrong, []))
    assert [text(term) for term in kept] == ["a <= 4"]


def test_a_condition_that_nothing_tested_is_kept():
    untested = Operation("<=", (A, Number(40)))
    right = [(a, 1, 0) for a in range(5)]
    assert separate([untested], UncheckedRuns(AXES, right, [], [])) == [untested]


def test_where_no_recorded_condition_fits_a_plain_one_is_found():
    right = [(a, b, 0) for a in range(2, 6) for b in range(5)] + [(0, 1, 0)]
    wrong = [(1, b, 0) for b in range(5)]
    kept = separate([], UncheckedRuns(AXES, right, wrong, []))
    assert [text(term) for term in kept] == ["a != 1"]


def test_nothing_tells_a_wrong_point_from_the_same_right_one():
    assert separate([], UncheckedRuns(AXES[:1], [(3,), (4,)], [(3,), (4,)], [])) is None


def test_what_the_original_refuses_is_kept_away_where_that_is_free():
    right = [(a, a, 0) for a in range(6)]
    unwanted = [(a, a + 1, 0) for a in range(6)]
    kept = separate([], UncheckedRuns(AXES, right, [], unwanted))
    admits = all_of(kept)
    assert all(admits(sizes(row)) for row in right)
    assert not any(admits(sizes(row)) for row in unwanted)


def test_the_manifest_speaks_of_files_in_its_folder_only(tmp_path: FilePath):
    from driftscope.shapes.covering.files import load_cover

    (tmp_path / "manifest.json").write_text(
        '{"schema": "driftscope/cover/1", "parameters": ["x"], "leaves": [["x", 1, "torch.float32"]], "constants": {},'
        ' "outputs": null, "programs": [{"file": "../p.pt2", "conditions": [], "origin": "", "points": 1}]}'
    )
    with pytest.raises(RecordError, match="not in its folder"):
        load_cover(tmp_path)


def test_what_says_nothing_or_the_same_again_is_left_out():
    same, swapped = Operation("==", (A, B)), Operation("==", (B, A))
    assert distinct([Number(True), Operation("==", (A, A)), same, swapped]) == [same]
    assert distinct([Operation("<=", (A, B)), Operation("<=", (B, A))]) == [
        Operation("<=", (A, B)),
        Operation("<=", (B, A)),
    ]


def test_one_is_not_true_although_python_says_so():
    assert Number(1) != Number(True)
    assert len({Number(1), Number(True)}) == 2
    assert [text(Operation("!=", (A, Number(value)))) for value in (True, 1)] == ["a != True", "a != 1"]
