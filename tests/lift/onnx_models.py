"""Small ONNX models made by hand, for tests of the evaluator itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from driftscope.lift.onnx.graph import LiftedOnnx, lift_onnx
from driftscope.lift.steps import Step

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def graph_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, int],
    outputs: Sequence[str],
    initializers: Mapping[str, np.ndarray] | None = None,
) -> onnx.GraphProto:
    """A graph; inputs say their element types, nothing says a shape."""
    return helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, element, None) for name, element in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (initializers or {}).items()],
    )


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, int],
    outputs: Sequence[str],
    initializers: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 20,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model of one graph."""
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    graph = graph_of(nodes, inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> Any:
    """A node of the standard domain."""
    return helper.make_node(op_type, list(inputs), list(outputs), name or None, **attributes)


def value_of(lifted: LiftedOnnx, **options: Any) -> torch.Tensor:
    """The first output of a run."""
    value = lifted.run(**options)[0].value
    assert value is not None
    return value


def steps_of(lifted: LiftedOnnx) -> list[Step]:
    """Every step of a run."""
    steps: list[Step] = []
    lifted.run(observe=steps.append)  # type: ignore[arg-type]
    return steps


__all__ = ["FLOAT", "INT64", "graph_of", "lift_onnx", "model_of", "node", "steps_of", "value_of"]
