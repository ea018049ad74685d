"""Which operator took onnxruntime down: the graph run again, one node at a time, each in the worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import torch
from onnx import helper, numpy_helper

from driftscope.errors import RuntimeCrashed, RuntimeRefused
from driftscope.programs.arrays import tensor_of
from driftscope.programs.runtimes.ort_options import SessionSetup
from driftscope.programs.runtimes.ort_remote import RemoteSession
from driftscope.programs.runtimes.ort_values import ELEMENTS
from driftscope.programs.runtimes.ort_worker import Recipe

#: Beyond this many nodes the search would take longer than anybody waits for a name.
_MOST_NODES = 2000


def crash_site(
    model: onnx.ModelProto, folder: Path | None, setup: SessionSetup, feeds: Mapping[str, torch.Tensor]
) -> tuple[str, str]:
    """Return name and operator of the node that crashes when run alone on the values it had; ``("", "")`` if none.

    Parameters
    ----------
    model : onnx.ModelProto
    folder : Path or None
        Where external data lies.
    setup : SessionSetup
    feeds : dict of str to torch.Tensor
    """
    if len(model.graph.node) > _MOST_NODES:
        return "", ""
    values = dict(feeds) | _constants(model, folder)
    for node in model.graph.node:
        wanted = [name for name in dict.fromkeys(_reads(node)) if name]
        if any(not isinstance(values.get(name), torch.Tensor) for name in wanted):
            return "", ""
        try:
            values |= _alone(model, node, setup, {name: values[name] for name in wanted})
        except RuntimeCrashed:
            return node.name, node.op_type
        except RuntimeRefused:
            return "", ""
    return "", ""


def _constants(model: onnx.ModelProto, folder: Path | None) -> dict[str, torch.Tensor]:
    place = str(folder) if folder is not None else ""
    return {t.name: tensor_of(numpy_helper.to_array(t, place)) for t in model.graph.initializer}


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, the values that its subgraphs take from outside included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            made = {v.name for v in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
            yield from (name for inner in graph.node for name in _reads(inner) if name not in made)
            yield from (value.name for value in graph.output if value.name not in made)


def _alone(
    model: onnx.ModelProto, node: onnx.NodeProto, setup: SessionSetup, feeds: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    given = [helper.make_tensor_value_info(n, ELEMENTS[t.dtype], list(t.shape)) for n, t in feeds.items()]
    names = tuple(name for name in node.output if name)
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    piece = helper.make_model(
        helper.make_graph([node], "piece", given, outputs),
        opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version,
    )  # fmt: skip
    recipe = Recipe(piece.SerializeToString(), SessionSetup("disable", threads=setup.threads, provider=setup.provider))
    return RemoteSession(lambda: recipe).run(feeds, names)
