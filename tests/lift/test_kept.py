"""Runs that take from a kept one: the same numbers, and only what lies behind a change is computed."""

import weakref
from typing import Any

import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from driftscope.explain.locate.fingerprints import Trail
from driftscope.explain.locate.rerunning import Reruns
from driftscope.lift.kept import KeptRun, MemoryShare, Reuse, look, reusing, sharing_runs
from driftscope.lift.onnx.evaluation import GraphEvaluation
from driftscope.lift.onnx.graph import lift_onnx
from driftscope.lift.steps import Lifted
from driftscope.lift.torch.replay import Replay
from driftscope.lift.torch.tape import lift_torch

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


def _graph() -> Lifted:
    """Give x -> matmul h -> relu r -> add(r, x) y -> leaky l -> sigmoid z."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="matmul"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "x"], ["y"], name="add"),
        helper.make_node("LeakyRelu", ["y"], ["l"], name="leaky", alpha=0.5),
        helper.make_node("Sigmoid", ["l"], ["z"], name="sigmoid"),
    ]
    infos = [[helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 8])] for n in "xz"]
    graph = helper.make_graph(nodes, "g", *infos, [numpy_helper.from_array(WEIGHT.numpy(), "w")])
    return lift_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), {"x": X})


def _tape() -> Lifted:
    def program(x: torch.Tensor) -> torch.Tensor:
        h = x @ WEIGHT
        r = torch.relu(h)
        return torch.sigmoid(nn.functional.leaky_relu(r + x, 0.5))

    return lift_torch(program, (X,), {})


@pytest.fixture(params=[_graph, _tape], ids=["onnx", "torch"])
def graph(request: pytest.FixtureRequest) -> Lifted:
    return request.param()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the nodes that are computed."""
    found: list[str] = []
    apply, compute = GraphEvaluation._apply, Replay._computed

    def applied(evaluation: GraphEvaluation, node: Any, *rest: Any) -> Any:
        found.append(node.name)
        return apply(evaluation, node, *rest)

    def replayed(replay: Replay, entry: Any, *rest: Any) -> Any:
        found.append(entry.name)
        return compute(replay, entry, *rest)

    monkeypatch.setattr(GraphEvaluation, "_apply", applied)
    monkeypatch.setattr(Replay, "_computed", replayed)
    return found


def _watched(graph: Lifted, force: dict[str, torch.Tensor], replace: dict[str, torch.Tensor] | None = None) -> Trail:
    trail = Trail(frozenset(c.name for c in graph.constants()), graph.kind == "torch", force)
    graph.run(observe=trail, replace=replace)
    return trail


def _names(graph: Lifted) -> list[str]:
    return [step.outputs[0] for step in _watched(graph, {}).steps]


def test_what_was_kept_is_not_computed_again_and_every_step_is_seen(graph: Lifted, computed: list[str]):
    runs, expected = Reruns(graph, {}), _watched(graph, {})
    trail, outputs = runs.kept({}, {})
    del computed[:]
    again = runs.outputs({})
    seen, _ = runs.kept({}, {})
    assert computed == []
    assert torch.equal(again[0].value, outputs[0].value)
    assert seen.steps == trail.steps == expected.steps


def test_only_what_lies_behind_a_forced_value_is_computed(graph: Lifted, computed: list[str]):
    names = _names(graph)
    runs = Reruns(graph, {})
    added = runs.values([names[2]], {})[names[2]]
    runs.kept({}, {})
    force = {names[2]: added + 1.0}
    expected = graph.run(observe=_forcing(graph, force))
    del computed[:]
    outputs = runs.outputs(force)
    assert len(computed) == 2  # leaky and sigmoid
    assert torch.equal(outputs[0].value, expected[0].value)


def _forcing(graph: Lifted, force: dict[str, torch.Tensor]) -> Trail:
    return Trail(frozenset(), graph.kind == "torch", force)


def test_a_value_that_is_forced_to_what_it_is_changes_nothing(graph: Lifted, computed: list[str]):
    names = _names(graph)
    runs = Reruns(graph, {})
    runs.kept({}, {})
    value = runs.values([names[2]], {})[names[2]]
    del computed[:]
    runs.outputs({names[2]: value})
    assert computed == []


