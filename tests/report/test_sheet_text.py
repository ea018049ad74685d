"""A sheet on a terminal: the answer first, at most the lines asked for, nothing wider than the screen."""

from __future__ import annotations

import pytest

import sheet_examples
from driftscope.report.sheet import HeatMap, Mark, Sheet, Table
from driftscope.report.terminal import runs as runs_text
from driftscope.report.terminal import sheet as sheet_text


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize(
    "sheet", [sheet_examples.everything(), sheet_examples.everything("x" * 300), sheet_examples.long(50)]
)
def test_it_fits_the_screen(sheet: Sheet, width: int) -> None:
    lines = sheet_text.render(sheet, width=width).split("\n")
    # A narrower screen wraps what it shows, and cuts nothing of it.
    assert len(lines) <= (25 if width >= 100 else 2500 // width)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(f"{sheet.headline}: ")


def test_a_hostile_name_sends_no_escape() -> None:
    assert "\x1b" not in sheet_text.render(sheet_examples.everything("\x1b[2Jgone"))


def test_what_does_not_fit_is_said_to_be_elsewhere() -> None:
    assert "more: “Nodes”" in sheet_text.render(sheet_examples.long(50))
    assert "more:" not in sheet_text.render(sheet_examples.long(5))


def test_tones_are_colours_only_where_there_is_colour() -> None:
    sheet = Sheet("t", "bad", "DIFFERENT", "r", sections=(
        Table("Rows", ("name", "v"), (("a", Mark("bad", "bad")),)),
        HeatMap("Grid", ("a",), ("b",), ((Mark("7", "bad"),),)),
    ))  # fmt: skip
    assert "\x1b[" in sheet_text.render(sheet, color=True)
    plain = sheet_text.render(sheet)
    assert "\x1b[" not in plain
    assert "Grid" in plain


@pytest.mark.parametrize("width", [40, 60, 100])
def test_wide_cells_of_a_study_are_wrapped_and_whole(width: int) -> None:
    variants = "A F.linear, Gemm, Gemm + Add, MatMul + Add, Cast(Gemm) + Add, torch.compile, FusedMatMul + Add"
    drawn = runs_text.table(("variants", "A", "B"), [(variants, "", "0.35"), ("B numpy", "0.35", "")],
                            width=width, wrapped=True)  # fmt: skip
    assert max(map(len, drawn.splitlines())) <= width
    assert "…" not in drawn
    assert all(word in drawn for word in variants.split())
    # The twin: a row of a list of runs stays on one line.
    assert len(runs_text.table(("run", "what"), [("gemm-0001", "x " * 80)], width=width).splitlines()) == 3
