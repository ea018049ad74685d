"""Training left in a graph: dropout that drops, batch normalisation that normalises by the batch."""

from __future__ import annotations

from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from torch.export import ExportedProgram

from driftscope.programs.inspection.onnx_signature import graph_nodes
from driftscope.records.finding import Finding, Where
from driftscope.records.words import counted

_FIX = "export the model again after model.eval()"


def modes_of_onnx(model: ModelProto, name: str) -> list[Finding]:
    """Return O004 for dropout that is on and O003 for batch normalisation in training mode, in an ONNX model."""
    constants = _constants(model.graph)
    dropping = [node for node in graph_nodes(model.graph) if _drops(node, constants)]
    batching = [
        node
        for node in graph_nodes(model.graph)
        if node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)
    ]
    places = [(node.name or node.output[0], node.op_type) for node in dropping]
    return _dropout(places, name) + _batch([(node.name or node.output[0], node.op_type) for node in batching], name)


def _constants(graph: GraphProto) -> dict[str, TensorProto]:
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found


def _drops(node: NodeProto, constants: dict[str, TensorProto]) -> bool:
    # training_mode is the third input, since opset 12; without it nothing is dropped.
    if node.op_type != "Dropout" or len(node.input) < 3:
        return False
    training = constants.get(node.input[2])
    if training is None or not bool(numpy_helper.to_array(training)):
        return False
    ratio = constants.get(node.input[1])
    return ratio is None or float(numpy_helper.to_array(ratio)) > 0


def modes_of_export(exported: ExportedProgram, name: str) -> list[Finding]:
    """Return O004 for dropout that is on and O003 for batch normalisation in training mode, in an exported program."""
    dropping, batching = [], []
    for module in exported.graph_module.modules():
        for node in getattr(module, "graph", exported.graph).nodes:
            target = str(node.target)
            if target.startswith(("aten.dropout", "aten.native_dropout")) and _on(node.args, 2) and node.args[1] > 0:
                dropping.append((node.name, target))
            # The functional form is what decomposition makes of batch normalisation in train() mode, and only there.
            elif _on(node.args, 5) and target.startswith(
                ("aten.batch_norm", "aten._native_batch_norm_legit_functional")
            ):
                batching.append((node.name, target))
    return _dropout(dropping, name) + _batch(batching, name)


def _on(args: tuple[Any, ...], position: int) -> bool:
    return len(args) > position and args[position] is not False


def _dropout(places: list[tuple[str, str]], name: str) -> list[Finding]:
    if not places:
        return []
    count = "one dropout is" if len(places) == 1 else f"{len(places)} dropouts are"
    return [
        Finding(
            "O004",
            f"{count} on in the graph of {name}: random values are set to zero in every run",
            why="the model was exported in train() mode, or calls dropout without training=self.training",
            fix=_FIX,
            where=Where(node=places[0][0], operator=places[0][1]),
            evidence={"nodes": [list(place) for place in places]},
        )
    ]


def _batch(places: list[tuple[str, str]], name: str) -> list[Finding]:
    if not places:
        return []
    return [
        Finding(
            "O003",
            f"the graph of {name} normalises by the batch's own statistics ({counted(len(places), 'node')})",
            why="the model was exported in train() mode",
            fix=_FIX,
            where=Where(node=places[0][0], operator=places[0][1]),
            evidence={"nodes": [list(place) for place in places]},
        )
    ]
