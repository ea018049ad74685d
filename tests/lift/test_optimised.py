"""Whether an optimiser shows in the bits of a result is asked of the runtime, and of nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from driftscope.lift.optimised import optimisers_show
from driftscope.lift.sources import lift_bound
from driftscope.programs.loading.load import load_program

X = -1.0 - np.random.default_rng(0).random((1, 2, 6, 6)).astype(np.float32)


def pooled(pads: list[int]) -> onnx.ModelProto:
    """A pooling behind a padding of zeros: onnxruntime fuses them, and numbers below zero lose to no zero then."""
    stored = helper.make_tensor("pads", TensorProto.INT64, [8], pads)
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "pads"], ["wide"], "pad"),
         helper.make_node("MaxPool", ["wide"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2])],
        "pooled", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, None, None])], [stored],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def shows(program, far: float = 1.0) -> bool:
    """Whether the optimisers show, if float64 has the optimised graph so far from the file."""
    bound = program.bind({"x": X}) if program.kind == "onnx" else program.bind(torch.from_numpy(X))
    (file,) = lift_bound(bound).run()
    return optimisers_show(bound, [file], [dataclasses.replace(file, value=file.value * (1.0 + far))])


def test_an_optimiser_that_changes_a_result_shows_and_one_that_does_not_does_not():
    assert not shows(load_program(pooled([0] * 8)))
    changed = load_program(pooled([0, 0, 1, 1, 0, 0, 1, 1]))
    plain = changed.unoptimised()
    one, other = (next(iter(p(p.bind({"x": X})).values())) for p in (changed, plain))
    if torch.equal(one, other):
        pytest.skip("this onnxruntime fuses a padding of zeros rightly")
    assert shows(changed)


def test_where_nothing_is_optimised_nothing_shows():
    assert not shows(load_program(torch.nn.ReLU()))


class Moved(torch.nn.Module):
    """A program whose optimised twin is told apart by its bits alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.round()


@pytest.mark.parametrize(("far", "shown"), [(0.01, False), (1.0, True)])
def test_two_writings_are_no_further_apart_than_the_kernels_are_from_float64(far, shown, monkeypatch):
    program, twin = load_program(Moved()), load_program(torch.nn.Identity())
    monkeypatch.setattr(type(program), "unoptimised", lambda self: twin)
    assert shows(program, far) is shown
