"""A decoder of one attention layer as an ONNX graph, its cache among its inputs and outputs, with faults on request."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds

VOCABULARY, WIDTH, HEADS, PLACES = 20, 8, 2, 32
FAULTS = {
    "": "",
    "positions begin again": "Gather",
    "positions off by one": "Gather",
    "mask ignores the past": "Greater",
    "cache concatenated in front": "Concat",
    "keys of one head cached for both": "Concat",
}


class _Graph:
    """Nodes and constants, named as they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: object, out: str = "", **attributes: object) -> str:
        name = out or f"{kind.lower()}_{len(self.nodes)}"
        given = [one if isinstance(one, str) else self.constant(np.asarray(one)) for one in inputs]
        self.nodes.append(helper.make_node(kind, given, [name], f"node_{name}", **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name


def _heads(g: _Graph, x: str, weight: np.ndarray) -> str:
    product = g.add("MatMul", x, weight)
    parts = g.add("Reshape", product, np.array([0, 0, HEADS, WIDTH // HEADS]))
    return g.add("Transpose", parts, perm=[0, 2, 1, 3])


def _positions(g: _Graph, fault: str) -> tuple[str, str, str]:
    """Positions of the tokens given, of all keys, and what is embedded of the first."""
    many = g.add("Shape", "input_ids", start=1, end=2)
    past = g.add("Shape", "past_key_values.0.key", start=2, end=3)
    end = g.add("Add", past, many)
    scalars = [g.add("Squeeze", x) for x in (past, end)]
    own = g.add("Range", scalars[0], scalars[1], np.int64(1))
    every = g.add("Range", np.int64(0), scalars[1], np.int64(1))
    if fault == "positions begin again":
        return own, every, g.add("Sub", own, past)
    if fault == "positions off by one":
        return own, every, g.add("Sub", own, g.add("Cast", g.add("Greater", past, np.array([0])), to=TensorProto.INT64))
    return own, every, own


def decoder(fault: str = "", plain_names: bool = False) -> onnx.ModelProto:
    """Build the decoder; with plain names its outputs say nothing of what they are."""
    random, g = np.random.default_rng(0), _Graph()
    weights = [random.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(4)]
    own, every, placed = _positions(g, fault)
    x = g.add("Gather", random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32), "input_ids")
    x = g.add("Add", x, g.add("Gather", random.normal(size=(PLACES, WIDTH)).astype(np.float32), placed))
    q, k, v = (_heads(g, x, w) for w in weights[:3])
    names = ("kept_a", "kept_b") if plain_names else ("present.0.key", "present.0.value")
    cached = []
    for at, (new, name) in enumerate(zip((k, v), names, strict=True)):
        parts = [f"past_key_values.0.{('key', 'value')[at]}", new]
        parts = parts[::-1] if fault == "cache concatenated in front" else parts
        if fault == "keys of one head cached for both" and at == 0:
            whole = g.add("Concat", *parts, axis=2)
            g.add("Gather", whole, np.array([0, 0]), axis=1, out=name)
            cached.append(whole)
        else:
            cached.append(g.add("Concat", *parts, axis=2, out=name))
    scores = g.add("MatMul", q, g.add("Transpose", cached[0], perm=[0, 1, 3, 2]))
    first = g.add("Sub", own, g.add("Shape", "past_key_values.0.key", start=2, end=3))
    mine = first if fault == "mask ignores the past" else own
    later = g.add("Greater", g.add("Unsqueeze", every, np.array([0])), g.add("Unsqueeze", mine, np.array([1])))
    scores = g.add("Where", later, np.float32(-1e9), scores)
    mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), cached[1])
    joined = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), np.array([0, 0, WIDTH]))
    y = g.add("Add", x, g.add("MatMul", joined, weights[3]))
    g.add("MatMul", y, random.normal(size=(WIDTH, VOCABULARY)).astype(np.float32), out="logits")
    return _model(g, names)


def _model(g: _Graph, names: tuple[str, str]) -> onnx.ModelProto:
    of = helper.make_tensor_value_info
    past = [f"past_key_values.0.{part}" for part in ("key", "value")]
    inputs = [of("input_ids", TensorProto.INT64, ["b", "s"]),
              *(of(name, TensorProto.FLOAT, ["b", HEADS, "p", WIDTH // HEADS]) for name in past)]  # fmt: skip
    outputs = [of("logits", TensorProto.FLOAT, ["b", "s", VOCABULARY]),
               *(of(name, TensorProto.FLOAT, ["b", HEADS, None, WIDTH // HEADS]) for name in names)]  # fmt: skip
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def inputs(held: int = 0) -> dict[str, torch.Tensor]:
    """Return six tokens of two rows, and a cache of so many positions."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (2, 6), generator=generator)
    past = torch.randn(2, 2, HEADS, held, WIDTH // HEADS, generator=generator)
    return {"input_ids": ids, "past_key_values.0.key": past[0], "past_key_values.0.value": past[1]}


def checked(fault: str = "", held: int = 0, **more: object) -> ds.InvarianceReport:
    """Check it on onnxruntime along chunking."""
    return ds.check_invariance(ds.onnx(decoder(fault)), inputs(held), axes="chunking", **more)
