"""Tables that come out of a layer norm, and tables that were stored narrow and cast back before they are used."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch
from float64_truth import lift
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import driftscope as ds
from driftscope.records.verdict import Verdict

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Queries(nn.Module):
    """Learned queries that go through a layer norm before they meet the input, as in a detection transformer."""

    def __init__(self, element: float = 0.0):
        super().__init__()
        torch.manual_seed(1)
        self.start, self.linear = nn.Parameter(torch.randn(5, 8)), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        with torch.no_grad():
            self.start[1, 2] += element

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.norm(self.linear(self.start)).mT


def test_a_table_is_replaced_also_where_its_entry_runs_for_another_of_its_results():
    model = Queries()
    tape = lift(model, X)
    table = torch.ones(5, 8, dtype=torch.float64)
    moved = {"start": torch.zeros(5, 8, dtype=torch.float64), "native_layer_norm": table}
    (found,) = tape.run(replace=moved)
    assert found.value is not None
    torch.testing.assert_close(found.value, X.double() @ table.mT, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("element", "verdict"), [(0.0, Verdict.PRECISION), (0.05, Verdict.DIFFERENT)])
def test_learned_queries_in_bfloat16_are_the_queries_rounded_and_another_number_is_none(element, verdict):
    narrow = copy.deepcopy(Queries(element)).bfloat16()
    found = ds.compare(Queries(), lambda x: narrow(x.bfloat16()).float(), X)
    assert found.verdict is verdict, found.reason


def _queries(folded: bool, factor: float = 1.0) -> onnx.ModelProto:
    """The same in float16 with a graph that computes them, or that stores them in float16 and casts them."""
    draw = np.random.default_rng(0)
    start, weight = draw.standard_normal((5, 8)).astype(np.float16), draw.standard_normal((8, 8)).astype(np.float16)
    gain, bias = (draw.standard_normal(8).astype(np.float16) for _ in range(2))
    mixed = start.astype(np.float64) @ weight.astype(np.float64)
    spread = mixed - mixed.mean(-1, keepdims=True)
    table = spread / np.sqrt((spread**2).mean(-1, keepdims=True) + 1e-5) * gain + bias
    table[1, 2] *= factor
    made = [
        helper.make_node("MatMul", ["start", "weight"], ["mixed"]),
        helper.make_node("LayerNormalization", ["mixed", "gain", "bias"], ["table"], epsilon=1e-5),
    ]
    stored = {"start": start, "weight": weight, "gain": gain, "bias": bias}
    if folded:
        made, stored = [], {"table": table.astype(np.float16)}
    graph = helper.make_graph(
        [*made, helper.make_node("Cast", ["table"], ["queries"], to=TensorProto.FLOAT),
         helper.make_node("Transpose", ["queries"], ["turned"], perm=[1, 0]),
         helper.make_node("MatMul", ["x", "turned"], ["y"])],
        "queries", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5, 5])],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("factor", "different"), [(1.0, False), (1.02, True)])
def test_a_table_stored_in_float16_and_cast_is_what_the_other_side_computes_in_float16(turned, factor, different):
    pair = (_queries(folded=False), _queries(folded=True, factor=factor))
    found = ds.compare(*(pair[::-1] if turned else pair), {"x": X.numpy()})
    assert (found.verdict is Verdict.DIFFERENT) is different, found.reason


class Pitches(nn.Module):
    """Splines on an even grid: the pitches of two of its parts are one number in float16, and not in float32."""

    def __init__(self, held: bool = False, factor: float = 1.0):
        super().__init__()
        self.register_buffer("grid", torch.arange(-3, 9).float() * 0.4 - 1)
        pitches = [p.half() for p in self.pitches()] if held else []
        for name, value in zip(("rise", "fall"), pitches, strict=False):
            self.register_buffer(name, value * factor)
        self.held = held

    def pitches(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.grid[1:-1] - self.grid[:-2], self.grid[2:] - self.grid[1:-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rise, fall = (self.rise.float(), self.fall.float()) if self.held else self.pitches()
        return x / rise + (1 - x) ** 2 / fall


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1.01, False)])
def test_two_tables_that_float16_makes_one_are_told_apart_by_where_they_stand(turned, factor, same):
    pair = (Pitches(), Pitches(held=True, factor=factor))
    x = torch.randn(4, 10, generator=torch.Generator().manual_seed(3))
    found = ds.compare(*(pair[::-1] if turned else pair), x)
    assert (found.verdict is not Verdict.DIFFERENT) is same, found.reason


class Rotations(nn.Module):
    """Rotary positions as complex numbers, computed anew in every call."""

    def __init__(self, base: float = 10000.0):
        super().__init__()
        self.base = base

    def angles(self) -> torch.Tensor:
        return torch.outer(torch.arange(5.0), self.base ** (-torch.arange(0, 8, 2) / 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = self.angles()
        turned = torch.view_as_complex(x.reshape(2, 5, 4, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2)


class Cosines(Rotations):
    """The same with cosines and sines stored, as two tables or as the parts of one."""

    def __init__(self, base: float = 10000.0, one: bool = False):
        super().__init__(base)
        angles = self.angles()
        self.register_buffer("parts", torch.stack((angles.cos(), angles.sin()), -1))
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        self.one = one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c, s = self.parts.unbind(-1) if self.one else (self.cosines, self.sines)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.sampled(3)
def test_rotations_are_the_stored_cosines_and_sines_and_those_of_another_base_are_none(exported, one, swapped):
    def answer(base: float) -> ds.Comparison:
        stored = Cosines(base, one)
        pair = (Rotations(), torch.export.export(stored, (X,)) if exported else stored)
        return ds.compare(*(reversed(pair) if swapped else pair), (X,))

    same = answer(10000.0)
    assert same.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), same.reason
    assert same.outputs[0].lifted <= same.outputs[0].lifted_threshold
    assert answer(10001.0).verdict is Verdict.DIFFERENT


class Turned(nn.Module):
    """Rotary tables whose halves are exchanged: nothing depends on the cosines and sines as they were computed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rates", 10000.0 ** (-torch.arange(8) / 8.0))

    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(7.0).unsqueeze(-1) * self.rates
        return angles.cos(), angles.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cosines, sines = (torch.cat(table.chunk(2, -1)[::-1], -1) for table in self.tables())
        return x * cosines + x.roll(4, -1) * sines


