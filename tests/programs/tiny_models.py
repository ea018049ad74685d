"""The smallest programs that show a behaviour, as torch modules and as hand-written ONNX graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from onnx import ModelProto, NodeProto, TensorProto, helper
from torch import Tensor, nn

FLOAT = TensorProto.FLOAT


class Lookup(nn.Module):
    """Looks tokens up in a table of 50 rows and mixes them with ``x``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 8)
        self.mix = nn.Linear(8, 4)

    def forward(self, ids: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.mix(self.table(ids) + x)}


class Attend(nn.Module):
    """Query and key of the same shape: the pair that is easily exchanged."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2) - key.sum()


def value(name: str, element: int = FLOAT, shape: Sequence[int | str] | None = (2, 3)) -> Any:
    """Return a tensor's declaration."""
    return helper.make_tensor_value_info(name, element, None if shape is None else list(shape))


def onnx_model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    initializers: Sequence[TensorProto] = (),
    opset: int = 20,
    ir_version: int = 10,
) -> ModelProto:
    """Return a model of these nodes, of an opset and IR that every supported onnxruntime loads."""
    graph = helper.make_graph(list(nodes), "tiny", list(inputs), list(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def unary(
    op: str = "Relu", element: int = FLOAT, shape: Sequence[int | str] | None = (2, 3), **model: Any
) -> ModelProto:
    """Return ``y = op(x)``."""
    return onnx_model(
        [helper.make_node(op, ["x"], ["y"])], [value("x", element, shape)], [value("y", element, None)], **model
    )


def subtraction(first: str = "query", second: str = "key", *, exchanged: bool = False) -> ModelProto:
    """Return ``y = first - second``, or the other way round."""
    names = [second, first] if exchanged else [first, second]
    node = helper.make_node("Sub", names, ["y"])
    return onnx_model([node], [value(first), value(second)], [value("y", shape=None)])
