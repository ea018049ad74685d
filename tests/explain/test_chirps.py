"""Fourier transforms of onnxruntime: its rounding, and the chirp that it uses for lengths that are no power of two."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import driftscope as ds
from driftscope.explain.native.chirps import Chirped
from driftscope.records.verdict import Verdict


def transform(length: int, inverse: int = 0) -> onnx.ModelProto:
    shape = [4, length, 2]
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    node = helper.make_node("DFT", ["x", "", "axis"], ["y"], "transform", inverse=inverse)
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [1])
    graph = helper.make_graph([node], "g", [given], [made], [axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.fft(torch.view_as_complex(x), dim=1))


def numbers(length: int) -> torch.Tensor:
    return torch.randn(4, length, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("length", [2, 16, 256, 5, 11, 12])
def test_a_transform_is_rounding_in_the_measured_floor_of_the_kernel(length):
    found = ds.compare(reference, transform(length), (numbers(length),))
    assert found.verdict in (Verdict.ROUNDING, Verdict.IDENTICAL), found.reason


def test_the_angles_of_the_chirp_are_named_where_they_cost_more_than_rounding():
    found = ds.compare(reference, transform(1000), (numbers(1000),))
    assert found.verdict is Verdict.PRECISION, found.reason
    assert "a chirp whose angles are float32" in found.reason
    kernel = next(f for f in found.findings if f.code == "N025")
    assert kernel.where.node == "transform"
    assert kernel.evidence["kernels"][0]["replay"]["correlation"] > 0.99


@pytest.mark.parametrize("length", [16, 1000])
def test_another_transform_is_another_function(length):
    assert ds.compare(reference, transform(length, inverse=1), (numbers(length),)).verdict is Verdict.DIFFERENT


def test_a_chirp_is_the_transform_but_for_its_angles():
    x = torch.randn(3, 20, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    for exact, again in ((torch.fft.fft, torch.fft.fft), (torch.fft.ifft, torch.fft.ifft)):
        with Chirped():
            found = again(x, dim=0), again(x, dim=1), again(x[:, :16], dim=1)
        assert 0 < float((found[1] - exact(x, dim=1)).abs().max()) < 1e-4
        assert float((found[0] - exact(x, dim=0)).abs().max()) < 1e-5
        assert torch.equal(found[2], exact(x[:, :16], dim=1))
