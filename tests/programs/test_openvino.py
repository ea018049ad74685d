"""OpenVINO as one more runtime: an ONNX model or an ``.xml`` of its own beside onnxruntime and torch."""

from __future__ import annotations

import os
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from driftscope.errors import CannotLift, DependencyMissing, ProgramError, RuntimeCrashed
from driftscope.programs.isolation.choice import isolating
from driftscope.programs.runtimes.native import openvino_worker
from driftscope.programs.runtimes.openvino_compiled import claim

X = torch.linspace(-2, 2, 24).reshape(3, 8)


def perceptron(bias: float = 0.0) -> onnx.ModelProto:
    random = np.random.default_rng(5)
    weights = random.uniform(-1, 1, (8, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node("Tanh", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.full(4, bias, np.float32), "b")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_without_openvino_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    path = tmp_path / "model.xml"
    path.write_text("<net/>")
    with pytest.raises(DependencyMissing, match=r"driftscope\[openvino\]"):
        claim(path)
    assert claim(3) is None
    with pytest.raises(ProgramError, match="no such file"):
        claim(tmp_path / "absent.xml")


@pytest.fixture(scope="module")
def openvino():
    return pytest.importorskip("openvino", reason="OpenVINO is not installed (pip install driftscope[openvino])")


def test_a_model_on_openvino_is_the_same_function(openvino):
    comparison = ds.compare(perceptron(), claim(perceptron()), {"x": X})
    assert comparison.verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING)
    assert "OpenVINO" in str(comparison.to_dict())


def test_another_bias_on_openvino_is_found_and_placed(openvino):
    comparison = ds.compare(perceptron(), claim(perceptron(1e-3)), {"x": X})
    assert comparison.verdict is ds.Verdict.DIFFERENT
    assert "b" in str(comparison.first)


def test_an_xml_file_runs_and_has_no_graph_in_float64(openvino, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(perceptron(), path)
    openvino.save_model(openvino.Core().read_model(str(path)), str(tmp_path / "model.xml"), compress_to_fp16=False)
    program = claim(tmp_path / "model.xml")
    assert torch.allclose(program({"x": X})["y"], ds.program(path)({"x": X})["y"], atol=1e-5)
    with pytest.raises(CannotLift, match="compare the ONNX model"):
        program.lift_source({"x": X})
    assert ds.compare(path, program, {"x": X}).verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING)


def test_what_openvino_refuses_is_said_in_its_words(openvino, tmp_path):
    path = tmp_path / "model.xml"
    path.write_text("<net>")
    with pytest.raises(ds.RuntimeRefused, match="OpenVINO"):
        claim(path)
    with pytest.raises(ProgramError, match="unknown option 'level'"):
        claim(perceptron(), level="all")
    with pytest.raises(ProgramError, match="not 'int8'"):
        claim(perceptron(), precision="int8")


def test_threads_are_a_setting_and_a_variant_changes_it(openvino):
    program = claim(perceptron())
    one = program.variant(threads=1)
    assert one.settings == {**program.settings, "threads": 1}
    assert "1 thread" in one.runtime
    assert torch.allclose(one({"x": X})["y"], program({"x": X})["y"], atol=1e-5)


def test_it_works_in_a_process_of_its_own_and_gives_the_bits_of_this_one(openvino):
    record = ds.compare(perceptron(), claim(perceptron()), {"x": X})
    assert record.programs["b"]["isolated"] is True
    here = ds.compare(perceptron(), claim(perceptron()), {"x": X}, isolate=False)
    assert here.programs["b"]["isolated"] is False
    there = claim(perceptron())
    with isolating(False):
        assert torch.equal(there({"x": X})["y"], claim(perceptron())({"x": X})["y"])


def test_what_ends_its_process_is_an_answer_and_the_program_goes_on(openvino, monkeypatch):
    program = claim(perceptron())
    before = program({"x": X})["y"]
    with monkeypatch.context() as patch:
        patch.setattr(openvino_worker, "element", os._exit)
        with pytest.raises(RuntimeCrashed, match="ended itself") as crash:
            print(program.runtime)
    assert crash.value.code == "R006"
    assert "float32" in program.runtime
    assert torch.equal(program({"x": X})["y"], before)
