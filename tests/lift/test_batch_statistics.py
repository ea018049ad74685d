"""What a port computes ahead of time of a batch norm's statistics is rounded there, and is no other function."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import driftscope as ds

SHAPE = [2, 6, 5, 5]
EPSILON = np.float32(1e-5)


def norm():
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    module = nn.BatchNorm2d(6).eval()
    with torch.no_grad():
        module.running_mean.copy_(draw(6))
        module.running_var.copy_(draw(6).abs() + 0.2)
        module.weight.copy_(draw(6) + 1.0)
        module.bias.copy_(draw(6))
    return module, (draw(*SHAPE),)


MODULE, X = norm()
G, B, M, V = (
    t.detach().numpy().reshape(6, 1, 1) for t in (MODULE.weight, MODULE.bias, MODULE.running_mean, MODULE.running_var)
)
ROOT = np.sqrt(V + EPSILON)
SCALE = G / ROOT


class ByHand(nn.Module):
    """The same norm, step by step."""

    def __init__(self):
        super().__init__()
        for name, value in (("g", G), ("b", B), ("m", M), ("v", V)):
            self.register_buffer(name, torch.from_numpy(value.copy()))

    def forward(self, x):
        return (x - self.m) / torch.sqrt(self.v + 1e-5) * self.g + self.b


def file(nodes, **stored):
    graph = helper.make_graph(
        [helper.make_node(operator, reads, gives) for operator, reads, gives in nodes],
        "norm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def of_variance(variance):
    return file(
        [
            ("Sub", ["x", "m"], ["a"]),
            ("Sqrt", ["v"], ["s"]),
            ("Div", ["a", "s"], ["q"]),
            ("Mul", ["q", "g"], ["z"]),
            ("Add", ["z", "b"], ["y"]),
        ],
        m=M,
        v=variance,
        g=G,
        b=B,
    )


def numpy(function):
    return ds.program(function, framework="numpy")


HONEST = {
    "root": lambda: numpy(lambda x: (x - M) / ROOT * G + B),
    "reciprocal": lambda r=1 / ROOT: numpy(lambda x: (x - M) * r * G + B),
    "scale": lambda: numpy(lambda x: (x - M) * SCALE + B),
    "scale and shift": lambda h=B - M * SCALE: numpy(lambda x: x * SCALE + h),
    "shift in two": lambda h=M * SCALE: numpy(lambda x: x * SCALE + B - h),
    "variance in a file": lambda: of_variance(V + EPSILON),
}
BUGS = {
    "twice the epsilon": lambda: of_variance(V + 2 * EPSILON),
    "no epsilon": lambda: of_variance(V),
    "mean of the other sign": lambda h=M * SCALE: numpy(lambda x: x * SCALE + B + h),
    "epsilon outside": lambda d=V**0.5 + EPSILON: numpy(lambda x: (x - M) / d * G + B),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("reference", [MODULE, ByHand()], ids=["fused", "by hand"])
@pytest.mark.parametrize("form", HONEST)
def test_what_is_computed_ahead_of_time_is_rounded(form, reference, turned):
    pair = reference, HONEST[form]()
    found = ds.compare(*(pair[::-1] if turned else pair), X, isolate=False)
    assert str(found.verdict) in ("IDENTICAL", "ROUNDING"), found.reason
    assert not [f.code for f in found.findings if not f.note]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("reference", [MODULE, ByHand()], ids=["fused", "by hand"])
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.sampled(6)
def test_other_statistics_are_another_function(bug, reference, turned):
    pair = reference, BUGS[bug]()
    found = ds.compare(*(pair[::-1] if turned else pair), X, isolate=False)
    assert str(found.verdict) == "DIFFERENT", found.reason
