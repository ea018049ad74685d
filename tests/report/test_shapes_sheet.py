"""A check of shapes is drawn from its record alone: page, terminal, JSON."""

from __future__ import annotations

import dataclasses

import pytest

from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.shape_report import ShapeBroadcast, ShapeCandidate, ShapePoint, ShapeRecord, ShapeRelation
from driftscope.report import kinds
from driftscope.report.sheet import HeatMap, Table
from driftscope.report.sheets import shapes


def record(**changes) -> ShapeRecord:
    points = [((2, 4), True, "right", "right"), ((1, 4), True, "lost", "wrong"), ((2, 1), True, "right", "right"),
              ((1, 1), True, "lost", "right"), ((0, 4), False, "invalid", "accepts-more")]  # fmt: skip
    given = {
        "headline": "Net exported by Dim.AUTO: 2 of 4 shapes right, 2 lost",
        "program": "Net",
        "axes": ("x.shape[0]", "x.shape[1]"),
        "example": (2, 4),
        "free": (True, True),
        "relations": (ShapeRelation("x.shape[0] != 1", "guard", True, file="net.py", line=7, expression="if n == 1:"),),
        "mode": "Dim.AUTO",
        "spec_code": "dynamic_shapes = {}",
        "points": tuple(ShapePoint(s, v, {"export": e, "unguarded": o, "onnx": o}) for s, v, e, o in points),
        "targets": ("export", "unguarded", "onnx"),
        "findings": (Finding("S021", "the ONNX file is wrong", where=Where(file="net.py", line=7)),),
        "broadcasts": (ShapeBroadcast(("a.shape[0]", "b.shape[0]"), (True, False), {"Dim.AUTO": "lost"}),),
    }
    return ShapeRecord(**{**given, **changes})


def sections(one: ShapeRecord, kind: type) -> dict[str, object]:
    return {s.title: s for s in shapes.sheet_of(one).sections if isinstance(s, kind)}


def test_the_answer_counts_wrong_before_lost_and_leaves_out_the_program_without_checks():
    sheet = shapes.sheet_of(record())
    assert (sheet.tone, sheet.headline) == ("bad", "silently wrong")
    only_lost = record(targets=("export", "unguarded"))
    assert shapes.sheet_of(only_lost).tone == "fair"
    assert shapes.headline_of(only_lost) == "shapes lost"


def test_nothing_lost_is_good_and_nothing_exported_is_neither():
    fine = tuple(ShapePoint((n, 4), True, {"export": "right"}) for n in range(3))
    assert shapes.tone_of(record(points=fine, targets=("export",))) == "good"
    assert shapes.tone_of(record(mode="", points=(), targets=())) == "unsure"


def test_the_picture_shows_the_worst_outcome_of_a_square():
    grids = sections(record(), HeatMap)
    exported = next(grid for title, grid in grids.items() if title.startswith("The exported program"))
    assert exported.rows == ("0", "1", "2")
    assert exported.columns == ("1", "4")
    texts = [[mark.text for mark in row] for row in exported.squares]
    assert texts == [["", "–"], ["lost", "lost"], ["✓", "✓"]]
    onnx = next(grid for title, grid in grids.items() if title.startswith("ONNX"))
    assert onnx.squares[1][1].text == "wrong"
    assert onnx.squares[1][1].tone == "bad"


def test_relations_name_the_line_and_say_whether_they_are_checked():
    table = sections(record(), Table)["Relations between sizes"]
    assert [getattr(cell, "text", cell) for cell in table.rows[0]] == [
        "x.shape[0] != 1",
        "checked",
        "net.py:7",
        "if n == 1:",
    ]


def test_every_point_is_in_the_table_the_worst_first():
    table = sections(record(), Table)["Every shape tried"]
    assert len(table.rows) == 5
    assert table.rows[0][:2] == (1, 4)


