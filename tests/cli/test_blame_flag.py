"""``driftscope compare --blame``: the guilty optimiser on the terminal, with the line to paste."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture(scope="module")
def four_bits(tmp_path_factory) -> Path:
    """A product with 4-bit weights, of which onnxruntime makes a MatMulNBits that rounds activations."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], name="dequantise", axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Tanh", ["h"], ["y"], name="tanh"),
    ]
    weights = [
        helper.make_tensor("q", TensorProto.UINT4, [64, 64], rng.integers(0, 16, 4096).tolist()),
        numpy_helper.from_array((rng.random((2, 64)) * 0.05 + 0.01).astype(np.float32), "s"),
        helper.make_tensor("z", TensorProto.UINT4, [2, 64], [8] * 128),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "four_bits", values[:1], values[1:], weights)
    path = tmp_path_factory.mktemp("blame") / "four_bits.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(path))
    return path


def test_the_optimiser_and_its_line_stand_first(run, four_bits):
    result = run("compare", four_bits, four_bits, "--level", "a:disable", "--input", "x=4x64:float32", "--blame")
    assert result.exit_code == 1
    head, _, first = result.stdout.partition("\nO013")
    assert "disabled_optimizers=['QDQSelectorActionTransformer']" in " ".join(head.split())
    assert "QDQSelectorActionTransformer moved the result" in first


def test_the_line_mends_it(run, four_bits):
    leave_out = ("--disable-optimizer", "b:QDQSelectorActionTransformer")
    result = run(
        "compare", four_bits, four_bits, "--level", "a:disable", "--input", "x=4x64:float32", "--blame", "--json",
        *leave_out,
    )  # fmt: skip
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert [f["code"] for f in record["findings"] if f["code"] in ("O013", "O018")] == ["O018"]
    assert "--blame" in record["command"]


def test_a_search_on_a_page_and_read_back(run, four_bits, tmp_path):
    import driftscope as ds

    found = ds.blame(str(four_bits), {"x": "4x64:float32"})
    page = found.save(tmp_path / "blame.html").read_text()
    assert "QDQSelectorActionTransformer" in page
    found.save(tmp_path / "blame.json")
    shown = run("report", tmp_path / "blame.json")
    assert shown.exit_code == 0
    assert found.paste in shown.stdout


def test_a_half_check_on_a_page_and_read_back(run, four_bits, tmp_path):
    import driftscope as ds

    found = ds.check_half(str(four_bits), {"x": "4x64:float32"}, costs=True)
    assert "float16" in found.save(tmp_path / "half.html").read_text()
    found.save(tmp_path / "half.json")
    assert found.answer in run("report", tmp_path / "half.json").stdout
