"""A second opinion: the same file in float64, run by ONNX's own reference. Slow, plain and not ours."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN)


def doubled(model: ModelProto) -> ModelProto:
    """Return a copy whose floats are all float64: weights, inputs, outputs and casts between floats."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for initializer in copy.graph.initializer:
        if initializer.data_type in _NARROW:
            wide = np.asarray(numpy_helper.to_array(initializer)).astype(np.float64)
            initializer.CopyFrom(numpy_helper.from_array(wide, initializer.name))
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del copy.graph.value_info[:]
    for node in copy.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _NARROW:
                attribute.i = TensorProto.DOUBLE
            elif node.op_type == "Resize" and attribute.name == "scales":
                raise NotImplementedError("scales as an attribute")
    return copy


def reference_outputs(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run ``model`` in float64 with onnx.reference; float feeds are widened."""
    wide = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in feeds.items()}
    return list(ReferenceEvaluator(_with_plain_resize(doubled(model))).run(None, wide))


def _with_plain_resize(model: ModelProto) -> ModelProto:
    for node in model.graph.node:
        if node.op_type == "Resize" and len(node.input) > 2:
            # The operator takes scales in float32 whatever the data's type.
            name = f"{node.input[2]}_float"
            scales = next(i for i in model.graph.initializer if i.name == node.input[2])
            model.graph.initializer.append(
                numpy_helper.from_array(numpy_helper.to_array(scales).astype(np.float32), name)
            )
            node.input[2] = name
    return model
