"""A sheet on a terminal: the answer first, at most the lines asked for, nothing wider than the screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sheet_examples
from driftscope.records.kinds.half_precision import HalfPrecision
from driftscope.report import kinds
from driftscope.report.sheet import HeatMap, Mark, Sheet, Table
from driftscope.report.terminal import lines
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


@given(
    width=st.integers(40, 120),
    heads=st.lists(
        st.sampled_from(["axis", "smallest margin", "in floors", "expected steps", "n"]), min_size=2, max_size=9
    ),
    numbers=st.lists(
        st.sampled_from(["6.18e+05", "about 12,000", "0", "1.2e-300", "-0.00123"]), min_size=9, max_size=9
    ),
)
def test_no_number_of_a_table_is_cut_however_narrow_it_is(width: int, heads: list[str], numbers: list[str]) -> None:
    row = tuple(Mark(text) for text in numbers[: len(heads)])
    text = sheet_text.render(Sheet("t", "good", "same", "r", sections=(Table("T", tuple(heads), (row,)),)), width=width)
    words = text.split()
    for number in numbers[: len(heads)]:
        assert set(number.split()) <= set(words), text
    assert all(word in words for head in heads for word in head.split()), text
    assert max(map(len, text.split("\n"))) <= width


def test_a_wide_matrix_stands_in_parts_each_with_the_names_of_its_rows() -> None:
    names = tuple(f"program{i}" for i in range(8))
    squares = tuple(tuple(Mark(f"{i}.{j}") for j in range(8)) for i in range(8))
    sheet = Sheet("t", "bad", "d", "r", sections=(HeatMap("Pairs", names, names, squares),))
    text = sheet_text.render(sheet, width=60)
    assert text.count("\nprogram0 ") == 2
    assert all(f" {name}" in text for name in names)
    wide = sheet_text.render(
        Sheet("t", "bad", "d", "r", sections=(HeatMap("Pairs", names, names, squares),)), width=100
    )
    assert wide.count("\nprogram0 ") == 1


def test_a_list_of_runs_is_whole_at_60_columns() -> None:
    line = {"run": "gemm-0001", "study": "layer_norm", "state": "finished", "cells": 4, "finished": 4, "failed": 0,
            "started": "2026-11-23T05:44:00+00:00", "place": "this machine", "problems": []}  # fmt: skip
    narrow, wide = (runs_text.listing([line] * 2, "runs", width=w) for w in (60, 110))
    assert "…" not in narrow
    assert all(str(value) in narrow for value in line.values() if value != [])
    assert max(map(len, narrow.split("\n"))) <= 60
    assert len(wide.split("\n")) == 4  # twin: where there is room a run is one line


def test_numbers_are_never_shortened_and_texts_beside_them_are() -> None:
    text = runs_text.table(["dtype", "drift", "words"], [["float32", 1.234567e-7, "word " * 30]], width=40)
    assert "1.235e-07" in text
    assert "…" in text
    assert max(map(len, text.split("\n"))) <= 40


@pytest.mark.parametrize("width", [40, 60, 100])
def test_finished_lines_are_folded_under_what_they_say(width: int) -> None:
    code = "keep = ['" + "a/very/long/name/of/a/node" * 5 + "']"
    text = f"torch.sum, 256 terms\n  verified     {'rows replayed bit for bit ' * 6}\n  {code}\n  short"
    folded = lines.folded(text, width, whole=[code]).split("\n")
    assert all(len(line) <= width or line.strip() == code for line in folded)
    assert f"  {code}" in folded
    assert folded[0] == "torch.sum, 256 terms"
    assert folded[-1] == "  short"
    begun = [line for line in folded if line.startswith("  verified     rows")]
    assert len(begun) == 1
    if width < 100:
        assert any(line.startswith(" " * 15) and line.strip() for line in folded)


def test_a_half_precision_check_fits_the_screen() -> None:
    answer = "everything fits float16: rounding every operator's result leaves a relative error of 3.2e-04"
    half = HalfPrecision(answer, "net", "float16", error=3.2e-4)
    assert max(map(len, kinds.text_of(half, width=60, color=False).split("\n"))) <= 60


def test_a_table_whose_wrapped_cells_are_cut_is_said_to_be_elsewhere() -> None:
    long = "a cause that takes a good many words to say " * 5
    rows = tuple((f"{i} and {i + 1}", "DIFFERENT", long) for i in range(9))
    text = sheet_text.render(Sheet("t", "bad", "d", "r", sections=(Table("Every pair", ("p", "v", "why"), rows),)))
    assert "more: “Every pair”" in text
    few = Sheet("t", "bad", "d", "r", sections=(Table("Every pair", ("p", "v", "why"), rows[:2]),))
    assert "more:" not in sheet_text.render(few)  # twin: what is whole is not said to be elsewhere
    assert sheet_text.render(few).split().count("takes") == 10


def test_a_map_says_what_its_signs_mean_and_no_percent_sign_begins_a_line() -> None:
    grid = HeatMap("Pairs", ("a", "b"), ("a", "b"), ((Mark(""), Mark("=")), (Mark("="), Mark(""))), note="= same bits.",
                   legend=(("good", "a colour"),))  # fmt: skip
    rows = tuple((f"pair {k}", "word " * k + f"still differ by 0.018 % {'x' * k}") for k in range(30))
    sheet = Sheet("t", "bad", "d", "r", sections=(grid, Table("Every pair", ("pair", "reason"), rows)))
    for width in (40, 60, 80):
        text = sheet_text.render(sheet, width=width, lines=200)
        assert "= same bits." in text
        assert "a colour" not in text
        assert not [line for line in text.split("\n") if line.lstrip().startswith("%")]
