"""The page of limitations says what happens today: each example's outcome, finding and repair."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

import pytest

from transforms.torch_abilities import WRITES_THROUGH_A_MASK

PAGE = Path(__file__).parents[2] / "docs" / "gallery" / "limitations_of_torch_func.py"

# example -> (outcome under vmap, codes of findings that are no notes, whether an edit was tried and works)
EXPECTED = {
    "stores_globally": ("same", {"T001"}, True),
    "returns_both": ("same", set(), False),
    "gradient_inside": ("refused", {"T012"}, True),
    "backward_inside": ("refused", {"T012"}, True),
    "jacobian_inside": ("refused", {"T012"}, True),
    "hessian_inside": ("refused", {"T012"}, True),
    "jvp_inside": ("refused", {"T012"}, True),
    "pops_and_prints": ("same", {"T002", "T003"}, False),
    "uses_what_it_pops": ("wrong", {"T002"}, False),
    "pops_an_argument": ("same", {"T002"}, False),
    "adds_into_the_shared": ("refused", {"T007"}, False),
    "diagonal_of_zeros": ("refused", {"T006"}, True),
    "diagonal_of_new_zeros": ("same", set(), False),
    "writes_out": ("refused", {"T008"}, True),
    "relu": ("refused", {"T009"}, True),
    "root_or_zero": ("refused", {"T009"}, True),
    "by_its_largest": ("refused", {"T010"}, True),
    "unit": ("refused", {"T010"}, True),
    "positions": ("refused", {"T011"}, False),
    "any_sum": ("refused", {"T009"}, True),
    "positions_of_two": ("same", set(), False),
    "zeroed": ("same", set(), False) if WRITES_THROUGH_A_MASK else ("refused", {"T011"}, True),
    "adds_numpy_noise": ("wrong", {"T004"}, False),
}


@pytest.fixture(scope="module")
def page():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = runpy.run_path(str(PAGE))
    return names["CHECKED"], printed.getvalue()


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.sampled(3)
def test_each_example_has_its_outcome_finding_and_repair(page, name):
    report = page[0][name]
    outcome, codes, edited = EXPECTED[name]
    acting = [f for f in report.findings if not f.note]
    assert report.outcomes["vmap"] == outcome
    assert {f.code for f in acting} == codes
    assert any(f.patch and f.verified for f in acting) is edited
    assert all(f.fix for f in acting)


def test_the_batch_by_path_equals_the_loop_on_the_page(page):
    assert page[1].count("equal to the loop: True") == 5
    assert "equal to the loop: False" not in page[1]
