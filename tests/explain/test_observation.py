"""Intermediate values read without changing the result; what marking them in the file would have done instead."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from optimised_graphs import WIDTH, chain, four_bit_model, model, root_mean_square, stored, written_gelu

import driftscope as ds
from driftscope.explain.locate.targets import largest_gap, same_bits
from driftscope.explain.native.observation import Observation, observe, readable_values
from driftscope.programs.protocol import Bound


def scores_in_float16() -> onnx.ModelProto:
    """Attention scores, scaled, through a softmax: on the CPU one float32 stretch, unless somebody looks inside."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], name="queries"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], name="keys"),
        helper.make_node("Transpose", ["k"], ["kt"], name="turn", perm=[1, 0]),
        helper.make_node("MatMul", ["q", "kt"], ["s"], name="scores"),
        helper.make_node("Mul", ["s", "c"], ["scaled"], name="scale"),
        helper.make_node("Softmax", ["scaled"], ["a"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["a", "x"], ["y"], name="mix"),
    ]
    weights = [stored(n, rng.standard_normal((WIDTH, WIDTH)) / 8, np.float16) for n in ("wq", "wk")]
    return model(nodes, [*weights, stored("c", WIDTH**-0.25, np.float16)], element=TensorProto.FLOAT16)


def norms_in_float32() -> onnx.ModelProto:
    """A residual sum and a norm that onnxruntime makes one SkipLayerNormalization of, if it may."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Add", ["x", "x2"], ["r"], name="residual"),
        helper.make_node("LayerNormalization", ["r", "g", "s"], ["y"], name="norm", axis=-1),
    ]
    shape = [2, 4, WIDTH]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "x2")]
    weights = [stored(name, rng.standard_normal(WIDTH)) for name in "gs"]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "norm", given, [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def overflowing_cast() -> onnx.ModelProto:
    """A float16 graph one of whose intermediate values is beyond 65504."""
    return root_mean_square(200.0)


def marked_in_the_file(proto: onnx.ModelProto, level: str = "all") -> dict[str, torch.Tensor]:
    """Read values as tools do that mark them in the file, and let the session optimise what is left."""
    marked = onnx.ModelProto()
    marked.CopyFrom(proto)
    known = {o.name for o in proto.graph.output}
    marked.graph.output.extend(onnx.ValueInfoProto(name=n) for n in readable_values(proto.graph) if n not in known)
    program = ds.onnx(marked, level=level)
    return program(program.bind(ds.inputs(_inputs(proto))))


def _inputs(proto: onnx.ModelProto) -> dict[str, torch.Tensor]:
    found = {}
    for seed, declared in enumerate(proto.graph.input):
        kind = declared.type.tensor_type
        dtype = torch.float16 if kind.elem_type == TensorProto.FLOAT16 else torch.float32
        sizes = [dim.dim_value for dim in kind.shape.dim]
        found[declared.name] = torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return found


def bound(proto: onnx.ModelProto, level: str = "all") -> Bound:
    return ds.onnx(proto, level=level).bind(ds.inputs(_inputs(proto)))


def read(observation: Observation) -> dict[str, torch.Tensor]:
    return {name: value for part in observation.values() for name, value in part.items()}


GRAPHS = [scores_in_float16, norms_in_float32, overflowing_cast, written_gelu, four_bit_model]


@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_reading_every_value_leaves_the_result_bit_for_bit(graph, level):
    observation = observe(bound(graph(), level))
    values = read(observation)
    assert observation.faithful
    assert observation.finding("B") is None
    assert "y" in values


def test_heisenbug_an_overflow_that_only_marking_shows():
    # Undisturbed, the CPU computes in float32 and never stores the square in float16.
    plain = ds.onnx(overflowing_cast())
    result = plain(plain.bind(ds.inputs(_inputs(overflowing_cast()))))["y"]
    assert torch.isfinite(result).all()
    assert torch.isinf(marked_in_the_file(overflowing_cast())["p"]).any()
    observation = observe(bound(overflowing_cast()))
    read(observation)
    assert observation.faithful


def test_heisenbug_marking_keeps_an_optimiser_from_fusing_and_moves_the_result():
    plain = ds.onnx(norms_in_float32())
    result = list(plain(plain.bind(ds.inputs(_inputs(norms_in_float32())))).values())
    marked = marked_in_the_file(norms_in_float32())
    assert not same_bits(result, [marked["y"]])
    assert same_bits(result, [read(observe(bound(norms_in_float32())))["y"]])


def test_heisenbug_a_float16_stretch_is_rounded_more_often_when_marked():
    plain = ds.onnx(scores_in_float16())
    result = list(plain(plain.bind(ds.inputs(_inputs(scores_in_float16())))).values())
    marked = marked_in_the_file(scores_in_float16())
    assert largest_gap(result, [marked["y"]]) > 0
    assert same_bits(result, [read(observe(bound(scores_in_float16())))["y"]])


def test_little_memory_means_more_runs_and_the_same_values():
    graph = scores_in_float16()
    whole = read(observe(bound(graph)))
    sizes = {name: value.numel() * value.element_size() for name, value in whole.items()}
    observation = observe(bound(graph), sizes, held=2 * max(sizes.values()))
    assert len(observation.parts) > 1
    assert all(sum(sizes[n] for n in part) <= 2 * max(sizes.values()) for part in observation.parts)
    parts = read(observation)
    assert observation.faithful
    assert parts.keys() == whole.keys()
    assert same_bits([parts[n] for n in whole], list(whole.values()))


def test_a_disturbed_result_is_said_with_its_size_and_nothing_is_concluded():
    observation = observe(bound(norms_in_float32()))
    observation.expected = [value + 1 for value in observation.expected]
    read(observation)
    found = observation.finding("B")
    assert found.code == "O012"
    assert found.note
    assert "changes its final output by 1" in found.what


def test_values_in_blocked_layout_are_not_read():
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], name="conv1"),
        helper.make_node("Sigmoid", ["c"], ["s"], name="sigmoid"),
        helper.make_node("Conv", ["s", "w2"], ["y"], name="conv2"),
    ]
    weights = [stored(n, rng.standard_normal((16, 16, 3, 3)) / 12) for n in ("w1", "w2")]
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 12, 12])
    graph = helper.make_graph(nodes, "convs", [shape], [helper.make_tensor_value_info("y", 1, None)], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    program = ds.onnx(proto)
    fitted = program.bind(ds.inputs({"x": torch.randn(1, 16, 12, 12)}))
    optimised = program.optimized_source(fitted).model.graph
    if not any(node.domain == "com.microsoft.nchwc" for node in optimised.node):
        pytest.skip("this processor's onnxruntime keeps convolutions in the usual layout")
    assert readable_values(optimised) == ["y"]
    assert set(readable_values(proto.graph)) == {"c", "s", "y"}


def test_a_chain_of_nothing_but_moves_is_read_too():
    proto = chain(([helper.make_node("Identity", ["x"], ["m"]), helper.make_node("Neg", ["m"], ["y"])], []))
    assert "y" in read(observe(bound(proto)))
