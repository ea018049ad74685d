"""A cover is a folder of somebody: its manifest, its exported programs and its ONNX files go through the same doors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from driftscope.errors import DriftscopeError
from driftscope.shapes.covering.files import load_cover
from hostile import exported_files, large_files


def _manifest(program: str, **changes: Any) -> dict[str, Any]:
    entry = {"file": program, "origin": "static", "points": 1, "conditions": [["==", "x.shape[0]", 3]]}
    if program.endswith(".onnx"):
        entry["inputs"] = [["x", 0]]
    return {
        "schema": "driftscope/cover/1", "parameters": ["x"], "leaves": [["x", 2, "tensor"]], "constants": {},
        "outputs": None, "programs": [entry], **changes,
    }  # fmt: skip


def _write(folder: Path, manifest: Any) -> Path:
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    (folder / "manifest.json").write_text(text)
    return folder


def _evil_program(folder: Path, members: exported_files.Members, name: str) -> None:
    attack, _ = exported_files.ATTACKS[name]
    exported_files.write(folder / "program_0.pt2", attack(members, folder / "RAN"))


@pytest.mark.parametrize(
    "name", ["opaque object in capitals", "symbol that is code", "writes a file", "enum of any module"]
)
def test_an_evil_program_in_a_cover_is_refused(tmp_path: Path, members: exported_files.Members, name: str) -> None:
    _evil_program(tmp_path, members, name)
    with pytest.raises(DriftscopeError, match=exported_files.ATTACKS[name][1]):
        load_cover(_write(tmp_path, _manifest("program_0.pt2")))
    assert not (tmp_path / "RAN").exists()


def test_data_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "program_0.onnx").write_bytes(large_files.external("/etc/passwd").SerializeToString())
    with pytest.raises(DriftscopeError, match="an absolute path"):
        load_cover(_write(tmp_path, _manifest("program_0.onnx")))


DAMAGES: dict[str, Callable[[], Any]] = {
    "deep": lambda: large_files.deep_json(5000),
    "list": lambda: [1],
    "program elsewhere": lambda: _manifest("../program_0.pt2"),
    "no program": lambda: _manifest("program_0.pt2"),
    "nul": lambda: _manifest("a\0.pt2"),
    "leaves": lambda: _manifest("program_0.pt2", leaves=[1]),
    "constants": lambda: _manifest("program_0.pt2", constants=[1]),
    "outputs": lambda: _manifest("program_0.pt2", outputs={"kind": "dict", "keys": ["a"], "children": []}),
    "outputs without kind": lambda: _manifest("program_0.pt2", outputs={"keys": 3}),
    "programs": lambda: _manifest("program_0.pt2", programs=3),
    "entry": lambda: _manifest("program_0.pt2", programs=[{}]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_manifest_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DriftscopeError):
        load_cover(_write(tmp_path, DAMAGES[name]()))


def test_conditions_that_explode_do_not_hold() -> None:
    from driftscope.shapes.conditions.predicates import compiled, from_json

    check = compiled(from_json(["<", 0, ["**", "x", ["**", "x", ["**", "x", "x"]]]]))
    assert check({"x": 2})
    assert not check({"x": 1000})
    with pytest.raises(DriftscopeError):
        from_json(["<", 0, 10**400])


def test_an_honest_neighbour_is_read(tmp_path: Path) -> None:
    (tmp_path / "program_0.onnx").write_bytes(large_files.nested_functions(2, 2).SerializeToString())
    _, programs, _ = load_cover(_write(tmp_path, _manifest("program_0.onnx")))
    assert torch.equal(torch.as_tensor(programs[0].payload.run(torch.ones(4, 8))[0]), torch.ones(4, 8))
