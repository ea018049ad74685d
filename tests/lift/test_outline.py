"""Outlines: what is told of a program's steps without a run is what a run shows, and nobody runs it to learn that."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import driftscope as ds
from driftscope.explain.native import ties
from driftscope.lift.finer.evaluate import evaluate
from driftscope.lift.kept import sharing_runs
from driftscope.lift.noise.floor import noise_sample
from driftscope.lift.onnx.graph import LiftedOnnx, lift_onnx
from driftscope.lift.outline import Outline, has_operator, remember_outline, tell_steps
from driftscope.lift.steps import Lifted, Step
from driftscope.lift.torch.tape import lift_torch


def _layer() -> Lifted:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    return lift_torch(layer, (torch.randn(1, 5, 16),), {})


def _graph(*nodes: onnx.NodeProto) -> LiftedOnnx:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    graph = helper.make_graph(list(nodes), "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return lift_onnx(model, {"x": torch.linspace(-1.0, 1.0, 12).reshape(3, 4)})


def _rows() -> LiftedOnnx:
    return _graph(
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Greater", ["x", "x"], ["more"]),
        helper.make_node("Where", ["more", "x", "x"], ["kept"]),
        helper.make_node("Reshape", ["kept", "size"], ["shaped"]),
        helper.make_node("Softmax", ["shaped"], ["y"]),
    )


def _branched() -> LiftedOnnx:
    def body(operator: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(operator, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(operator, ["x"], [operator])], operator, [], [out])

    return _graph(
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["positive"], to=TensorProto.BOOL),
        helper.make_node("If", ["positive"], ["y"], then_branch=body("Exp"), else_branch=body("Sqrt")),
    )


def _seen(graph: Lifted, outline: Outline) -> None:
    noise_sample(graph, graph.run(), watch=outline)
    remember_outline(graph, outline)


def _facts(step: Step) -> tuple[object, ...]:
    names = step.name, step.operator, tuple(step.input_names), tuple(step.output_names)
    dtypes = tuple(None if v is None else v.dtype for v in step.outputs)
    return (*names, dtypes, step.constant, tuple(step.held), step.rounding.kind, dict(step.attributes))


@pytest.mark.parametrize("made", [_layer, _rows])
def test_what_is_told_is_what_a_run_shows(made):
    graph, shown, told = made(), [], []
    graph.run(observe=lambda step: shown.append(_facts(step)))
    with sharing_runs():
        _seen(graph, Outline())
        graph.run = None  # nobody runs it
        tell_steps(graph, lambda step: told.append(_facts(step)))
        assert told == shown
        assert has_operator(graph, {"softmax", "_softmax"})
        assert not has_operator(graph, {"sort"})


def test_of_a_program_with_branches_nothing_is_known_without_a_run():
    graph, told = _branched(), []
    with sharing_runs():
        _seen(graph, Outline())
        assert has_operator(graph, {"sort"})
        tell_steps(graph, lambda step: told.append(step.operator))
    assert "Exp" in told


class _Sorted(nn.Module):
    def forward(self, x):
        return torch.sort(x, -1).values * 2.0


@pytest.mark.parametrize(("module", "sorts"), [(nn.Softmax(-1), False), (_Sorted(), True)], ids=["softmax", "sort"])
def test_a_program_that_sorts_nothing_is_not_run_for_its_order(module, sorts, monkeypatch):
    runs = []
    monkeypatch.setattr(ties, "look", lambda graph, *_: runs.append(graph))
    found = ds.compare(module, lambda x: module(x) * 1.5, (torch.randn(4, 8),))
    assert found.verdict == "DIFFERENT"
    assert bool(runs) is sorts


@pytest.mark.parametrize(("operator", "reached"), [("Exp", True), ("Selu", False)])
def test_balls_that_cannot_reach_an_output_are_not_begun(operator, reached):
    pytest.importorskip("flint")
    graph = _graph(helper.make_node(operator, ["x"], ["e"]), helper.make_node("Neg", ["e"], ["y"]))
    clean, run, runs = graph.run(), graph.run, []
    with sharing_runs():
        _seen(graph, Outline())
        graph.run = lambda **options: runs.append(options) or run(**options)
        found = evaluate(graph, [], plain=clean)
    assert [one is not None for one in found] == [True] * reached
    assert bool(runs) is reached
