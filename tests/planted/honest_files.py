"""Honest changes of the file: what other exporters and other tools write for the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir
import onnxscript.optimizer
import onnxscript.rewriter
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper

from .edits import cast, change, constant_slot, find, insert_after, store, stored, user_of
from .stage import Honest, Pair, Stage

Rewrite = Callable[[ModelProto], Any]


def _rewritten(rewrite: Rewrite) -> Callable[[Stage], Pair]:
    """Edit the clean export in place, or return another model."""

    def make(stage: Stage) -> Pair:
        model = stage.model()
        made = rewrite(model)
        return stage.module(), made if isinstance(made, ModelProto) else model

    return make


def _exported(**options: Any) -> Callable[[Stage], Pair]:
    return lambda stage: (stage.module(), stage.model(**options))


def _any_batch(stage: Stage) -> Pair:
    batch = torch.export.Dim("batch", min=1, max=64)
    return stage.module(), stage.export(stage.module(), dynamic_shapes=({0: batch},))


def _of_capture(stage: Stage) -> Pair:
    return stage.module(), stage.export(torch.export.export(stage.module(), stage.example()))


def _external(stage: Stage) -> Pair:
    target = stage.folder / "model.onnx"
    onnx.save_model(stage.model(), target, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    return stage.module(), str(target)


def _round_trip(model: ModelProto) -> ModelProto:
    return onnx_ir.to_proto(onnx_ir.from_proto(model))


def _other_opset(version: int) -> Rewrite:
    return lambda model: onnx.version_converter.convert_version(model, version)


def _constants_as_nodes(model: ModelProto) -> None:
    for initializer in reversed(model.graph.initializer):
        model.graph.node.insert(
            0, helper.make_node("Constant", [], [initializer.name], f"constant_{initializer.name}", value=initializer)
        )
    del model.graph.initializer[:]


def _renamed(model: ModelProto) -> None:
    """Give every node and every inner value a name that says nothing, as stripped files do."""
    kept = {v.name for v in (*model.graph.input, *model.graph.output)} | {""}
    names: dict[str, str] = {}

    def fresh(name: str) -> str:
        return name if name in kept else names.setdefault(name, f"v{len(names)}")

    for initializer in model.graph.initializer:
        initializer.name = fresh(initializer.name)
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
        del node.metadata_props[:]
        for values in (node.input, node.output):
            values[:] = [fresh(name) for name in values]
    del model.graph.value_info[:]


def _additions_exchanged(model: ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type in ("Add", "Mul"):
            node.input[0], node.input[1] = node.input[1], node.input[0]


def _gemm_as_matmul(model: ModelProto) -> None:
    """Write each Gemm as MatMul and Add, with the weight stored the other way round."""
    for node in [n for n in model.graph.node if n.op_type == "Gemm"]:
        weight = store(model, f"{node.input[1]}_t", stored(model, node.input[1]).T)
        product = helper.make_node("MatMul", [node.input[0], weight], [f"{node.output[0]}_p"], f"{node.name}_p")
        model.graph.node.insert(list(model.graph.node).index(node), product)
        node.op_type = "Add"
        del node.attribute[:]
        node.input[:] = [product.output[0], node.input[2]]


def _packed_projections(model: ModelProto) -> None:
    """Store q, k and v as one weight: one MatMul, one Add, one Split."""
    matmuls = [find(model, "MatMul", i) for i in range(3)]
    adds = [user_of(model, m.output[0]) for m in matmuls]
    weight = np.concatenate([stored(model, m.input[1]) for m in matmuls], axis=1)
    bias = np.concatenate([stored(model, a.input[constant_slot(model, a)]) for a in adds])
    packed = [
        helper.make_node("MatMul", [matmuls[0].input[0], store(model, "qkv_w", weight)], ["qkv_p"], "qkv_matmul"),
        helper.make_node("Add", ["qkv_p", store(model, "qkv_b", bias)], ["qkv"], "qkv_add"),
        helper.make_node("Split", ["qkv"], [a.output[0] for a in adds], "qkv_split", axis=-1, num_outputs=3),
    ]
    position = list(model.graph.node).index(matmuls[0])
    for node in (*matmuls, *adds):
        model.graph.node.remove(node)
    for node in reversed(packed):
        model.graph.node.insert(position, node)


def _mask_value(value: float) -> Rewrite:
    return lambda model: change(find(model, "Where"), model, 1, lambda c: np.full_like(c, value))


def _lowest_mask(model: ModelProto) -> None:
    change(find(model, "Where"), model, 1, lambda c: np.full_like(c, np.finfo(c.dtype).min))


def _reciprocals(model: ModelProto) -> None:
    """Multiply by 1/c, rounded, instead of dividing by c."""
    for node in [n for n in model.graph.node if n.op_type == "Div"]:
        if node.input[1] in {i.name for i in model.graph.initializer}:
            change(node, model, 1, lambda c: 1 / c.astype(np.float64))
            node.op_type = "Mul"


def _one_scale(model: ModelProto) -> None:
    """Scale the queries once by d**-0.5 instead of queries and keys by d**-0.25 each."""
    scales = [n for n in model.graph.node if n.op_type == "Mul"]
    for query, key in zip(scales[0::2], scales[1::2], strict=True):
        change(query, model, 1, lambda c: np.full(c.shape, 8**-0.5))
        reader = user_of(model, key.output[0])
        reader.input[1] = key.input[0]
        model.graph.node.remove(key)


def _primitive_norms(model: ModelProto) -> None:
    """Spell LayerNormalization with primitive operators, epsilon a stored scalar."""
    for index, node in enumerate([n for n in model.graph.node if n.op_type == "LayerNormalization"]):
        x, weight, bias = node.input
        dtype = stored(model, weight).dtype
        axes = store(model, "last_axis", np.array([-1], np.int64))
        eps = store(model, "norm_epsilon", np.array(1e-5, dtype))
        p = f"ln{index}_"
        steps = [
            ("ReduceMean", [x, axes], "mean"),
            ("Sub", [x, p + "mean"], "centred"),
            ("Mul", [p + "centred", p + "centred"], "square"),
            ("ReduceMean", [p + "square", axes], "variance"),
            ("Add", [p + "variance", eps], "shifted"),
            ("Sqrt", [p + "shifted"], "deviation"),
            ("Div", [p + "centred", p + "deviation"], "normed"),
            ("Mul", [p + "normed", weight], "scaled"),
        ]
        made = [helper.make_node(op, ins, [p + out], p + out) for op, ins, out in steps]
        made.append(helper.make_node("Add", [p + "scaled", bias], [node.output[0]], p + "out"))
        _replace(model, node, made)


def _primitive_softmax(model: ModelProto) -> None:
    for index, node in enumerate([n for n in model.graph.node if n.op_type == "Softmax"]):
        p = f"sm{index}_"
        axes = store(model, "softmax_axis", np.array([-1], np.int64))
        made = [
            helper.make_node("ReduceMax", [node.input[0], axes], [p + "max"], p + "max"),
            helper.make_node("Sub", [node.input[0], p + "max"], [p + "shifted"], p + "shifted"),
            helper.make_node("Exp", [p + "shifted"], [p + "exp"], p + "exp"),
            helper.make_node("ReduceSum", [p + "exp", axes], [p + "sum"], p + "sum"),
            helper.make_node("Div", [p + "exp", p + "sum"], [node.output[0]], p + "out"),
        ]
        _replace(model, node, made)


def _erf_gelu(model: ModelProto) -> None:
    """Spell Gelu with Erf, its two constants stored in the model's dtype."""
    dtype = stored(model, "norm.weight").dtype
    root = store(model, "root_two", np.array(2**0.5, dtype))
    one, half = store(model, "one", np.array(1.0, dtype)), store(model, "half", np.array(0.5, dtype))
    for index, node in enumerate([n for n in model.graph.node if n.op_type == "Gelu"]):
        x, p = node.input[0], f"gelu{index}_"
        made = [
            helper.make_node("Div", [x, root], [p + "scaled"], p + "scaled"),
            helper.make_node("Erf", [p + "scaled"], [p + "erf"], p + "erf"),
            helper.make_node("Add", [p + "erf", one], [p + "plus"], p + "plus"),
            helper.make_node("Mul", [x, p + "plus"], [p + "product"], p + "product"),
            helper.make_node("Mul", [p + "product", half], [node.output[0]], p + "out"),
        ]
        _replace(model, node, made)