def _stored_halves(moved: float) -> onnx.ModelProto:
    """The sines as torch has them bit by bit, and one cosine that another library has in another last bit."""
    cosines, sines = (table.numpy() for table in Turned().tables())
    cosines[3, 1] = moved if moved else np.nextafter(cosines[3, 1], np.float32(2.0))
    graph = helper.make_graph(
        [node for name in ("x", "cosines", "sines")
         for node in (helper.make_node("Split", [name], [f"{name}.0", f"{name}.1"], axis=-1, num_outputs=2),
                      helper.make_node("Concat", [f"{name}.1", f"{name}.0"], [f"{name} turned"], axis=-1))]
        + [helper.make_node("Mul", ["x", "cosines turned"], ["straight"]),
           helper.make_node("Mul", ["x turned", "sines turned"], ["across"]),
           helper.make_node("Add", ["straight", "across"], ["y"])],
        "turned", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 7, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 7, 8])],
        [numpy_helper.from_array(cosines, "cosines"), numpy_helper.from_array(sines, "sines")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("moved", "same"), [(0.0, True), (0.5, False)])
def test_of_two_tables_of_which_one_is_stored_in_the_same_bits_both_are_what_the_other_side_computes(
    turned, moved, same
):
    pair = (Turned(), _stored_halves(moved))
    x = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(3))
    found = ds.compare(*(pair[::-1] if turned else pair), [x])
    assert (found.verdict is not Verdict.DIFFERENT) is same, found.reason


class Angles(nn.Module):
    """Sines and cosines in one table, with a gain that is computed too."""

    def table(self) -> torch.Tensor:
        angles = torch.arange(5.0)[:, None] / 7 ** (torch.arange(4.0) / 4)
        return torch.cat((angles.sin(), angles.cos()), -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table() * torch.exp(torch.arange(8.0) / 7)


def taken_apart(table: torch.Tensor) -> onnx.ModelProto:
    """The same with its tables stored in half, one of them taken apart in the graph."""
    stored = {"table": table.half().numpy(), "gain": np.exp(np.arange(8, dtype=np.float32) / 7).astype(np.float16)}
    nodes = [
        helper.make_node("Split", ["table"], ["s", "c"], axis=1, num_outputs=2),
        helper.make_node("Split", ["x"], ["one", "two"], axis=2, num_outputs=2),
        *(helper.make_node("Cast", [n], [f"{n}_32"], to=TensorProto.FLOAT) for n in ("s", "c", "gain")),
        helper.make_node("Mul", ["one", "s_32"], ["y_one"]),
        helper.make_node("Mul", ["two", "c_32"], ["y_two"]),
        helper.make_node("Concat", ["y_one", "y_two"], ["y"], axis=2),
        helper.make_node("Mul", ["y", "gain_32"], ["out"]),
    ]
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 5, 8])] for n in ("x", "out")]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(v, n) for n, v in stored.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("element", [0.0, 2.0**-9])
def test_a_stored_table_that_is_taken_apart_means_what_the_other_program_computes(element, swapped):
    table = Angles().table()
    table[3, 1] += element
    pair = Angles(), taken_apart(table)
    found = ds.compare(*(reversed(pair) if swapped else pair), X, explain=False)
    assert found.verdict is (Verdict.DIFFERENT if element else Verdict.PRECISION), found.reason


@pytest.mark.parametrize(("element", "verdict"), [(0.0, Verdict.PRECISION), (2.0**-9, Verdict.DIFFERENT)])
def test_no_element_of_a_stored_table_is_further_off_than_storing_it_puts_it(element, verdict):
    table = Angles().table()
    table[3, 1] += element  # four units in the last place of one element of forty
    stored, gain = table.half(), torch.exp(torch.arange(8.0) / 7)
    found = ds.compare(Angles(), lambda x: x * stored * gain, X, explain=False)
    assert found.verdict is verdict, found.reason