def test_behind_a_value_that_comes_out_the_same_nothing_is_computed(graph: Lifted, computed: list[str]):
    names = _names(graph)
    runs = Reruns(graph, {})
    runs.kept({}, {})
    product = runs.values([names[0]], {})[names[0]]
    del computed[:]
    # The relu sets what is negative to zero.
    runs.outputs({names[0]: torch.where(product < 0, product - 1.0, product)})
    assert len(computed) == 1


def test_values_forced_before_stay_forced(graph: Lifted, computed: list[str]):
    names = _names(graph)
    runs = Reruns(graph, {})
    runs.kept({}, {})
    first = {names[0]: runs.values([names[0]], {})[names[0]].abs() + 1.0}
    runs.kept(first, {})
    both = {**first, names[3]: torch.ones(4, 8, dtype=torch.float64)}
    expected = graph.run(observe=_forcing(graph, both))
    del computed[:]
    outputs = runs.outputs(both)
    assert len(computed) == 1
    assert torch.equal(outputs[0].value, expected[0].value)


def test_a_value_forced_before_is_forced_no_more_where_it_is_not_asked_for(graph: Lifted):
    names = _names(graph)
    runs = Reruns(graph, {})
    first = {names[0]: torch.ones(4, 8, dtype=torch.float64)}
    runs.kept({**first, names[3]: torch.ones(4, 8, dtype=torch.float64)}, {})
    for force in (first, {}):
        expected = graph.run(observe=_forcing(graph, force))
        assert torch.equal(runs.outputs(force)[0].value, expected[0].value)


def test_replaced_constants_and_edited_attributes_are_computed(graph: Lifted, computed: list[str]):
    runs = Reruns(graph, {})
    runs.kept({}, {})
    weight = next(c for c in graph.constants() if c.value.shape == WEIGHT.shape)
    other = {weight.name: weight.value.double() * 2}
    leaky = _watched(graph, {}).steps[3]
    attribute = "alpha" if graph.kind == "onnx" else "negative_slope"
    edited = graph.with_attribute(leaky.name, attribute, 0.25)
    expected = graph.run(replace=other), edited.run()
    del computed[:]
    assert torch.equal(runs.outputs({}, other)[0].value, expected[0][0].value)
    assert len(computed) == 5
    del computed[:]
    assert torch.equal(runs.outputs({}, {}, edited)[0].value, expected[1][0].value)
    assert len(computed) == 2


def test_without_room_everything_is_computed_and_right(graph: Lifted, computed: list[str]):
    expected = graph.run()
    run = KeptRun(MemoryShare(0))
    with reusing(Reuse(None, run)):
        graph.run(observe=_forcing(graph, {}))
    del computed[:]
    with reusing(Reuse(run, None)):
        outputs = graph.run()
    assert len(computed) == 5
    assert torch.equal(outputs[0].value, expected[0].value)


def test_room_is_given_back():
    room = MemoryShare(1000)
    one, other = KeptRun(room), KeptRun(room)
    graph = _graph()
    for run in (one, other):
        with reusing(Reuse(one if run is other else None, run)):
            graph.run(observe=_forcing(graph, {}))
    assert room.free < 1000
    one.forget()
    assert room.free < 1000  # the other run holds the same values
    other.forget()
    assert room.free == 1000


def test_a_program_that_writes_into_its_values_is_run_whole(computed: list[str]):
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x @ WEIGHT
        y[0].add_(1.0)
        return torch.sigmoid(y)

    graph = lift_torch(program, (X,), {})
    runs, expected = Reruns(graph, {}), graph.run()
    runs.kept({}, {})
    del computed[:]
    assert torch.equal(runs.outputs({})[0].value, expected[0].value)
    assert computed


def test_what_shared_runs_are_known_by_stays_alive():
    """Another tensor at the address of one that went would be taken for it, and its run for the other's."""
    graph = _graph()
    with sharing_runs():
        first = torch.ones(8, 8, dtype=torch.float64)
        look(graph, lambda _step: None, {"w": first})
        held = weakref.ref(first)
        del first
        assert held() is not None
    assert held() is None
