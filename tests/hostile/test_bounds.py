"""A small file that stands for something enormous gets a sentence at once; its neighbour of ordinary size is taken."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import driftscope as ds
from driftscope.errors import DriftscopeError, InputError, ProgramError, RecordError, RuntimeRefused
from driftscope.programs.feeding.files import read_inputs
from driftscope.programs.runtimes.ort_refusals import own_words
from driftscope.records.json_text import parse_json
from driftscope.report.pages.page import read
from driftscope.studies.comparison_study.pairs import listing_of
from driftscope.studies.user_studies import load
from hostile import exported_files, large_files


@pytest.mark.parametrize("name", large_files.INPUTS)
def test_inputs_that_would_fill_the_memory_are_refused(tmp_path: Path, name: str) -> None:
    write, words = large_files.INPUTS[name]
    write(tmp_path / name)
    with pytest.raises(InputError, match=words) as refused:
        read_inputs(tmp_path / name)
    assert len(str(refused.value)) < 1000


def test_their_neighbours_are_read(tmp_path: Path) -> None:
    x = np.zeros((512, 512), np.float32)
    np.savez_compressed(tmp_path / "zeros.npz", x=x)
    np.save(tmp_path / "zeros.npy", x)
    torch.save({"x": torch.from_numpy(x), "more": (1, [2.0, "three"])}, tmp_path / "zeros.pt")
    (tmp_path / "zeros.json").write_bytes(large_files._polygraphy(large_files.npy((4,), bytes(16))))
    for name in ("zeros.npz", "zeros.npy", "zeros.pt", "zeros.json"):
        read_inputs(tmp_path / name)
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    assert read_inputs(tmp_path / "empty.npy")[0].shape == (0, 3)


@pytest.mark.parametrize("number", [0x110000, 0xFFFFFFFF, 0xD800])
def test_texts_of_numbers_that_are_no_characters_are_refused(tmp_path: Path, number: int) -> None:
    path = tmp_path / "texts.npy"
    path.write_bytes(large_files.npy((2,), np.array([65, number], "<u4").tobytes(), "<U1"))
    with pytest.raises(InputError, match="no characters"):
        ds.inputs(str(path))
    path.write_bytes(large_files.npy((2,), np.array([65, 0x1F600], "<u4").tobytes(), "<U1"))
    assert list(ds.inputs(str(path)).realise().args[0]) == ["A", "\U0001f600"]


@pytest.mark.parametrize("name", large_files.MODELS)
def test_models_that_grow_are_refused(tmp_path: Path, name: str) -> None:
    make, words = large_files.MODELS[name]
    path = tmp_path / "large.onnx"
    path.write_bytes(make().SerializeToString())
    with pytest.raises((ProgramError, RuntimeRefused), match=words) as refused:
        ds.program(path)({"x": torch.ones(4, 8)})
    assert len(str(refused.value)) < 1500


def test_models_of_ordinary_size_are_taken(tmp_path: Path) -> None:
    for levels, calls in ((3, 2), (100, 1)):
        path = tmp_path / "small.onnx"
        path.write_bytes(large_files.nested_functions(levels, calls).SerializeToString())
        assert torch.equal(ds.program(path)({"x": -torch.ones(4, 8)})["y"], torch.ones(4, 8))


def test_a_long_loop_is_not_followed_in_float64_and_a_short_one_is() -> None:
    from driftscope.errors import CannotLift
    from driftscope.lift.onnx.graph import lift_onnx
    from driftscope.lift.onnx.ops.control import MOST_STEPS

    feeds = {"x": torch.ones(4, 8)}
    lift_onnx(large_files.long_loop(200), feeds).run()
    with pytest.raises(CannotLift, match=f"more than {MOST_STEPS:,} times"):
        lift_onnx(large_files.long_loop(100_000), feeds).run()


def test_a_pt2_bomb_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt2"
    large_files.bomb(path, "base/data/weights/weight_0")
    with pytest.raises(ProgramError, match="would inflate to"):
        ds.program(path)


def test_weights_that_are_not_there_are_refused(tmp_path: Path, members: exported_files.Members) -> None:
    members = dict(members)
    config = json.loads(members[exported_files.WEIGHTS])
    config["config"]["l.weight"]["tensor_meta"]["sizes"] = [{"as_int": 1 << 40}, {"as_int": 4}]
    members[exported_files.WEIGHTS] = json.dumps(config).encode()
    with pytest.raises(ProgramError, match=r"needs [\d,]+ bytes"):
        ds.program(exported_files.write(tmp_path / "large.pt2", list(members.items())))


@pytest.mark.parametrize(
    "text", [large_files.deep_json(200), large_files.deep_json(1_000_000), '{"a":' * 500, "[" * 99]
)
def test_deep_or_broken_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_brackets_in_strings_are_no_depth() -> None:
    assert parse_json(json.dumps({"a": "[" * 1000 + '"\\' + "{" * 1000})) == {"a": "[" * 1000 + '"\\' + "{" * 1000}


def _seconds(act: object, *args: object) -> float:
    started = time.process_time()
    with contextlib.suppress(DriftscopeError, ValueError):
        act(*args)  # type: ignore[operator]
    return time.process_time() - started


@pytest.mark.parametrize(
    "act",
    [
        lambda n, folder: own_words("x" * n + "." * n + "cc:1"),
        lambda n, folder: own_words(" " * n + "Stack"),
        lambda n, folder: parse_json('"' + '\\"' * n),
        lambda n, folder: _page(folder, '<script type="application/json" id="' * n),
        lambda n, folder: _page(folder, '<script type="application/json" id="driftscope-record">' * n),
    ],
    ids=["long word", "long blank", "open string", "openings", "whole openings"],
)
def test_reading_takes_time_in_proportion(act: object, tmp_path: Path) -> None:
    """Ten times the text takes no hundred times the time."""
    short, long = _seconds(act, 20_000, tmp_path), _seconds(act, 200_000, tmp_path)
    assert long < 40 * short + 0.5


def _page(folder: Path, text: str) -> None:
    (folder / "page.html").write_text(text)
    read(folder / "page.html")


def test_deep_records_and_pages_are_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(large_files.deep_json(50_000))
    with pytest.raises(RecordError, match="nested too deeply"):
        read(tmp_path / "deep.json")


_LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{c}: &{c} [{','.join([f'*{b}'] * 9)}]\n" for b, c in itertools.pairwise("abcdefghi")
)
_AXES = "".join(f"  a{i}: {list(range(10))}\n" for i in range(9))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("laughs.yaml", _LAUGHS, "more than"),
        ("deep.yaml", "axes: " + "[" * 5000, "."),
        ("deep.toml", "axes = " + "[" * 5000, "."),
        ("system.yaml", "cell: os:system\naxes: {command: ['touch RAN']}\n", "belongs to Python itself"),
        ("hub.yaml", "cell: torch.hub:load\naxes: {repo_or_dir: ['a/b']}\n", "installed package"),
        ("object.yaml", "cell: !!python/object/apply:os.system ['touch RAN']\naxes: {}\n", "not YAML"),
        ("cells.yaml", "cell: cells.py:cell\naxes:\n" + _AXES, "cells"),
        ("long.yaml", f"cell: {'c' * 5000}.py:cell\naxes: {{a: [1]}}\n", "cannot be read"),
        ("date.toml", "axes = 1979-05-27\ncell = 'cells.py:cell'\n", "mapping"),
        ("dotted.toml", ".".join(["a"] * 20_000) + " = 1\n", "more than 100 parts"),
        ("quoted.toml", "x = {" + " . ".join(['"a,b"'] * 20_000) + " = 1}\n", "more than 100 parts"),
        ("hidden.toml", '# """\n' + ".".join(["a"] * 20_000) + ' = 1\n# """\n', "more than 100 parts"),
        ("own.yaml", "cell: driftscope.records.files:write_whole\naxes: {path: [RAN.md]}\n", "installed package"),
    ],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_study_files_that_grow_or_call_python_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cells.py").write_text("def cell(**coordinates):\n    return {}\n")
    (tmp_path / name).write_text(text)
    with pytest.raises(DriftscopeError, match=words):
        load(name)
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("name", ["this:d", "os:abort", "webbrowser:open", "builtins:exec"])
def test_a_list_of_pairs_names_nothing_of_python_itself(tmp_path: Path, name: str) -> None:
    for text in (f"a,b\n{name},m.onnx\n", f"a,b\nm.onnx,{name}\n"):
        (tmp_path / "pairs.csv").write_text(text)
        with pytest.raises(InputError, match=r"line 2 of .* belongs to Python itself"):
            listing_of(str(tmp_path / "pairs.csv"))
    (tmp_path / "pairs.csv").write_text("a,b\nmath_models:make,m.onnx\n")
    assert len(listing_of(str(tmp_path / "pairs.csv")).pairs) == 1


def test_a_study_file_of_ordinary_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text("def cell(a):\n    return {'twice': 2 * a}\n")
    (tmp_path / "small.yaml").write_text("cell: cells.py:cell\naxes: {a: [1, 2, 3]}\n")
    assert len(load(tmp_path / "small.yaml").plan.grid) == 3
    floats = ", ".join(["0.125"] + [f"{n}.5" for n in range(300)])
    (tmp_path / "small.toml").write_text(f"cell = 'cells.py:cell'  # it's one{'.' * 300}\naxes.a = [{floats}]\n")
    assert len(load(tmp_path / "small.toml").plan.grid) == 301


def test_an_archive_with_a_folder_in_it_is_an_honest_npz(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "nested.npz", "w") as archive:
        archive.writestr("inner/x.npy", large_files.npy((4,), bytes(16)))
    assert list(read_inputs(tmp_path / "nested.npz")[0]) == ["inner/x"]
