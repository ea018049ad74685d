"""Inputs from tensors, trees and files: nothing is unpickled, nothing is converted, a recipe makes them again."""

from __future__ import annotations

import base64
import io
import json
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import driftscope as ds
from driftscope.programs.arrays import array_of, tensor_of
from driftscope.programs.feeding.feeds import Inputs

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


class Payload:
    """Something that would run when unpickled."""

    def __reduce__(self):
        return (print, ("unpickled!",))


def polygraphy_array(array: np.ndarray) -> dict[str, str]:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return {"array": base64.b64encode(stream.getvalue()).decode(), "polygraphy_class": "ndarray"}


def write(kind: str, folder) -> str:
    path = folder / f"inputs{kind}"
    if kind == ".npz":
        np.savez(path, x=X.numpy())
    elif kind == ".pt":
        torch.save({"x": X}, path)
    elif kind == ".safetensors":
        save_file({"x": X}, path)
    else:
        path.write_text(json.dumps([{"x": polygraphy_array(X.numpy())}]))
    return str(path)


@pytest.mark.parametrize("kind", [".npz", ".pt", ".safetensors", ".json"])
def test_files_are_read_and_remembered(kind, tmp_path):
    path = write(kind, tmp_path)
    inputs = ds.inputs(path)
    assert inputs.names == ["x"]
    assert torch.equal(inputs.kwargs["x"], X)
    assert inputs.recipe["files"][0]["path"] == path
    assert torch.equal(Inputs.from_recipe(inputs.recipe).kwargs["x"], X)


@pytest.mark.parametrize("kind", [".npz", ".pt", ".safetensors", ".json"])
def test_truncated_files_are_one_sentence(kind, tmp_path):
    path = write(kind, tmp_path)
    with open(path, "r+b") as stream:
        stream.truncate(40)
    with pytest.raises(ds.InputError) as refused:
        ds.inputs(path)
    assert path in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", [".npz", ".safetensors"])
def test_what_was_read_outlives_its_file(kind, tmp_path):
    """Whoever has mapped a file is ended by the system once it is cut: this is tried in a process of its own."""
    path = write(kind, tmp_path)
    code = f"import driftscope as ds; held = ds.inputs({path!r}); open({path!r}, 'w').close();"
    code += "print(held.kwargs['x'].tolist())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, str(X.tolist())), found.stderr


def test_a_file_that_changed_is_noticed(tmp_path):
    path = write(".npz", tmp_path)
    recipe = ds.inputs(path).recipe
    np.savez(path, x=X.numpy() + 1)
    with pytest.raises(ds.InputError, match="is not the file of the record"):
        Inputs.from_recipe(recipe)


def test_a_missing_file_is_said():
    with pytest.raises(ds.InputError, match="no such file"):
        ds.inputs("nowhere.npz")


def test_pickles_are_refused(tmp_path, capsys):
    torch.save({"x": Payload()}, tmp_path / "evil.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Payload()))
    np.savez(tmp_path / "evil.npz", x=np.array([Payload()], dtype=object))
    np.save(tmp_path / "evil.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    for name in ("evil.pt", "raw.pt", "evil.npz", "evil.npy"):
        with pytest.raises(ds.InputError):
            ds.inputs(str(tmp_path / name))
    assert "unpickled!" not in capsys.readouterr().out


def test_polygraphy_tensors_and_garbage(tmp_path):
    stream = io.BytesIO()
    torch.save(X.bfloat16(), stream)
    tensor = {"tensor": base64.b64encode(stream.getvalue()).decode(), "polygraphy_class": "Tensor"}
    path = tmp_path / "feeds.json"
    path.write_text(json.dumps([{"x": tensor}]))
    assert ds.inputs(path).kwargs["x"].dtype == torch.bfloat16
    path.write_text(json.dumps([{"x": tensor}] * 2))
    with pytest.raises(ds.InputError, match="holds 2 iterations"):
        ds.inputs(path)
    path.write_text(json.dumps({"x": 3, "y": "z"}))
    with pytest.raises(ds.InputError, match="not a file of Polygraphy inputs"):
        ds.inputs(path)
    path.write_text(json.dumps([{"x": {"array": "%%%", "polygraphy_class": "ndarray"}}]))
    with pytest.raises(ds.InputError, match="cannot be decoded"):
        ds.inputs(path)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4, dtype=">i4"),
        np.arange(6.0).reshape(2, 3)[::-1, ::2],
        np.float32(2.5),
        np.zeros((0, 3), np.float16),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
        np.array([1.5, -2.0], ml_dtypes.float8_e4m3fn),
        np.array([True, False]),
        np.array([1 + 2j]),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_arrays_keep_bits_dtype_and_shape(array):
    tensor = tensor_of(array)
    back = array_of(tensor)
    assert back.dtype == np.asarray(array).dtype.newbyteorder("=")
    assert back.shape == np.shape(array)
    assert back.tobytes() == np.asarray(array).astype(back.dtype).tobytes()


def test_arrays_share_memory_where_they_can():
    array = np.zeros(3, np.float32)
    tensor_of(array)[0] = 1
    assert array[0] == 1


def test_objects_in_arrays_are_refused_and_strings_are_not():
    with pytest.raises(ds.InputError, match="Python objects"):
        ds.inputs(np.array([object()]))
    assert ds.inputs(np.array(["a"])).args[0][0] == "a"


def test_positional_and_named_trees():
    positional = ds.inputs((X, [X, {"deep": X}]))
    assert [str(p) for p, _ in positional.leaves] == ["in[0]", "in[1][0]", "in[1][1]['deep']"]
    named = ds.inputs({"x": X, "n": "2:int64", "alpha": 0.5})
    assert named.by_name
    assert [str(p) for p, _ in named.leaves] == ["in['x']", "in['n']", "in['alpha']"]
    assert ds.inputs(named) is named


def test_several_sources_are_merged(tmp_path):
    inputs = ds.inputs([write(".npz", tmp_path), "y=4:float32:ones"])
    assert inputs.names == ["x", "y"]


@pytest.mark.parametrize("source", ["hello", "=4x4", "inputs.csv"])
def test_what_is_no_source_is_said(source):
    with pytest.raises(ds.InputError, match="neither a file"):
        ds.inputs(source)


def test_no_source_is_said():
    with pytest.raises(ds.InputError, match="no inputs were given"):
        ds.inputs()


def test_a_recipe_makes_drawn_inputs_again():
    inputs = ds.inputs({"x": "4x8:float16", "ids": "3:int64:randint(0,9)", "flag": True}, seed=7)
    recipe = json.loads(json.dumps(inputs.realise().recipe))
    again = Inputs.from_recipe(recipe)
    assert again.kwargs["flag"] is True
    for path, tensor in inputs.tensors.items():
        assert torch.equal(again.tensors[path], tensor)


def test_a_recipe_of_given_tensors_only_recognises_them():
    recipe = ds.inputs({"x": X}).recipe
    assert recipe["leaves"][0]["sha256"] == ds.inputs({"x": X.clone()}).recipe["leaves"][0]["sha256"]
    assert recipe["leaves"][0]["sha256"] != ds.inputs({"x": X + 1}).recipe["leaves"][0]["sha256"]
    with pytest.raises(ds.InputError, match="only a checksum"):
        Inputs.from_recipe(recipe)
    with pytest.raises(ds.InputError, match="not a recipe"):
        Inputs.from_recipe({"schema": "something/else"})
