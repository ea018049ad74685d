"""What an optimiser changed of a graph, held against the graph node by node."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.lift import evidence
from driftscope.lift.evidence import gather
from driftscope.lift.onnx.changed_nodes import changed_nodes
from driftscope.lift.optimised import certified_by_node, changes_of
from driftscope.lift.reconcile.drifts import measure, within
from driftscope.lift.side_lift import lift_side
from driftscope.lift.sources import lift_source
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import OnnxSource

SCALE = float(np.float32(0.42044820762685725))


def attention(scale: float = SCALE, tail: float = 1.0) -> onnx.ModelProto:
    """Scaled products, a softmax, a layer norm and two dense layers: onnxruntime fuses the scales and the biases."""
    draw = np.random.default_rng(0)
    kept = {"wq": (16, 16), "wk": (16, 16), "w1": (16, 32), "b1": (32,), "w2": (32, 16), "b2": (16,), "g": (16,)}
    values = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in kept.items()}
    values |= {"s": np.float32(scale), "t": np.float32(tail), "z": np.zeros(16, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], "q"), helper.make_node("MatMul", ["x", "wk"], ["k"], "k"),
        helper.make_node("Mul", ["q", "s"], ["qs"], "qs"), helper.make_node("Mul", ["k", "s"], ["ks"], "ks"),
        helper.make_node("Transpose", ["ks"], ["kt"], "kt", perm=[1, 0]),
        helper.make_node("MatMul", ["qs", "kt"], ["a"], "a"), helper.make_node("Softmax", ["a"], ["p"], "p"),
        helper.make_node("MatMul", ["p", "q"], ["o"], "o"),
        helper.make_node("LayerNormalization", ["o", "g", "z"], ["n"], "n", epsilon=1e-5),
        helper.make_node("MatMul", ["n", "w1"], ["m"], "m"), helper.make_node("Add", ["m", "b1"], ["l"], "l"),
        helper.make_node("Tanh", ["l"], ["r"], "r"),
        helper.make_node("MatMul", ["r", "w2"], ["u"], "u"), helper.make_node("Add", ["u", "b2"], ["v"], "v"),
        helper.make_node("Mul", ["v", "t"], ["vt"], "vt"), helper.make_node("Add", ["o", "vt"], ["y"], "y"),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 16]) for n in "xy")
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def held(model: onnx.ModelProto, edit=lambda _graph: None):
    """What a node by node look says of onnxruntime's graph with an edit in it, and whether the whole of it agrees."""
    bound = load_program(model).bind({"x": np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)})
    made, _ = changes_of(bound)
    made = OnnxSource(copy.deepcopy(made.model), made.feeds, made.directory)
    edit(made.model.graph)
    changes = changed_nodes(model, made.model)
    side = lift_side(bound, () if changes is None else changes.values)
    found = None if changes is None else certified_by_node(side, made, changes, THRESHOLDS)
    return changes, found, bound, made


def test_what_onnxruntime_fuses_is_certified_by_its_own_nodes_alone():
    changes, found, _bound, made = held(attention())
    assert changes is not None
    assert found is not None
    assert found.same_function
    assert {n.op_type for n in changes.model.graph.node} >= {"FusedMatMul", "Gemm"}
    # What it left alone is not evaluated again.
    kept = {"Softmax", "LayerNormalization", "MatMul"}
    assert kept <= {n.op_type for n in made.model.graph.node}
    assert not kept & {n.op_type for n in changes.model.graph.node}
    assert 0 < found.drifts[0].value < 1e-14


def _attribute(name: str, value: float):
    def edit(graph: onnx.GraphProto) -> None:
        found = [a for n in graph.node for a in n.attribute if a.name == name]
        assert found
        found[0].f = value

    return edit


def _stored(name: str):
    """Write one number of a stored tensor an ulp further."""

    def edit(graph: onnx.GraphProto) -> None:
        tensor = next(t for t in graph.initializer if t.name == name)
        values = numpy_helper.to_array(tensor).copy()
        values.reshape(-1)[3] = np.nextafter(values.reshape(-1)[3], np.float32(9))
        tensor.CopyFrom(numpy_helper.from_array(values, name))

    return edit


def _operator(old: str, new: str):
    def edit(graph: onnx.GraphProto) -> None:
        next(n for n in graph.node if n.op_type == old).op_type = new

    return edit


def _exchanged(graph: onnx.GraphProto) -> None:
    """Exchange the names of two values where they are made: whoever reads them gets the other."""
    for node in graph.node:
        node.output[:] = [{"q": "ks", "ks": "q"}.get(o, o) for o in node.output]


@pytest.mark.parametrize(
    "edit",
    [_attribute("alpha", 0.17), _attribute("alpha", SCALE * SCALE * (1 + 1e-6)), _attribute("epsilon", 1e-4),
     _stored("b1"), _stored("w2"), _stored("g"), _operator("Softmax", "LogSoftmax"), _exchanged],
    ids=["scale", "a digit of the scale", "epsilon", "bias", "weight", "a weight of a node left alone", "operator",
         "names"],
)  # fmt: skip
def test_an_optimiser_that_changes_the_function_is_certified_nowhere(edit):
    _, found, bound, made = held(attention(), edit)
    assert found is None
    # The whole graph shows it too, or it would not be a change.
    file, other = lift_side(bound), lift_source(made).run()
    (drift,) = measure(file.clean, other, evidence.OutputPairing([(0, 0)], [None]), THRESHOLDS)
    assert not within(drift)


