"""Many pairs in one study: found, compared, kept and counted."""

from __future__ import annotations

import csv
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import driftscope as ds
from driftscope.studies.comparison_study.pairs import listing_of


def scaled(path: Path, factor: float) -> Path:
    """Write a model that multiplies by a number."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "c"], ["y"], name="scale")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor("c", TensorProto.FLOAT, [], [factor])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def listed(folder: Path, *lines: dict[str, str]) -> Path:
    path = folder / "pairs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path


def test_a_row_for_each_pair_and_what_was_made_is_not_made_again(tmp_path: Path) -> None:
    for name, factor in (("one.onnx", 1.5), ("same.onnx", 1.5), ("other.onnx", 2.5)):
        scaled(tmp_path / name, factor)
    path = listed(tmp_path, {"name": "good", "a": "one.onnx", "b": "same.onnx", "inputs": "x=2x3:float32"},
                  {"name": "bad", "a": "one.onnx", "b": "other.onnx", "inputs": ""})  # fmt: skip
    study = ds.studies.comparisons(path, workers=0, store=tmp_path / "runs", run="r")
    assert {row["pair"]: row["verdict"] for row in study.rows} == {"good": "IDENTICAL", "bad": "DIFFERENT"}
    bad = study.rows[1]
    assert bad["finding"]
    assert bad["node"] == "scale"
    assert bad["max_abs"] > 0
    assert "1 IDENTICAL, 1 DIFFERENT" in study.conclusion
    # What is said of a pair is its answer, with place and cause, and the change that was tried.
    assert (
        f"bad: DIFFERENT ({bad['finding']}): B computes something else from scale on: its constant" in study.conclusion
    )
    assert bad["fix"] in study.conclusion
    assert "(tried: it works)" in study.conclusion
    told: list[str] = []
    again = ds.studies.comparisons(path, workers=0, store=tmp_path / "runs", run="r", progress=told.append)
    assert again.rows == study.rows
    assert any("0 of 2 cells to run" in line for line in told)


def test_a_pair_that_cannot_be_loaded_is_a_row_and_the_others_stay(tmp_path: Path) -> None:
    scaled(tmp_path / "one.onnx", 1.5)
    path = listed(tmp_path, {"a": "missing.onnx", "b": "one.onnx"}, {"a": "one.onnx", "b": "one.onnx"})
    study = ds.studies.comparisons(path, workers=0)
    assert [row["outcome"] == "ok" for row in study.rows] == [False, True]
    assert len(study.failures) == 1


def test_pairs_of_a_folder_go_by_name(tmp_path: Path) -> None:
    for name in ("a.pt2", "a.onnx", "a.fp16.onnx", "b.onnx", "b.opt.onnx", "alone.onnx", "sub/c.pt2", "sub/c.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    pairs = listing_of(str(tmp_path)).pairs
    assert {name: Path(pair.a).name for name, pair in pairs.items()} == {
        "a.onnx": "a.pt2", "a.fp16.onnx": "a.pt2", "b.opt.onnx": "b.onnx", "sub/c.onnx": "c.pt2",
    }  # fmt: skip


def test_a_list_knows_files_beside_it_and_changes_its_digest_with_them(tmp_path: Path) -> None:
    scaled(tmp_path / "one.onnx", 1.5)
    first = listing_of(str(listed(tmp_path, {"a": "one.onnx", "b": "package.module:name"})))
    (pair,) = first.pairs.values()
    assert (pair.a, pair.b) == (str(tmp_path / "one.onnx"), "package.module:name")
    second = listing_of(str(listed(tmp_path, {"a": "one.onnx", "b": "package.module:other"})))
    assert first.digest != second.digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n", "no pair"),
        ("a,c\nx,y\n", "columns a, c"),
        ("a,b\nx,\n", "line 2"),
        ("name,a,b\nn,x,y\nn,x,z\n", "repeats the name 'n'"),
        ("", "columns none"),
        ("a,b,a\nx,y,z\n", "columns a, b, a; .* each once"),
        ("a,b\n\n\nx,\n", "line 4"),
        ('name,a,b\n"of two\nlines",x,y\nn,x,\n', "line 4"),
    ],
)
def test_a_list_that_is_none_is_bad_input(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    with pytest.raises(ds.InputError, match=words):
        listing_of(str(path))


def test_empty_lines_between_pairs_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("a,b\n\nx,y\n\n\nx,z\n")
    assert list(listing_of(str(tmp_path / "pairs.csv")).pairs) == ["x | y", "x | z"]


def test_an_empty_folder_and_a_missing_list_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ds.InputError, match="no pair"):
        listing_of(str(tmp_path))
    with pytest.raises(ds.InputError, match="there is no list"):
        listing_of(str(tmp_path / "none.csv"))
