"""External data stays in the model's folder: everything else is refused before a runtime sees the file."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, external_data_helper, helper
from tiny_models import onnx_model, value

import driftscope as ds
from driftscope.lift.sources import lift_source
from driftscope.programs.isolation.choice import isolating
from driftscope.programs.runtimes import onnxruntime_session
from driftscope.programs.runtimes.ort_remote import RemoteSession

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def external_model(location: str, **entries: str) -> onnx.ModelProto:
    """Return ``y = x * w`` whose weight is said to lie at ``location``."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], b"\x00\x00\x00\x40" * 3, raw=True)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=text)
    return onnx_model([helper.make_node("Mul", ["x", "w"], ["y"])], [value("x")], [value("y")], initializers=[weight])


@pytest.fixture
def folder(tmp_path):
    """A model's folder with its data, and a secret outside."""
    inside = tmp_path / "model"
    (inside / "data").mkdir(parents=True)
    twos = b"\x00\x00\x00\x40" * 3
    (inside / "weights.bin").write_bytes(twos)
    (inside / "data" / "weights.bin").write_bytes(twos)
    (tmp_path / "secret.bin").write_bytes(twos)
    os.symlink(tmp_path / "secret.bin", inside / "escape.bin")
    os.symlink(tmp_path, inside / "up")
    return inside


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../secret.bin", {}, "outside the model's folder"),
        ("data/../../secret.bin", {}, "outside the model's folder"),
        ("..\\secret.bin", {}, "outside the model's folder"),
        ("escape.bin", {}, "outside the model's folder"),
        ("up/secret.bin", {}, "outside the model's folder"),
        ("/etc/passwd", {}, "an absolute path"),
        ("C:\\secret.bin", {}, "an absolute path"),
        ("missing.bin", {}, "is not a file"),
        ("data", {}, "is not a file"),
        ("", {}, "names no file"),
        ("weights.bin", {"offset": "4", "length": "12"}, "truncated or belongs to another model"),
        ("weights.bin", {"offset": "-4"}, "truncated or belongs to another model"),
        ("weights.bin", {"offset": "four"}, "not a number"),
    ],
)
def test_data_outside_or_missing_is_refused(folder, location, entries, message):
    path = folder / "model.onnx"
    path.write_bytes(external_model(location, **entries).SerializeToString())
    with pytest.raises(ds.ProgramError, match=message) as refused:
        ds.program(path)
    assert "'w'" in str(refused.value)


@pytest.mark.parametrize("location", ["weights.bin", "data/weights.bin", "data/../weights.bin"])
def test_data_inside_is_read(folder, location):
    path = folder / "model.onnx"
    path.write_bytes(external_model(location, offset="0", length="12").SerializeToString())
    program = ds.program(path)
    assert torch.equal(program(X)["y"], 2 * X)
    assert program.lift_source(X).directory == folder
    assert program.optimized_source(X).model.graph.node


@pytest.mark.parametrize("rewritten", [1 << 20, 0], ids=["few weights written anew", "too many"])
def test_weights_an_optimiser_left_alone_stay_where_the_model_keeps_them(folder, rewritten, monkeypatch):
    monkeypatch.setattr(onnxruntime_session, "_BESIDE", 1)
    monkeypatch.setattr(onnxruntime_session, "_REWRITTEN", rewritten)
    path = folder / "model.onnx"
    path.write_bytes(external_model("weights.bin", offset="0", length="12").SerializeToString())
    source = ds.program(path).optimized_source(X)
    stays = source.directory == folder
    assert stays is bool(rewritten)
    (output,) = lift_source(source).run()
    assert torch.equal(output.value, 2 * X.double())


@pytest.mark.parametrize(
    ("rewritten", "sessions"), [(1 << 20, 1), (0, 2)], ids=["few weights written anew", "too many"]
)
def test_the_session_that_runs_a_model_with_data_beside_it_keeps_what_it_made(folder, rewritten, sessions, monkeypatch):
    monkeypatch.setattr(onnxruntime_session, "_BESIDE", 1)
    monkeypatch.setattr(onnxruntime_session, "_REWRITTEN", rewritten)
    made, original = [], RemoteSession.make

    def make(self, *given, **options):
        made.append(self)
        return original(self, *given, **options)

    monkeypatch.setattr(RemoteSession, "make", make)
    path = folder / "model.onnx"
    path.write_bytes(external_model("weights.bin", offset="0", length="12").SerializeToString())
    program = ds.program(path)
    program.keep_optimized()
    with isolating(True):
        assert torch.equal(program(X)["y"], 2 * X)
        (output,) = lift_source(program.optimized_source(X)).run()
    assert torch.equal(output.value, 2 * X.double())
    assert len(made) == sessions