def test_a_change_that_no_output_shows_is_found_where_it_is_made():
    small = attention(tail=1e-12)  # what the dense layers give is nothing beside what it is added to
    assert held(small)[1] is not None
    _, found, bound, made = held(small, _stored("w2"))
    (drift,) = measure(
        lift_side(bound).clean, lift_source(made).run(), evidence.OutputPairing([(0, 0)], [None]), THRESHOLDS
    )
    assert within(drift)
    assert found is None


def masked(hidden: float) -> onnx.ModelProto:
    """Scores that are scaled and masked: what is hidden is as large as the mask."""
    draw = np.random.default_rng(0)
    mask = np.triu(np.full((8, 8), hidden, np.float32), 1)
    mask = np.where(np.isnan(mask), np.float32(0), mask)  # infinity times zero
    values = {"w": draw.standard_normal((16, 8)).astype(np.float32), "m": mask, "s": np.float32(SCALE)}
    nodes = [helper.make_node("Gemm", ["x", "w"], ["a"], "a"), helper.make_node("Mul", ["a", "s"], ["b"], "b"),
             helper.make_node("Add", ["b", "m"], ["c"], "c"), helper.make_node("Softmax", ["c"], ["y"])]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, k]) for n, k in (("x", 16), ("y", 8)))
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("hidden", [-1e4, -1e9, -3.4e38, float(np.finfo(np.float32).min), -np.inf])
@pytest.mark.parametrize(("more", "certified"), [(0.0, True), (1e-7, False), (1e-2, False)])
def test_what_a_mask_leaves_is_looked_at_on_its_own_scale(hidden, more, certified):
    """An optimiser that puts the scale into the product, rightly or not quite."""
    model = masked(hidden)
    other = copy.deepcopy(model)
    scaled = helper.make_node("Gemm", ["x", "w"], ["g"], "g", alpha=SCALE * (1 + more))
    del other.graph.node[:3]
    other.graph.node.insert(0, scaled)
    other.graph.node.insert(1, helper.make_node("Add", ["g", "m"], ["c"], "c"))
    changes = changed_nodes(model, other)
    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    side = lift_side(load_program(model).bind({"x": x}), changes.values)
    found = certified_by_node(side, OnnxSource(other, {}), changes, THRESHOLDS)
    assert (found is not None) is certified


def test_what_cannot_be_lifted_alone_is_looked_at_as_a_whole():
    model = masked(-1e4)
    other = copy.deepcopy(model)
    other.graph.node[0].op_type, other.graph.node[0].domain = "Unheard", "of"
    changes = changed_nodes(model, other)
    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    side = lift_side(load_program(model).bind({"x": x}), changes.values)
    assert certified_by_node(side, OnnxSource(other, {}), changes, THRESHOLDS) is None


def test_what_was_computed_ahead_has_to_have_the_bits_of_the_file():
    model = attention()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(
        [helper.make_node("Mul", ["g", "s"], ["gs"], "gs"), helper.make_node("Mul", ["o", "gs"], ["os"], "os"), *nodes]
    )
    model.graph.node.sort(key=lambda n: n.name == "os" and 1)  # behind what it reads
    model.graph.node[-2].input[1] = "vt"
    nodes = [n for n in model.graph.node if n.name != "y"]
    del model.graph.node[:]
    model.graph.node.extend([*nodes, helper.make_node("Add", ["os", "vt"], ["y"], "y")])
    changes, found, _, _ = held(model)
    assert changes is not None
    assert [t.name for t in changes.folded] == ["gs"]
    assert found is not None
    assert held(model, _stored("gs"))[1] is None


def test_where_names_or_branches_do_not_tell_it_the_whole_graph_is_looked_at():
    model = attention()
    other = copy.deepcopy(model)
    branch = helper.make_graph([helper.make_node("Neg", ["o"], ["no"])], "b", [], [onnx.ValueInfoProto(name="no")])
    other.graph.node.append(helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch))
    assert changed_nodes(model, other) is None
    other = copy.deepcopy(model)
    other.graph.output[0].name = "vt"
    assert changed_nodes(model, other) is None
    assert changed_nodes(model, copy.deepcopy(model)).writes == ()


def test_a_comparison_holds_the_optimised_graph_against_the_file_by_node(monkeypatch):
    model, whole = attention(), []
    real = evidence._check_optimized
    monkeypatch.setattr(evidence, "_check_optimized", lambda *given: whole.append(1) or real(*given))
    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    a, b = (load_program(attention()).bind({"x": x}) for _ in range(2))
    found = gather(a, b, [(0, 0)])
    assert found.optimized is not None
    assert found.optimized.same_function
    assert not whole
    assert found.optimized_graph is None
    assert found.graph_that_ran() is found.graph_that_ran() is not None
    # The twin: what is not certified by node is looked at as a whole.
    monkeypatch.setattr(evidence, "certified_by_node", lambda *_given: None)
    found = gather(a, b, [(0, 0)])
    assert found.optimized is not None
    assert found.optimized.same_function
    assert whole
    assert ds.compare(model, model, {"x": torch.from_numpy(x)}).verdict == "IDENTICAL"
