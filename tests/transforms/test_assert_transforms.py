"""``ds.testing.assert_transforms`` as a user's test calls it, and the words of the answer."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds
from driftscope.records.kinds.transform_report import TransformFinding, TransformReport, TransformRun
from driftscope.records.verdict import FailOn
from driftscope.report.sheets.transforms import sheet_of
from driftscope.report.terminal.transforms import outcome_fails, record_fails, render

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)


def clean(v):
    return torch.tanh(v).sum()


def by_value(v):
    return v * 2 if v.sum() > 0 else v


def test_a_clean_function_passes():
    ds.testing.assert_transforms(clean, X)


def test_a_refusal_fails_with_place_and_edit():
    with pytest.raises(AssertionError, match=r"torch\.where\(v\.sum\(\) > 0, v \* 2, v\)"):
        ds.testing.assert_transforms(by_value, X, transforms=["vmap"])


def test_an_expected_refusal_passes_and_an_unexpected_success_fails():
    ds.testing.assert_transforms(by_value, X, transforms=["vmap", "grad"], expect={"vmap": "refused"})
    with pytest.raises(AssertionError, match="vmap: same, expected refused"):
        ds.testing.assert_transforms(clean, X, transforms=["vmap"], expect={"vmap": "refused"})


def test_an_expectation_of_what_is_not_checked_does_not_pass_in_silence():
    with pytest.raises(ValueError, match="expect names 'vmpa'; checked were vmap"):
        ds.testing.assert_transforms(clean, X, transforms=["vmap"], expect={"vmpa": "refused"})
    with pytest.raises(ValueError, match="expect names 'order'; checked were repeat, batch"):
        ds.testing.assert_invariant(torch.relu, X, axes="batch", expect={"order": "different"}, explain=False)


def test_fail_on_different_accepts_a_refusal():
    ds.testing.assert_transforms(by_value, X, transforms=["vmap"], fail_on="different")


@pytest.mark.parametrize(
    ("outcome", "limits"),
    [
        ("same", ()),
        ("random", ()),
        ("plain-refuses", ()),
        ("rounding", ("rounding",)),
        ("refused", ("rounding", "precision", "function")),
        ("not-reproducible", ("rounding", "precision", "function")),
        ("wrong", ("rounding", "precision", "function", "different")),
    ],
)
def test_which_outcome_fails_at_which_limit(outcome, limits):
    assert {limit.value for limit in FailOn if outcome_fails(outcome, limit)} == set(limits)


def report(outcomes, findings=()):
    runs = tuple(TransformRun(name, outcome, "a reason") for name, outcome in outcomes.items())
    return TransformReport("f (mine.py:3)", outcomes, tuple(findings), runs)


def finding(**values):
    values = {"code": "T001", "what": "kept holds a tensor", "transform": "vmap", "transforms": ("vmap",), **values}
    return TransformFinding(**values)


def test_notes_never_decide():
    harmless = report({"vmap": "same"}, [finding(note=True)])
    assert not record_fails(harmless, FailOn.PRECISION)
    assert record_fails(report({"vmap": "same"}, [finding()]), FailOn.PRECISION)


def test_the_answer_is_short_whatever_was_found():
    many = report({f"t{i}": "refused" for i in range(30)}, [finding(what=f"thing {i} " * 30) for i in range(40)])
    for width in (60, 80, 100):
        # A narrow terminal gets more lines, not less of the answer.
        lines = render(many, width=width).splitlines()
        assert len(lines) * width <= 25 * 100
        assert max(map(len, lines)) <= width
        assert "more" in lines[-1]


def test_the_sheet_names_every_outcome_and_shows_the_patch():
    patch = "--- a/mine.py\n+++ b/mine.py\n"
    sheet = sheet_of(report({"vmap": "refused", "grad": "same"}, [finding(fix="do it", verified=True, patch=patch)]))
    assert (sheet.tone, sheet.headline) == ("fair", "refused")
    table, edits, listing = sheet.sections
    assert [row[0] for row in table.rows] == ["vmap", "grad"]
    assert [row[1].tone for row in table.rows] == ["fair", "good"]
    assert edits.rows[0][-1].tone == "good"
    assert listing.text == patch
    clean_sheet = sheet_of(report({"vmap": "same"}))
    assert (clean_sheet.tone, len(clean_sheet.sections)) == ("good", 1)


def test_the_record_comes_back_from_its_file(tmp_path):
    found = ds.check_transforms(by_value, X, transforms=("vmap",))
    assert TransformReport.from_dict(found.to_dict()).to_dict() == found.to_dict()