def test_a_link_to_a_model_reads_the_data_beside_the_model(folder, tmp_path):
    (folder / "model.onnx").write_bytes(external_model("weights.bin").SerializeToString())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "weights.bin").write_bytes(b"\0" * 12)
    os.symlink(folder / "model.onnx", elsewhere / "link.onnx")
    assert torch.equal(ds.program(elsewhere / "link.onnx")(X)["y"], 2 * X)


def test_data_hidden_in_subgraphs_and_functions_is_found(folder):
    hidden = external_model("../secret.bin").graph.initializer[0]
    constant = helper.make_node("Constant", [], ["t"], value=hidden)
    branch = helper.make_graph([constant], "b", [], [value("t", shape=(3,))])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    in_branch = onnx_model([node], [value("c", TensorProto.BOOL, ())], [value("y", shape=None)])
    function = helper.make_function("own", "F", [], ["t"], [constant], [helper.make_opsetid("", 20)])
    in_function = onnx_model([helper.make_node("F", [], ["y"], domain="own")], [], [value("y", shape=None)])
    in_function.functions.append(function)
    for model in (in_branch, in_function):
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ds.ProgramError, match="outside the model's folder"):
            ds.program(path)


def test_a_model_in_memory_needs_its_data_with_it(folder):
    with pytest.raises(ds.ProgramError, match=r"give the path of the \.onnx file"):
        ds.program(external_model("weights.bin"))
    path = folder / "model.onnx"
    path.write_bytes(external_model("weights.bin").SerializeToString())
    loaded = onnx.load(path)
    assert torch.equal(ds.program(loaded)(X)["y"], 2 * X)


def test_a_model_saved_with_external_data_runs(folder, onnx_export, lookup_inputs):
    model = onnx.ModelProto.FromString(onnx_export.model_proto.SerializeToString())
    external_data_helper.convert_model_to_external_data(model, location="all.bin", size_threshold=0)
    onnx.save(model, folder / "lookup.onnx")
    expected = ds.program(onnx_export)(lookup_inputs)
    got = ds.program(folder / "lookup.onnx")(lookup_inputs)
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def _written(folder, factor, *, external):
    model = external_model("weights.bin")
    (folder / "weights.bin").write_bytes(np.full(3, factor, dtype=np.float32).tobytes())
    onnx.save(model, str(folder / "model.onnx"))
    if not external:
        onnx.save(onnx.load(str(folder / "model.onnx")), str(folder / "model.onnx"))
    return folder / "model.onnx"


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def _differs(factor, program):
    return ds.compare(Scaled(factor), program, (X,)).verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("atomic", [False, True])
def test_data_that_was_written_anew_is_read_anew_or_not_used(tmp_path, ran, atomic):
    """A session of the old weights was held against a graph with the new ones: neither model was the same."""
    program = ds.program(_written(tmp_path, 2.0, external=True))
    if ran:
        assert not _differs(2.0, program)
    if atomic:
        (tmp_path / "weights.bin").unlink()
    path = _written(tmp_path, 3.0, external=True)
    os.utime(tmp_path / "weights.bin", (1, 1))  # no clock is too coarse for this
    for factor in (2.0, 3.0):
        with pytest.raises(ds.ProgramError, match="deleted or written anew since it was read"):
            _differs(factor, program)
    assert not _differs(3.0, path)
    assert _differs(2.0, path)
    assert not _differs(3.0, ds.program(path))


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("gone", [False, True])
def test_a_model_in_one_file_stays_the_one_that_was_read(tmp_path, ran, gone):
    path = _written(tmp_path, 2.0, external=False)
    program, digest = ds.program(path), ds.program(path).describe()["sha256"]
    if ran:
        assert not _differs(2.0, program)
    if gone:
        path.unlink()
    else:
        os.utime(_written(tmp_path, 3.0, external=False), (1, 1))
        assert not _differs(3.0, path)
        assert ds.program(path).describe()["sha256"] != digest
        assert program.describe()["sha256"] != ds.program(path).describe()["sha256"]
    assert not _differs(2.0, program)
    # What is run again to find a cause is made of the model that was read, too.
    assert _differs(3.0, program)
    assert _differs(3.0, program.variant(level="disable"))
    assert not _differs(2.0, program.variant(level="disable"))
