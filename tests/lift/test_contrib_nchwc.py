"""Blocked channels: filters come back to their order, and a blocked graph computes what its file computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_node import distance, lifted, run, session
from onnx import helper, numpy_helper

from driftscope.errors import CannotLift
from driftscope.lift.onnx.contrib.nchwc import NCHWC, blocked_filter, native_block_size, unblocked_filter

RNG = np.random.default_rng(24)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def graph(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], shape: list[int]) -> onnx.ModelProto:
    proto = helper.make_graph(
        nodes,
        "blocked",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(NCHWC, 1)]
    return helper.make_model(proto, opset_imports=opsets, ir_version=10)


def optimised(model: onnx.ModelProto, folder: Any, level: str = "ORT_ENABLE_ALL") -> onnx.ModelProto:
    """The graph that a session of onnxruntime runs in place of a model."""
    import onnxruntime as ort

    path = str(folder / "optimised.onnx")
    session(model, graph_optimization_level=getattr(ort.GraphOptimizationLevel, level), optimized_model_filepath=path)
    return onnx.load(path)


def blocked_operators(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node if n.domain == NCHWC]


def convolution(o: int, i: int, name: str = "w", **attributes: Any) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    group = attributes.get("group", 1)
    weights = {name: f32(o, i // group, 3, 3) / 3, f"{name}_bias": f32(o)}
    return helper.make_node("Conv", ["x", *weights], ["c"], "conv", pads=[1, 1, 1, 1], **attributes), weights


def after(op_type: str, source: str = "c", target: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, [source], [target], f"{op_type}_{target}", **attributes)


def chain(o: int, i: int, *tail: onnx.NodeProto, group: int = 1, size: int = 9) -> onnx.ModelProto:
    conv, weights = convolution(o, i, group=group)
    return graph([conv, *tail], weights, [2, i, size, size])


def residual() -> onnx.ModelProto:
    """A second convolution whose result is added to its input: the sum is folded into it."""
    first, weights = convolution(16, 3)
    second = helper.make_node("Conv", ["r", "v", "v_bias"], ["d"], "second", pads=[1, 1, 1, 1])
    weights |= {"v": f32(16, 16, 3, 3) / 10, "v_bias": f32(16)}
    add = helper.make_node("Add", ["d", "r"], ["s"], "sum")
    nodes = [first, after("Relu", target="r"), second, add, after("Relu", "s")]
    return graph(nodes, weights, [2, 3, 9, 9])


def squeezed() -> onnx.ModelProto:
    """Squeeze and excitation: channels scaled by a function of their means."""
    first, weights = convolution(16, 3)
    nodes = [first, after("GlobalAveragePool", target="m")]
    weights |= {"v": f32(16, 16, 1, 1), "v_bias": f32(16)}
    nodes += [helper.make_node("Conv", ["m", "v", "v_bias"], ["e"], "excite"), after("Sigmoid", "e", "g")]
    nodes += [helper.make_node("Mul", ["c", "g"], ["s"], "scale"), after("Relu", "s")]
    return graph(nodes, weights, [2, 3, 9, 9])


def normalised() -> onnx.ModelProto:
    """A batch normalisation behind a pooling becomes a depthwise convolution of its own."""
    first, weights = convolution(16, 3)
    weights |= {name: np.abs(f32(16)) + np.float32(0.1) for name in ("scale", "shift", "mean", "variance")}
    nodes = [first, after("MaxPool", target="p", kernel_shape=[2, 2])]
    nodes.append(helper.make_node("BatchNormalization", ["p", *list(weights)[2:]], ["y"], "batch_norm"))
    return graph(nodes, weights, [2, 3, 9, 9])


def transposed() -> onnx.ModelProto:
    """Channels last on both sides."""
    first, weights = convolution(16, 16)
    nodes = [helper.make_node("Transpose", ["t"], ["x"], "to_first", perm=[0, 3, 1, 2]), first]
    nodes.append(helper.make_node("Transpose", ["c"], ["y"], "to_last", perm=[0, 2, 3, 1]))
    model = graph(nodes, weights, [2, 9, 9, 16])
    model.graph.input[0].name = "t"
    return model


GRAPHS = {
    "image": chain(16, 3, after("Relu")),
    "padded-channels": chain(20, 3, after("Relu")),
    "both-blocked": chain(32, 16, after("Sigmoid")),
    "input-padded": chain(16, 20, after("Relu")),
    "depthwise": chain(32, 32, after("Relu"), group=32),
    "grouped": chain(64, 64, after("Tanh"), group=2),
    "leaky": chain(16, 3, after("LeakyRelu", alpha=0.2)),
    "max-pool": chain(16, 3, after("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
    "max-pool-ceiling": chain(16, 3, after("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)),
    "mean-pool": chain(16, 3, after("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
    "mean-pool-padding": chain(
        16, 3, after("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1)
    ),
    "mean-of-all": chain(16, 3, after("GlobalAveragePool")),
    "max-of-all": chain(16, 3, after("GlobalMaxPool")),
    "residual": residual(),
    "gated": chain(16, 3, after("Sigmoid", target="g"), helper.make_node("Mul", ["c", "g"], ["y"], "gate")),
    "squeezed": squeezed(),
    "transposed": transposed(),
    "concatenated": chain(16, 3, helper.make_node("Concat", ["c", "c"], ["y"], "concat", axis=1)),
}


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    (given,) = model.graph.input
    return {given.name: f32(*[d.dim_value for d in given.type.tensor_type.shape.dim])}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_blocked_graph_computes_what_the_file_computes(name: str, tmp_path: Any) -> None:
    model = GRAPHS[name]
    blocked = optimised(model, tmp_path)
    assert blocked_operators(blocked), "onnxruntime no longer writes this graph in blocks"
    feeds = feeds_of(model)
    plain, got = lifted(model, feeds).run()[0].value, lifted(blocked, feeds).run()[0].value
    torch.testing.assert_close(got, plain, rtol=1e-13, atol=1e-13)
    assert distance(run(blocked, feeds)[0], got) < 1e-5


@pytest.mark.parametrize("mode", ["nearest", "asymmetric", "half_pixel", "align_corners"])
def test_blocked_upsampling(mode: str, tmp_path: Any) -> None:
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if mode != "nearest":
        attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
    conv, weights = convolution(16, 3)
    weights["scales"] = np.array([1, 1, 2, 3], np.float32)
    resize = helper.make_node("Resize", ["c", "", "scales"], ["y"], "resize", **attributes)
    model = graph([conv, resize], weights, [1, 3, 5, 4])
    blocked = optimised(model, tmp_path)
    assert "Upsample" in blocked_operators(blocked)
    feeds = {"x": f32(1, 3, 5, 4)}
    got = lifted(blocked, feeds).run()[0].value
    assert distance(run(blocked, feeds)[0], got) < 1e-5
    # Positions are computed in float32, which is exact for these sizes but in align_corners.
    limit = 1e-6 if mode == "align_corners" else 1e-13
    torch.testing.assert_close(got, lifted(model, feeds).run()[0].value, rtol=limit, atol=limit)


def test_a_batch_normalisation_of_blocks_is_folded_with_one_rounding(tmp_path: Any) -> None:
    model = normalised()
    blocked, feeds = optimised(model, tmp_path), feeds_of(model)
    assert blocked_operators(blocked).count("Conv") == 2
    got, plain = lifted(blocked, feeds).run()[0].value, lifted(model, feeds).run()[0].value
    assert 0 < distance(plain.numpy(), got) < 5e-7
    assert distance(run(blocked, feeds)[0], got) < 1e-5


def test_a_residual_sum_is_folded_into_the_convolution(tmp_path: Any) -> None:
    blocked = optimised(GRAPHS["residual"], tmp_path)
    assert sorted(len(n.input) for n in blocked.graph.node if n.op_type == "Conv") == [3, 4]


def test_a_filter_in_another_order_is_another_function(tmp_path: Any) -> None:
    """The twin of the above: one blocked filter with two input channels exchanged is found."""
    model = GRAPHS["both-blocked"]
    blocked = optimised(model, tmp_path)
    name = next(n.input[1] for n in blocked.graph.node if n.op_type == "Conv")
    stored = next(t for t in blocked.graph.initializer if t.name == name)
    w = numpy_helper.to_array(stored).copy()
    plain = unblocked_filter(torch.from_numpy(w), native_block_size(), True)[:, [1, 0, *range(2, w.shape[1])]]
    wrong = blocked_filter(plain, native_block_size(), True).contiguous().numpy()
    stored.CopyFrom(numpy_helper.from_array(wrong, name))
    feeds = {"x": f32(2, 16, 9, 9)}
    got, right = lifted(blocked, feeds).run()[0].value, lifted(model, feeds).run()[0].value
    assert float((got - right).abs().max()) > 1e-3
    assert distance(run(blocked, feeds)[0], got) < 3e-6, "and onnxruntime computes the wrong one too"


@settings(max_examples=30)
@given(st.sampled_from([4, 8, 16]), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_blocking_a_filter_can_be_undone(block: int, outer: int, inner: int, paired: bool) -> None:
    shape = (outer * block, inner * block if paired else inner, 2, 3)
    w = torch.arange(float(np.prod(shape))).reshape(shape)
    stored = blocked_filter(w, block, paired)
    assert torch.equal(unblocked_filter(stored, block, paired), w)
    # Within a block the output channel is what moves fastest.
    assert torch.equal(stored.reshape(-1)[:block], w[:block, 0, 0, 0])


def test_a_filter_that_no_block_divides_is_refused() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], "odd", domain=NCHWC)
    model = graph([node], {"w": f32(7, 3, 1, 1)}, [1, 3, 4, 4])
    with pytest.raises(CannotLift, match="7 output channels"):
        lifted(model, {"x": f32(1, 3, 4, 4)}).run()


def test_channels_last_reorders() -> None:
    """ReorderInput and ReorderOutput undo each other in either order of channels."""
    for last in (0, 1):
        shape = [1, 3, 4, 20] if last else [1, 20, 3, 4]
        nodes = [
            helper.make_node("ReorderInput", ["x"], ["b"], "in", domain=NCHWC, channels_last=last),
            helper.make_node("ReorderOutput", ["b"], ["y"], "out", domain=NCHWC, channels_last=last, channels=20),
        ]
        model, feeds = graph(nodes, {}, shape), {"x": f32(*shape)}
        assert np.array_equal(run(model, feeds)[0], feeds["x"])
        assert distance(feeds["x"], lifted(model, feeds).run()[0].value) == 0
