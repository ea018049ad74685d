"""Places and causes: exact outputs, computed constants, gate blocks, attributes that are tried, fused layers of A."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import driftscope as ds
from driftscope.lift.onnx.evaluation import GraphEvaluation
from driftscope.records.finding import Finding
from driftscope.records.verdict import Verdict

STEPS = (torch.arange(64).reshape(4, 16) / 2.0,)
COUNTS = (torch.arange(15).reshape(3, 5),)
ROWS = (torch.randn(4, 16, generator=torch.Generator().manual_seed(3)),)


class Of(nn.Module):
    """A function as a module, which exporters want."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _export(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, path, dynamo=True, verbose=False)
    return onnx.load(path)


def _first(a: object, b: object, inputs: tuple[Tensor, ...]) -> Finding:
    found = ds.compare(a, b, inputs)
    assert found.verdict is Verdict.DIFFERENT, found.reason
    assert len([f for f in found.findings if not f.note]) == 1
    assert found.first is not None
    return found.first


EXACT = [
    # A, B, inputs, the step, words of the cause, whether the edit was tried
    (lambda h: torch.round(h).int(), lambda h: torch.floor(h + 0.5).int(), STEPS, "add", "where A computes", None),
    (lambda h: h.argmax(-1), lambda h: h.argmin(-1), ROWS, "argmin", "where A computes aten.argmax", True),
    (lambda h: h.topk(3)[1], lambda h: h.topk(3, largest=False)[1], ROWS, "topk", "largest is False here", True),
    (lambda h: (h * 2 + 1).cumsum(1), lambda h: (h * 2 + 3).cumsum(1), COUNTS, "add", "other is 3 here and 1", True),
    (lambda h: h.round() > 0, lambda h: h.round() >= 0, ROWS, "ge", "where A computes aten.gt", True),
    (
        lambda h: torch.cat([h.argmax(-1), h.abs().argmin(-1)]),
        lambda h: torch.cat([h.abs().argmin(-1), h.argmax(-1)]),
        ROWS, "cat", "in another order", None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "inputs", "step", "words", "tried"), EXACT, ids=[case[3] for case in EXACT])
def test_an_exact_output_has_a_place_and_a_cause(a, b, inputs, step, words, tried):
    first = _first(Of(a), Of(b), inputs)
    assert (first.code, first.where.node) == ("N010", step)
    assert words in first.why
    assert first.verified is tried


def test_an_exact_output_of_a_file_has_a_place(tmp_path: Path):
    broken = _export(Of(lambda h: (h * 2 + 3).cumsum(1)), COUNTS, tmp_path / "m.onnx")
    first = _first(Of(lambda h: (h * 2 + 1).cumsum(1)), broken, COUNTS)
    assert first.where.operator == "Add"
    assert first.verified is True


@pytest.mark.parametrize("function", [lambda h: h.argmax(-1), lambda h: torch.round(h).int(), lambda h: h > 0])
def test_the_same_integers_written_another_way_are_identical(function: Callable[[Tensor], Tensor]):
    assert ds.compare(Of(function), Of(lambda h: function(h + 0.0)), ROWS).verdict is Verdict.IDENTICAL


class Positions(nn.Module):
    """Tokens and positions, counted from where a cache ends."""

    def __init__(self, past: int):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places, self.norm = nn.Embedding(50, 16), nn.Embedding(32, 16), nn.LayerNorm(16)
        self.past = past

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.tokens(ids) + self.places(torch.arange(ids.shape[1]) + self.past))


IDS = (torch.arange(14).reshape(2, 7),)


@pytest.mark.parametrize("exported", [False, True])
def test_a_dropped_cache_position_is_named_and_not_the_embedding(exported: bool, tmp_path: Path):
    b = Positions(0).eval()
    first = _first(Positions(3).eval(), _export(b, IDS, tmp_path / "m.onnx") if exported else b, IDS)
    assert "0, 1, 2, 3, ..." in first.what
    assert "3, 4, 5, 6, ..." in first.what
    assert first.where.expression is not None
    assert "arange" in first.where.expression