def test_ways_of_broadcasting_are_a_picture():
    grid = sections(record(), HeatMap)["Broadcasting: which sizes may be 1"]
    assert grid.rows == ("a.shape[0]=1, b.shape[0]=p",)
    assert "Broadcasting: which sizes may be 1" not in sections(record(broadcasts=()), HeatMap)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_terminal_gets_the_answer_first_in_25_lines(width):
    lines = kinds.text_of(record(), width=width, color=False).split("\n")
    assert lines[0].startswith("silently wrong: Net exported")
    assert len(lines) <= 25
    assert all(len(line) <= width for line in lines)


def test_a_record_survives_json_and_is_read_by_its_schema(tmp_path):
    import json

    path = record().save(tmp_path / "shapes.json")
    again = kinds.record_of(json.loads(path.read_text()), str(path))
    assert again == record()
    assert "x.shape[0] != 1" in record().save(tmp_path / "shapes.html").read_text()


def test_code_to_paste_is_never_broken_and_the_map_has_its_legend():
    spec = (
        "dynamic_shapes = {\n    'x': {0: Dim.AUTO},\n}\n\ndef export():\n    with a.very.long.name.of.a.setting."
        + ("that.does.not.fit(backed_size_oblivious=True):\n")
    )
    text = kinds.text_of(record(spec_code=spec), width=60, color=False)
    assert "that.does.not.fit(backed_size_oblivious=True):" in text
    assert "W wrong without an error" in text
    assert "takes its process down" not in text  # only what is drawn is explained
    fine = tuple(ShapePoint((n, m), True, {"export": "right"}) for n in range(3) for m in range(3))
    assert "refuses" not in kinds.text_of(record(points=fine, targets=("export",), findings=()), width=60, color=False)


def grid(count: int) -> tuple[ShapePoint, ...]:
    """Points in which the model refuses a first size of 0 and the file is wrong at the largest one."""
    outcomes = ["invalid", *["right"] * (count - 2), "wrong"]
    return tuple(
        ShapePoint((a, b), a > 0, {"export": "right" if a else "invalid", "onnx": outcomes[a]})
        for a in range(count)
        for b in range(3)
    )


def test_rows_of_the_map_that_are_left_out_are_counted_and_the_legend_speaks_of_the_others():
    text = kinds.text_of(record(points=grid(14)), width=100, color=False)
    drawn = [line.split() for line in text.split("\n") if {*line.split()[1:]} & {"✓", "·", "W"} and "right" not in line]
    left = next(line for line in text.split("\n") if "more row" in line)
    assert int(left.split("and ")[1].split()[0]) + len(drawn) == 14
    # What is wrong is drawn wherever it is, and what is right beside it; the legend says what both mean.
    assert drawn[-1][0] == "13"
    assert "W" in drawn[-1]
    assert drawn[0][0] == "0"
    assert "W wrong" in text
    fine = tuple(dataclasses.replace(p, outcomes={**p.outcomes, "onnx": "right"}) for p in grid(14))
    assert "W wrong" not in kinds.text_of(record(points=fine), width=100, color=False)  # twin


@pytest.mark.parametrize("width", [60, 100])
def test_the_map_says_how_many_columns_do_not_fit(width):
    wide = tuple(
        ShapePoint((n, k), True, {"export": "right", "onnx": "wrong" if k == 2 else "right"})
        for n in range(1, 16) for k in (1, 2)
    )  # fmt: skip
    text = kinds.text_of(record(points=wide), width=width, color=False)
    assert ("more column" in text) == (width == 60)
    assert "W wrong" in text


def test_both_counts_of_shapes_are_explained():
    text = kinds.text_of(record(), width=100, color=False)
    assert "every shape tried, 5 (1 shape of them the model itself refuses)" in text
    assert "itself refuses" not in kinds.text_of(record(points=grid(4)[3:]), width=100, color=False)


