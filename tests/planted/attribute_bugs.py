"""Bugs in the attributes of nodes: the right weights, the wrong parameters."""

from __future__ import annotations

from onnx import ModelProto, helper

from .bug import HALF, Bug, Plant
from .edits import attribute, find, read_attribute


def _scaled(operator: str, index: int, name: str, factor: float) -> Plant:
    def plant(model: ModelProto) -> str:
        node = find(model, operator, index)
        return attribute(node, name, to=read_attribute(node, name) * factor)

    return plant


def _set(operator: str, index: int, name: str, to: object) -> Plant:
    return lambda model: attribute(find(model, operator, index), name, to=to)


def _average_for_max(model: ModelProto) -> str:
    node = find(model, "MaxPool")
    node.op_type = "AveragePool"
    for name in ("storage_order", "dilations"):
        attribute(node, name)
    return node.name


def _one_row_of_padding_moved(model: ModelProto) -> str:
    return attribute(find(model, "Conv", 0), "pads", to=[0, 1, 2, 1])


def _dilation_lost(model: ModelProto) -> str:
    node = find(model, "Conv", 2)
    attribute(node, "dilations", to=[1, 1])
    return attribute(node, "pads", to=[1, 1, 1, 1])


def _sampled_corners(model: ModelProto) -> str:
    return attribute(find(model, "Resize"), "coordinate_transformation_mode", to="align_corners")


def _hard_sigmoid(model: ModelProto) -> str:
    """Write the hard sigmoid with the 0.2 of another framework instead of HardSwish's 1/6."""
    node = find(model, "Sigmoid")
    node.op_type = "HardSigmoid"
    node.attribute.append(helper.make_attribute("alpha", 0.2))
    return node.name


ATTRIBUTE_BUGS = (
    Bug("layernorm-epsilon-x100", "encoder", _scaled("LayerNormalization", 1, "epsilon", 100.0), "1e-5 to 1e-3"),
    Bug("layernorm-epsilon-x10", "encoder", _scaled("LayerNormalization", 2, "epsilon", 10.0), "1e-5 to 1e-4"),
    Bug("layernorm-epsilon-x1.1", "encoder", _scaled("LayerNormalization", 3, "epsilon", 1.1), "1e-5 to 1.1e-5"),
    Bug("layernorm-epsilon-default", "padded", _scaled("LayerNormalization", 0, "epsilon", 10.0), "1e-6 to 1e-5"),
    Bug("gelu-tanh-for-erf", "encoder", _set("Gelu", 1, "approximate", "tanh"), "the other GELU"),
    Bug("softmax-over-queries", "encoder", _set("Softmax", 0, "axis", 2), "axis 2 instead of 3; same shape"),
    Bug("gemm-alpha-1.001", "encoder", _set("Gemm", 0, "alpha", 1.001), "one part in a thousand"),
    Bug("gemm-beta-0.99", "mlp", _set("Gemm", 3, "beta", 0.99), "the bias one percent short"),
    Bug("gemm-transpose-lost", "mlp", _set("Gemm", 1, "transB", 0), "a square weight, so the shapes still fit"),
    Bug("leaky-slope-default", "mlp", _set("LeakyRelu", 0, "alpha", 0.01), "0.2 to ONNX's default"),
    Bug("leaky-slope-0.1", "convnet", _set("LeakyRelu", 0, "alpha", 0.1001), "0.1 to 0.1001"),
    Bug("elu-alpha-default", "mlp", _set("Elu", 0, "alpha", 1.0), "0.7 to ONNX's default"),
    Bug("hard-sigmoid", "mlp", _hard_sigmoid, "a piecewise linear sigmoid"),
    Bug("pool-counts-padding", "convnet", _set("AveragePool", 0, "count_include_pad", 1), "borders grow darker"),
    Bug("padding-moved", "convnet", _one_row_of_padding_moved, "one row of zeros below instead of above"),
    Bug("dilation-lost", "convnet", _dilation_lost, "with pads to match, so the shapes still fit"),
    Bug("average-for-max-pool", "convnet", _average_for_max, "another pooling"),
    Bug("resize-asymmetric", "groupnet", _set("Resize", 0, "coordinate_transformation_mode", "asymmetric"), "shift"),
    Bug("resize-align-corners", "groupnet", _sampled_corners, "corners aligned"),
    Bug("resize-nearest", "groupnet", _set("Resize", 0, "mode", "nearest"), "nearest for bilinear"),
    Bug("groupnorm-epsilon", "groupnet", _scaled("InstanceNormalization", 0, "epsilon", 10.0), "1e-6 to 1e-5"),
    Bug("gru-reset-after", "recurrent", _set("GRU", 0, "linear_before_reset", 0), "the other GRU"),
    Bug("lstm-clip", "recurrent", _set("LSTM", 0, "clip", 0.25), "gates clipped"),
    Bug("lstm-forget-coupled", "recurrent", _set("LSTM", 0, "input_forget", 1), "coupled gates", dtypes=("float32",)),
    Bug(
        "softmax-over-keys-lost", "relative", _set("Softmax", 0, "axis", 1), "over the heads", dtypes=("float32", HALF)
    ),
)