def test_a_changed_row_of_the_table_is_not_called_a_position():
    b = Positions(3).eval()
    with torch.no_grad():
        b.places.weight[4] *= 1.5
    first = _first(Positions(3).eval(), b, IDS)
    assert first.code == "W008"


class TwoLayers(nn.Module):
    """An LSTM under a GRU or another LSTM."""

    def __init__(self, second: str):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.LSTM(8, 8, batch_first=True), getattr(nn, second)(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)[0])[0]


def _with_blocks(model: onnx.ModelProto, layer: int, order: list[int], slots: tuple[int, ...]) -> str:
    node = [n for n in model.graph.node if n.op_type in ("LSTM", "GRU")][layer]
    for slot in slots:
        stored = next(i for i in model.graph.initializer if i.name == node.input[slot])
        blocks = np.split(numpy_helper.to_array(stored), len(order) * (2 if slot == 3 else 1), axis=1)
        chosen = order + [len(order) + k for k in order] if slot == 3 else order
        stored.CopyFrom(numpy_helper.from_array(np.concatenate([blocks[k] for k in chosen], axis=1), stored.name))
    return node.name


@pytest.mark.parametrize(
    ("second", "layer", "order", "slots"),
    [
        pytest.param("LSTM", 1, [0, 2, 1, 3], (1, 2, 3), marks=pytest.mark.slow),
        ("LSTM", 0, [0, 1, 3, 2], (2,)),
        pytest.param("GRU", 1, [1, 0, 2], (1, 2, 3), marks=pytest.mark.slow),
    ],
)
def test_gate_blocks_in_another_order_are_named_and_put_right(second, layer, order, slots, tmp_path: Path):
    module, x = TwoLayers(second).eval(), (torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)),)
    model = _export(module, x, tmp_path / "m.onnx")
    node = _with_blocks(model, layer, order, slots)
    first = _first(module, model, x)
    assert first.where.node == node
    assert "gate blocks" in first.why
    assert first.verified is True


@pytest.mark.slow
def test_another_fault_of_a_recurrent_layer_is_not_its_gate_order(tmp_path: Path):
    module, x = TwoLayers("LSTM").eval(), (torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)),)
    model = _export(module, x, tmp_path / "m.onnx")
    node = [n for n in model.graph.node if n.op_type == "LSTM"][1]
    node.attribute.append(onnx.helper.make_attribute("clip", 0.05))
    first = _first(module, model, x)
    assert first.where.node == node.name
    assert "gate" not in first.why


class Scores(nn.Module):
    """Weights of attention along an axis."""

    def __init__(self, axis: int):
        super().__init__()
        torch.manual_seed(0)
        self.keys, self.out, self.axis = nn.Linear(8, 6), nn.Linear(6, 4), axis

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.softmax(self.keys(x), self.axis))


@pytest.mark.parametrize("exported", [False, True])
def test_an_attribute_that_is_set_right_was_tried(exported: bool, tmp_path: Path):
    x = (torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1)),)
    b = Scores(1).eval()
    first = _first(Scores(2).eval(), _export(b, x, tmp_path / "m.onnx") if exported else b, x)
    assert "axis is 1 here and 2 in A" in first.why
    assert first.fix.startswith("Set axis of")
    assert first.verified is True


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, tuple[Tensor, ...], onnx.ModelProto]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
    module, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), (torch.randn(2, 6, 16),)
    return module, x, _export(module, x, tmp_path_factory.mktemp("encoder") / "m.onnx")


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "name", "value"), [("Softmax", "axis", 1), ("Gelu", "approximate", "tanh")])
def test_a_fused_layer_of_the_reference_does_not_hide_the_node(encoder, operator: str, name: str, value: object):
    module, x, model = encoder
    broken = copy.deepcopy(model)
    node = [n for n in broken.graph.node if n.op_type == operator][-1]
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
    first = _first(module, broken, x)
    assert first.where.node == node.name
    # What the other layer has is advised only if it was tried.
    assert not first.fix or (first.verified and first.fix.startswith(f"Set {name} of {node.name} to "))