def test_the_picture_of_what_is_wrong_comes_first_and_few_sections_start_in_sight_on_a_narrow_screen():
    titles = [s.title for s in shapes.sheet_of(record()).sections if not getattr(s, "aside", False)]
    assert [t.split(",")[0] for t in titles] == [
        "ONNX on onnxruntime", "Relations between sizes", "Export it like this"]  # fmt: skip
    # Where nothing is wrong the export's own picture is the one to look at.
    fine = [ShapePoint((n, k), True, {"export": "lost", "onnx": "right"}) for n in (1, 2) for k in (1, 2)]
    first = shapes.sheet_of(record(points=tuple(fine), targets=("export", "onnx"))).sections[0]
    assert (first.title.split(",")[0], first.aside) == ("The exported program", False)


def test_the_shapes_at_which_ways_were_compared_are_said_where_they_are_fewer():
    one = ShapeCandidate("Dim.AUTO", "Dim.AUTO", True, right=1, lost=1)
    tables = sections(record(candidates=(one,)), Table)
    assert tables["Ways of exporting"].note.endswith("They were compared at 2 of 4 shapes.")
    same = sections(record(candidates=(dataclasses.replace(one, right=3),)), Table)
    assert "compared" not in same["Ways of exporting"].note


@pytest.mark.parametrize("rows", [3, 9, 14])
@pytest.mark.parametrize("width", [60, 100])
def test_every_sentence_on_the_terminal_is_whole(width: int, rows: int):
    """The legend of a map with many rows, and what is said below it, take several lines each at 60 columns."""
    made = {"export": "right", "onnx": "wrong"}, {"export": "lost", "onnx": "lost"}
    points = tuple(
        ShapePoint((n, k), k != 3, made[n % 2]) for n in range(rows) for k in range(1, 8) if (n + k) % 3
    )  # some pairs of sizes were not tried
    text = kinds.text_of(record(points=points, targets=("export", "onnx")), width=width, color=False)
    flat = " ".join(text.split())
    assert "blank: no such shape tried more: " in flat or "more: the map of shapes" in flat
    assert flat.endswith("of them the model itself refuses): see --json or -o page.html")
    assert len(text.split("\n")) <= 25


def test_the_relations_name_files_from_the_project_and_not_from_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relation = ShapeRelation("a == b", "guard", True, file=str(tmp_path / "net.py"), line=7, expression="a + b")
    table = sections(record(relations=(relation,)), Table)["Relations between sizes"]
    assert table.rows[0][2] == "net.py:7"
    elsewhere = dataclasses.replace(relation, file="/home/somebody/deep/project/net.py")
    table = sections(record(relations=(elsewhere,)), Table)["Relations between sizes"]
    assert table.rows[0][2] == "project/net.py:7"


def test_what_is_printed_to_paste_is_python_that_exports():
    code = """\
import torch
from torch.export import Dim

batch = Dim("batch")

dynamic_shapes = {
    'input': {0: batch},
}


def export(model, args, kwargs=None):
    # Sizes 0 and 1 are traced like any other.
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
"""
    marks = """\
dynamic_shapes = {
    'x': {0: Dim.AUTO},
}


def export(model, args, kwargs=None):
    marks = {0: (0,)}
    tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    for number, axes in marks.items():
        for axis in axes:
            torch._dynamo.decorators.mark_unbacked(tensors[number], axis)
    return torch.export.export(model, args, kwargs, strict=True)
"""
    import torch

    for text in (code, marks):
        names = {"torch": torch, "model": torch.nn.ReLU(), "args": (torch.ones(3, 2),)}
        exec("\n".join(shapes.spec_of(record(spec_code=text))), names)  # noqa: S102
        assert isinstance(names["exported"], torch.export.ExportedProgram)


def test_the_first_line_names_the_line_that_the_first_finding_is_about():
    found = Finding("S021", "the ONNX file is wrong", "it was made for n != 1", where=Where(file="net.py", line=7))
    sheet = shapes.sheet_of(record(findings=(found,)))
    assert sheet.reason.endswith("2 of 4 shapes right, 2 lost. At net.py:7: it was made for n != 1.")
    # Twin: of a note, or where nothing is lost, nothing is added.
    note = dataclasses.replace(found, note=True)
    assert shapes.sheet_of(record(findings=(note,))).reason == record().headline
