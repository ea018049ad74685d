"""Fixes that are tried before they are told: another operator, number, axis, padding or order of inputs."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from driftscope.explain.locate.fingerprints import sketch
from driftscope.lift.reconcile.solving import solve_number
from driftscope.records.finding import Finding

X = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(0))
SCALE = 8**-0.25


def first(a: object, b: object, x: torch.Tensor = X) -> Finding:
    found = ds.compare(a, b, (x,))
    assert found.verdict == "DIFFERENT"
    assert found.first is not None
    return found.first


def file(nodes: list[onnx.NodeProto], shape: tuple[int, ...], **stored: torch.Tensor) -> onnx.ModelProto:
    """A file from ``x`` to ``y`` of these nodes."""
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", X.shape), ("y", shape)))
    tensors = [numpy_helper.from_array(t.numpy(), n) for n, t in stored.items()]
    graph = helper.make_graph(nodes, "g", [given], [made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def attention(query: float = SCALE, key: float = SCALE, axis: int = -1) -> Callable[[torch.Tensor], torch.Tensor]:
    """Attention written out, with a scale on either operand, as exporters write it."""
    return lambda x: torch.softmax((x * query) @ (x.cos() * key).mT, axis) @ x


def fused(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x.cos(), x)


def test_a_changed_activation_is_told_with_the_one_of_a():
    found = first(lambda x: F.relu(x) + 1, lambda x: F.leaky_relu(x) + 1)
    assert found.verified
    assert "aten.relu" in found.fix


def test_an_operator_is_no_cause_where_that_of_a_does_not_mend_the_piece():
    found = first(lambda x: F.relu(x) * 3, lambda x: torch.tanh(x) * 2)
    assert "aten.relu in tanh" not in found.fix


def test_a_scale_that_a_fused_operator_hides_is_solved_for():
    found = first(fused, attention(key=1.01 * SCALE))
    assert found.verified
    assert f"to {SCALE:.6g}"[:8] in found.fix
    assert found.evidence["cause"].startswith("its constant mul_1.other")


def test_of_two_scales_that_are_both_wrong_none_is_named():
    assert first(fused, attention(1.03 * SCALE, 1.01 * SCALE)).verified is not True


def test_an_axis_that_a_fused_operator_hides_is_tried():
    found = first(fused, attention(axis=-2))
    assert found.verified
    assert found.fix.endswith(" to 3.")


@pytest.mark.parametrize(
    ("right", "wrong", "fix"),
    [
        (lambda x: x - x.cos(), lambda x: x.cos() - x, "Exchange the inputs of sub"),
        (lambda x: x[..., :6].mean(2), lambda x: x[..., :6].mean(3), "axis of mean to [2]"),
        (lambda x: x[..., :6].softmax(2), lambda x: x[..., :6].softmax(3), "axis of _softmax to 2"),
    ],
)
def test_inputs_and_axes_are_put_right(right, wrong, fix: str):
    found = first(right, wrong)
    assert found.verified
    assert fix in found.fix


def test_an_output_whose_elements_stand_in_another_order_has_a_place():
    x = X[:, :, :, :6].contiguous()
    found = first(lambda x: torch.tanh(x).permute(0, 1, 3, 2) * 1, lambda x: torch.tanh(x).permute(0, 1, 2, 3) * 1, x)
    assert found.verified
    assert "[0, 1, 3, 2]" in found.fix


def test_the_padding_of_a_convolution_is_that_of_torch():
    weight = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(1))

    def files(pads: list[int]) -> onnx.ModelProto:
        return file([helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=pads)], (2, 4, 6, 8), w=weight)

    found = first(lambda x: F.conv2d(x, weight, padding=1), files([2, 1, 0, 1]))
    assert found.verified
    assert found.fix == "Set pads of conv to [1, 1, 1, 1]."
    honest = ds.compare(lambda x: F.conv2d(x, weight, padding=1), files([1, 1, 1, 1]), (X,))
    assert honest.verdict in ("IDENTICAL", "ROUNDING")


def test_a_sign_that_was_lost_is_told_with_the_operator_that_is_missing():
    nodes = [
        helper.make_node("Identity", ["x"], ["n"], "neg"),
        helper.make_node("Concat", ["n", "x"], ["y"], "cat", axis=-1),
    ]
    found = first(lambda x: torch.cat([-x, x], -1), file(nodes, (2, 3, 6, 16)))
    assert found.where.node == "neg"
    assert found.verified
    assert "aten.neg" in found.fix


def test_a_complex_value_is_the_pair_of_its_parts():
    parts = torch.randn(3, 5, 2, dtype=torch.float64)
    one, other = sketch(torch.view_as_complex(parts)), sketch(parts)
    assert one is not None
    assert one.same(other)
    turned = sketch(torch.view_as_complex(parts.flip(-1).contiguous()))
    assert not turned.same(other)


@pytest.mark.parametrize(
    ("gap", "right"),
    [
        (lambda c, x: (c * c - 0.25) * x, 0.5),
        (lambda c, x: (c * c - 0.25) * x[:5], None),  # too few elements to say so
        (lambda c, x: (c - 0.5) * x + 1, None),  # no number closes it
        (lambda _c, x: x, None),  # nothing depends on it
    ],
)
def test_a_number_is_solved_for_only_where_it_closes_the_gap(gap, right: float | None):
    x = torch.linspace(1, 2, 20, dtype=torch.float64)
    found = solve_number(lambda c: gap(c, x), 0.51)
    assert found == pytest.approx(right, rel=1e-9) if right else found is None