def test_a_change_in_layers_that_began_as_copies_is_found_in_each(encoder):
    # All layers hold the same weights, and the file holds them once: the order of the readers tells the layers apart.
    module, x, model = encoder
    broken = copy.deepcopy(model)
    changed = [n for n in broken.graph.node if n.op_type == "Gelu"]
    for node in changed:
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute("approximate", "tanh"))
    found = [f for f in ds.compare(module, broken, x).findings if f.code == "N001"]
    assert [f.where.node for f in found] == [n.name for n in changed]
    assert all(f.verified and f.fix == f"Set approximate of {f.where.node} to 'none'." for f in found)


def test_changes_in_several_layers_cost_a_few_evaluations_of_each_program(encoder, monkeypatch: pytest.MonkeyPatch):
    module, x, model = encoder
    broken = copy.deepcopy(model)
    for node in (n for n in broken.graph.node if n.op_type == "Gelu"):
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute("approximate", "tanh"))
    computed, apply = [0], GraphEvaluation._apply

    def applied(*args):
        computed[0] += 1
        return apply(*args)

    monkeypatch.setattr(GraphEvaluation, "_apply", applied)
    ds.compare(module, broken, x, explain=False)
    verdict = computed[0]
    assert len([f for f in ds.compare(module, broken, x).findings if f.code == "N001"]) == 2
    # 13 evaluations when every trial ran the whole program.
    assert computed[0] - 2 * verdict <= 4 * len(broken.graph.node)


def test_the_export_of_a_fused_layer_is_the_same_function(encoder):
    module, x, model = encoder
    assert ds.compare(module, model, x).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)


class Directions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.GRU(8, 6, batch_first=True, bidirectional=True)
        self.read = torch.nn.Linear(12, 4)

    def forward(self, x):
        states = self.layer(x)[1]
        return self.read(torch.cat([states[0], states[1]], -1))


@pytest.mark.slow
def test_a_recurrent_layer_is_blamed_and_not_the_choice_of_its_direction():
    x = (torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1)),)
    program = torch.onnx.export(Directions().eval(), x, dynamo=True, verbose=False).model_proto
    broken = Directions().eval()
    with torch.no_grad():
        broken.layer.weight_ih_l0[2] *= 1.01
    first = ds.compare(broken, program, x).first
    assert first.where.operator == "GRU"
    assert "meant to differ" not in first.fix


def test_a_value_of_another_rank_that_does_not_fit_is_no_crash():
    """torch takes a quantile by writing into one view of a value whose rank its other views do not have."""
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))

    def quantile(q: float, interpolation: str) -> Callable[[Tensor], Tensor]:
        return lambda v: torch.quantile(v, q, dim=-1, interpolation=interpolation) * 2

    for one, two in (((0.3, "linear"), (0.35, "linear")), ((0.3, "linear"), (0.3, "nearest"))):
        for a, b in ((one, two), (two, one)):
            assert ds.compare(quantile(*a), quantile(*b), x).verdict is Verdict.DIFFERENT


def test_the_first_line_of_an_exact_output_begins_with_place_and_cause():
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    found = ds.compare(lambda v: v.argmax(-1), lambda v: v.argmin(-1), x)
    line = str(found).splitlines()[0]
    assert line.startswith("DIFFERENT: B computes something else from argmin (")
    assert "where A computes aten.argmax. 5 of 5 elements differ" in line
    plain = ds.compare(lambda v: v.argmax(-1), lambda v: v.argmax(-1) + 0 * v.argmin(-1) + 1, x)
    assert plain.verdict is Verdict.DIFFERENT
