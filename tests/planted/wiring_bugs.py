"""Bugs in the wiring: every node is right, one edge is not."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, helper

from .bug import Bug, Plant
from .edits import as_identity, attribute, find, insert_after, node_named, store, stored, swap_inputs, times, user_of


def _skips(name: str, slot: int) -> Plant:
    """Let the named node pass its input ``slot`` on, unchanged."""
    return lambda model: as_identity(node_named(model, name), slot)


def _reads(name: str, slot: int, value: str) -> Plant:
    """Let the named node read another value."""

    def plant(model: ModelProto) -> str:
        node = node_named(model, name)
        node.input[slot] = value
        return name

    return plant


def _heads_merged_without_transpose(model: ModelProto) -> str:
    name = attribute(node_named(model, "node_transpose_3"), "perm", to=[0, 1, 2, 3])
    kept = [v for v in model.graph.value_info if v.name != "transpose_3"]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    return name


def _rotary_lost_on_keys(model: ModelProto) -> str:
    node = user_of(model, "add_8")
    node.input[0] = "transpose_5"
    return node.name


def _normalised_once_more(model: ModelProto) -> str:
    """Divide the pooled sum by the padded length, not by the number of tokens."""
    node = node_named(model, "node_div_1")
    dtype = stored(model, "norm.weight").dtype
    node.input[1] = store(model, "padded_length", np.array(9.0, dtype))
    return node.name


def _quick_gelu(model: ModelProto) -> str:
    node = find(model, "Sigmoid", 0)
    scaled = times(model, 1.702)(node.input[0], "planted_scaled")
    scaled.name = "planted_scale"
    node.input[0] = "planted_scaled"
    model.graph.node.insert(list(model.graph.node).index(node), scaled)
    return "planted_scale"


def _mask_on_queries(model: ModelProto) -> str:
    node = user_of(model, "ne")
    node = next(n for n in model.graph.node if n.op_type == "Unsqueeze" and n.input[0] == "ne")
    node.input[1] = store(model, "query_axes", np.array([1, 3], np.int64))
    return node.name


def _two_groups(model: ModelProto) -> str:
    node = find(model, "InstanceNormalization")
    dtype = stored(model, node.input[1]).dtype
    reshape = next(n for n in model.graph.node if n.output[0] == node.input[0])
    reshape.input[1] = store(model, "two_groups", np.array([0, 2, -1], np.int64))
    node.input[1] = store(model, "two_ones", np.ones(2, dtype))
    node.input[2] = store(model, "two_zeros", np.zeros(2, dtype))
    kept = [v for v in model.graph.value_info if v.name not in (reshape.output[0], node.output[0])]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    return reshape.name


def _relu_for_leaky(model: ModelProto) -> str:
    node = find(model, "LeakyRelu")
    node.op_type = "Relu"
    return attribute(node, "alpha")


def _squared_relu(model: ModelProto) -> str:
    return insert_after(model, "relu", lambda source, target: helper.make_node("Mul", [source, source], [target]))


def _scale_added(model: ModelProto) -> str:
    return insert_after(model, "matmul", times(model, 8**-0.5))


WIRING_BUGS = (
    Bug("subtraction-exchanged", "mlp", lambda m: swap_inputs(find(m, "Sub")), "b - a for a - b"),
    Bug("branch-scale-lost", "mlp", _skips("node_mul", 0), "the factor 0.1 is gone"),
    Bug("residual-from-earlier", "encoder", _reads("node_add_3", 0, "add_1"), "one addition too early"),
    Bug("residual-skipped", "encoder", _skips("node_add_1", 1), "the sum keeps only the branch"),
    Bug("branch-skipped", "encoder", _skips("node_add", 0), "attention has no effect"),
    Bug("norm-skipped", "encoder", _reads("node_MatMul_62", 0, "add"), "the feed-forward reads what is not normed"),
    Bug("values-are-keys", "encoder", _reads("node_scaled_dot_product_attention", 1, "transpose_1"), "k for v"),
    Bug("heads-merged-untransposed", "encoder", _heads_merged_without_transpose, "reshaped all the same"),
    Bug("rotation-sign", "decoder", lambda m: as_identity(find(m, "Neg"), 0), "the minus of the half turn is lost"),
    Bug("rotation-halves", "decoder", lambda m: swap_inputs(find(m, "Concat", 1)), "halves joined the other way"),
    Bug("rotary-lost-on-keys", "decoder", _rotary_lost_on_keys, "only queries are rotated"),
    Bug("values-from-key-split", "decoder", _reads("node_view_2", 0, "split_split_1"), "the second third twice"),
    Bug("swish-beta", "decoder", _quick_gelu, "sigmoid(1.702 x) for sigmoid(x)"),
    Bug("mask-dropped", "padded", _skips("node_masked_fill", 2), "padding is attended to"),
    Bug("mask-on-queries", "padded", _mask_on_queries, "rows of padding are all masked: NaN"),
    Bug("pool-over-padding", "padded", _skips("node_mul_4", 0), "the sum includes padding"),
    Bug("pool-by-length", "padded", _normalised_once_more, "divided by 9, not by the count"),
    Bug("relu-lost", "convnet", _skips("node_relu", 0), "no activation"),
    Bug("relu-for-leaky", "convnet", _relu_for_leaky, "slope 0"),
    Bug("residual-before-activation", "groupnet", _reads("node_add", 0, "group_norm"), "the sum is taken too early"),
    Bug("two-groups-for-four", "groupnet", _two_groups, "GroupNorm over other groups"),
    Bug("relative-bias-lost", "relative", _skips("node_add_2", 0), "no positions at all"),
    Bug("relu-squared", "relative", _squared_relu, "another activation"),
    Bug("scale-added", "relative", _scale_added, "T5 has no scale"),
)
