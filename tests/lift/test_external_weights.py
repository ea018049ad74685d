"""Weights beside a model: mapped rather than read, given back, and never written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from driftscope.errors import ProgramError
from driftscope.lift.constant_cache import LiftedConstants
from driftscope.lift.onnx import stored
from driftscope.lift.onnx.graph import lift_onnx

WEIGHT = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
X = torch.linspace(-1, 1, 256, dtype=torch.float32).reshape(2, 128)


@pytest.fixture
def model(tmp_path: Path) -> onnx.ModelProto:
    """A product with a weight of 32 KiB in a file beside it."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 64])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )  # fmt: skip
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(whole, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    return onnx.load(str(tmp_path / "m.onnx"), load_external_data=False)


def test_a_large_tensor_is_mapped_once_and_its_memory_can_be_given_back(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_RESIDENT_BYTES", 1)
    lifted = lift_onnx(model, {"x": X}, directory=tmp_path)
    expected = X.double() @ torch.from_numpy(WEIGHT).double()
    for _ in range(3):  # each load gives back what the one before had read
        (output,) = lifted.run()
        assert output.value is not None
        assert torch.equal(output.value, expected)
        (weight,) = lifted.constants()
        assert torch.equal(weight.value, torch.from_numpy(WEIGHT))
    assert len([key for key in stored._MAPPINGS if tmp_path in key[0].parents]) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("held", [0, 1 << 27])
def test_results_are_the_same_bits_with_and_without_constants_that_stay_lifted(
    model: onnx.ModelProto, tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftscope.lift.constant_cache.HELD_BYTES", held)
    monkeypatch.setattr("driftscope.lift.constant_cache.WHOLE_BYTES", held)
    lifted = lift_onnx(model, {"x": X}, directory=tmp_path)
    first, second = lifted.run()[0].value, lifted.run()[0].value
    replaced = lifted.run(replace={"w": torch.zeros(128, 64, dtype=torch.float64)})[0].value
    assert first is not None
    assert second is not None
    assert replaced is not None
    assert torch.equal(first, second)
    assert not replaced.any()
    assert torch.equal(lifted.run()[0].value, first)  # type: ignore[arg-type]


def test_a_file_that_ends_early_is_said(model: onnx.ModelProto, tmp_path: Path) -> None:
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data[:-4096])
    with pytest.raises(ProgramError, match="needs 32768 bytes and the file has 28672"):
        lift_onnx(model, {"x": X}, directory=tmp_path).run()


def test_constants_stay_lifted_only_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftscope.lift.constant_cache.HELD_BYTES", 80)
    cache = LiftedConstants()
    assert not any(cache.takes(name, 1) for name in "abc")  # a graph that runs once holds nothing
    assert cache.takes("a", 10)
    cache.hold("a", torch.zeros(6, dtype=torch.float64))
    assert cache.takes("b", 4)
    assert not cache.takes("c", 5)
    assert cache.get("a") is not None
    assert cache.get("b") is None


@pytest.mark.parametrize(("whole", "elements"), [(160, 20), (159, 10)])
def test_all_of_a_program_stays_lifted_or_a_small_part(
    whole: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftscope.lift.constant_cache.HELD_BYTES", 80)
    monkeypatch.setattr("driftscope.lift.constant_cache.WHOLE_BYTES", whole)
    cache = LiftedConstants(20)
    assert not any(cache.takes(name, 1) for name in "ab")
    assert cache.takes("a", elements)
    assert not cache.takes("b", elements + 1)