def _fused_rms(model: ModelProto) -> None:
    """Spell the norm as RMSNormalization's primitive form with x*x and a division."""
    for node in [n for n in model.graph.node if n.op_type == "Pow"]:
        node.op_type = "Mul"
        node.input[1] = node.input[0]
    for node in [n for n in model.graph.node if n.op_type == "Reciprocal"]:
        reader = user_of(model, node.output[0])
        reader.op_type = "Div"
        reader.input[1 if reader.input[1] == node.output[0] else 0] = node.input[0]
        model.graph.node.remove(node)


def _there_and_back(model: ModelProto) -> None:
    """Transpose an inner value and transpose it back."""
    flip = lambda source, target: helper.make_node("Transpose", [source], [target], perm=[0, 2, 1])  # noqa: E731
    insert_after(model, "add_1", flip, flip)


def _identities(model: ModelProto) -> None:
    same = lambda source, target: helper.make_node("Identity", [source], [target])  # noqa: E731
    for value in ("linear", "add", "sub"):
        insert_after(model, value, same)


def _through_double(model: ModelProto) -> None:
    back = TensorProto.FLOAT16 if model.graph.input[0].type.tensor_type.elem_type == 10 else TensorProto.FLOAT
    insert_after(model, "add", cast(TensorProto.DOUBLE), cast(back))


def _replace(model: ModelProto, node: NodeProto, made: list[NodeProto]) -> None:
    position = list(model.graph.node).index(node)
    model.graph.node.remove(node)
    for new in reversed(made):
        model.graph.node.insert(position, new)


FILES = (
    *(
        Honest(
            f"opset-{v}-{n}",
            n,
            _exported(opset=v),
            slow=(v, n) not in ((18, "encoder"), (23, "encoder"), (23, "decoder")),
        )
        for v in (18, 21, 23)
        for n in ("encoder", "decoder", "padded", "groupnet", "mlp")
    ),
    *(
        Honest(f"not-optimised-{n}", n, _exported(optimize=False), slow=n not in ("encoder", "convnet"))
        for n in ("encoder", "convnet", "decoder", "recurrent")
    ),
    Honest("any-batch", "mlp", _any_batch),
    Honest("export-of-capture", "groupnet", _of_capture, slow=True),
    Honest("other-attention-exported", "encoder", lambda s: (s.module(), s.exports.model("encoder-manual", s.dtype))),
    Honest("external-data", "encoder", _external),
    Honest("onnx-ir-round-trip", "decoder", _rewritten(_round_trip)),
    Honest("converted-to-opset-21", "encoder", _rewritten(_other_opset(21))),
    Honest("converted-to-opset-22", "convnet", _rewritten(_other_opset(22))),
    Honest("script-optimised", "decoder", _rewritten(lambda m: onnxscript.optimizer.optimize(m))),
    Honest("script-rewritten", "encoder", _rewritten(lambda m: onnxscript.rewriter.rewrite(m))),
    Honest("constants-as-nodes", "encoder", _rewritten(_constants_as_nodes)),
    Honest("names-stripped", "encoder", _rewritten(_renamed)),
    Honest("names-stripped-convnet", "convnet", _rewritten(_renamed)),
    Honest("names-stripped-decoder", "decoder", _rewritten(_renamed)),
    Honest("operands-exchanged", "decoder", _rewritten(_additions_exchanged)),
    Honest("gemm-as-matmul", "mlp", _rewritten(_gemm_as_matmul)),
    Honest("packed-projections", "encoder", _rewritten(_packed_projections)),
    Honest("mask-minus-1e4", "padded", _rewritten(_mask_value(-1e4))),
    Honest("mask-lowest", "padded", _rewritten(_lowest_mask)),
    Honest("reciprocals", "padded", _rewritten(_reciprocals)),
    Honest("reciprocal-temperature", "mlp", _rewritten(_reciprocals)),
    Honest("one-scale", "encoder", _rewritten(_one_scale)),
    Honest("primitive-norms", "encoder", _rewritten(_primitive_norms)),
    Honest("primitive-softmax", "encoder", _rewritten(_primitive_softmax)),
    Honest("erf-gelu", "encoder", _rewritten(_erf_gelu)),
    Honest("squares-and-quotients", "decoder", _rewritten(_fused_rms)),
    Honest("there-and-back", "encoder", _rewritten(_there_and_back)),
    Honest("identities", "mlp", _rewritten(_identities)),
    Honest("through-float64", "mlp", _rewritten(_through_double)),
)
