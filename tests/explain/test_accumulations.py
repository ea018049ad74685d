"""Why two runtimes round differently: the orders of their sums, asked in passing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from driftscope.accumulation import in_passing
from driftscope.accumulation.answer import Accumulation
from driftscope.explain.native import accumulations
from driftscope.explain.native.sum_sites import SumsOfProgram
from driftscope.lift.noise.floor import noise_sample
from driftscope.lift.sources import lift_bound
from driftscope.lift.torch.tape import lift_torch
from driftscope.numerics.groupings import Growth, growth
from driftscope.numerics.trees.growth import growth_of
from driftscope.numerics.trees.tree import SumTree
from driftscope.programs.loading.load import load_program
from driftscope.records.verdict import Verdict


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    in_passing.forget()
    yield
    torch.set_num_threads(before)


def weights(k: int, columns: int = 48) -> np.ndarray:
    return np.random.default_rng(k).standard_normal((k, columns)).astype(np.float32)


def product_file(k: int, last: str) -> object:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], name="product"), helper.make_node(last, ["p"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [32, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [32, 48])], [numpy_helper.from_array(weights(k), "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


class Product(torch.nn.Module):
    def __init__(self, k: int, last: str):
        super().__init__()
        self.w = torch.nn.Parameter(torch.from_numpy(weights(k)))
        self.last = {"Relu": torch.relu, "Tanh": torch.tanh}[last]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x @ self.w)


def compared(k: int, last: str, **options: object) -> ds.Comparison:
    x = torch.randn(32, k, generator=torch.Generator().manual_seed(0)) / k**0.5
    return ds.compare(Product(k, last), ds.onnx(product_file(k, last), threads=1), x, **options)


def orders(k: int) -> tuple[Accumulation, Accumulation]:
    import tempfile
    from pathlib import Path

    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(product_file(k, "Relu"), path)
        b = ds.reveal(f"{path}:p", k, shape=(32, k, 48), threads=1)
    return ds.reveal("torch.matmul", k, shape=(32, k, 48)), b


def notes(comparison: ds.Comparison) -> list[ds.Finding]:
    return [f for f in comparison.findings if f.code == "N031"]


def test_a_product_that_is_added_otherwise_is_named_with_both_orders():
    a, b = orders(1024)
    found = notes(compared(1024, "Relu"))
    if a.tree == b.tree:
        pytest.skip("both libraries add alike on this processor")
    assert len(found) == 1
    note = found[0]
    assert note.note
    assert (note.where.node, note.where.operator) == ("product", "MatMul")
    assert f"here {b.family}; in A {a.family}" in note.what
    assert (note.evidence["a"]["pattern"], note.evidence["b"]["pattern"]) == (a.pattern, b.pattern)
    assert f"{b.depth} here and {a.depth} in A" in note.why


def test_equal_orders_are_no_reason():
    a, b = orders(64)
    comparison = compared(64, "Tanh")
    assert comparison.verdict in (Verdict.ROUNDING, Verdict.IDENTICAL)
    assert bool(notes(comparison)) == (a.tree != b.tree or a.fma != b.fma)


def test_same_bits_and_other_functions_are_not_asked(monkeypatch):
    calls = []
    monkeypatch.setattr("driftscope.explain.native.sum_sites.ask_once", lambda *a, **_: calls.append(a) or "no")
    model = Product(512, "Relu")
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(0))
    assert ds.compare(model, model, x).verdict is Verdict.IDENTICAL
    other = Product(512, "Tanh")
    assert ds.compare(model, other, x).verdict is Verdict.DIFFERENT
    assert calls == []
    compared(512, "Relu", explain=False)
    assert calls == []


def test_the_same_question_is_asked_once_and_gives_the_same_record(monkeypatch):
    first = compared(1024, "Relu")
    monkeypatch.setattr(
        "driftscope.accumulation.in_passing.accumulation_of", lambda *_a, **_k: pytest.fail("asked again")
    )
    second = compared(1024, "Relu")
    assert notes(first) == notes(second)


def test_a_budget_that_is_spent_leaves_no_note(monkeypatch):
    monkeypatch.setattr(accumulations, "_WORK", 0.0)
    assert notes(compared(1024, "Relu")) == []


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3))
def test_a_tree_grows_errors_as_the_closed_form_of_its_folds(folds):
    nodes: list[object] = list(range(int(np.prod(folds))))
    for fold in folds:
        groups = [nodes[i : i + fold] for i in range(0, len(nodes), fold)]
        nodes = []
        for group in groups:
            total = group[0]
            for part in group[1:]:
                total = (total, part)
            nodes.append(total)
    expected = growth([float(f) for f in folds])
    found = growth_of(SumTree.of(nodes[0]))
    assert found.terms == pytest.approx(expected.terms)
    assert found.total == pytest.approx(expected.total)


def test_the_floor_follows_the_tree_that_was_found():
    bound = load_program(Product(256, "Relu")).bind(
        ds.inputs(torch.randn(16, 256, generator=torch.Generator().manual_seed(0)))
    )
    graph = lift_bound(bound)
    steps: list[str] = []
    clean = graph.run(observe=lambda step: steps.append(step.name) if step.operator == "aten.mm" else None)
    assert len(steps) == 1
    usual = noise_sample(graph, clean)[0]
    worse = noise_sample(graph, clean, revealed={steps[0]: Growth(1e4, 1e4)})[0]
    same = noise_sample(graph, clean, revealed={"another step": Growth(1e4, 1e4)})[0]
    assert usual is not None
    assert worse is not None
    assert same is not None
    assert worse.norm() > 5 * usual.norm()
    assert torch.equal(same, usual)


class RowByRow(torch.nn.Module):
    """The same product, one row at a time."""

    def __init__(self, k: int):
        super().__init__()
        self.whole = Product(k, "Relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.whole(row) for row in x.split(1)])


def test_rows_of_an_operand_are_paired_with_the_whole(monkeypatch):
    asked_of = []
    monkeypatch.setattr(
        "driftscope.explain.native.sum_sites.ask_once", lambda key, _opened, **_: asked_of.append(key[2]) or "no"
    )
    x = torch.randn(8, 1024, generator=torch.Generator().manual_seed(0))
    if ds.compare(Product(1024, "Relu"), RowByRow(1024), x).verdict is Verdict.IDENTICAL:
        pytest.skip("a row alone is added like eight on this processor")
    assert asked_of == [((8, 1024), (1024, 48)), ((1, 1024), (1024, 48))]


@pytest.mark.parametrize(("factor", "again"), [(1e6, False), (1e-6, True)])
def test_floors_are_measured_again_where_a_tree_may_decide_the_verdict(monkeypatch, factor, again):
    measured = []
    monkeypatch.setattr(accumulations, "growth_of", lambda *_a, **_k: Growth(50 * factor, 50 * factor))
    monkeypatch.setattr(accumulations, "add_noise", lambda *_a, revealed: measured.append(revealed))
    if compared(1024, "Relu").verdict is Verdict.IDENTICAL:
        pytest.skip("both libraries add alike on this processor")
    # A floor that only grows leaves ordinary rounding what it is.
    assert bool(measured) == again


def test_the_usual_tree_has_the_floor_that_was_measured():
    trees = accumulations._Trees()
    trees.add("a", Growth(85.5, 43.7), Growth(85.5 * (1 + 1e-9), 43.7))
    assert not trees.growths
    trees.add("b", Growth(85.5, 43.7), Growth(85.5, 4.37))
    assert list(trees.growths) == ["b"]
    assert trees.least == pytest.approx(0.1**0.5)


def test_noise_shrinks_with_the_part_of_a_tree_that_it_is_made_of():
    usual, flat = Growth(100.0, 70.0), Growth(70.0, 7.0)
    for coherence, least in ((0.0, 0.7), (1.0, 77 / 170), (1e9, 0.1)):
        trees = accumulations._Trees()
        trees.add("a", usual, flat, coherence)
        assert trees.least == pytest.approx(least**0.5)


@pytest.mark.parametrize(("ones", "coherence"), [(False, 1.0), (True, 64.0)])
def test_terms_of_one_sign_are_coherent_and_others_are_not(ones, coherence):
    class Multiplied(torch.nn.Module):
        def forward(self, x, y):
            return x @ y

    drawn = torch.Generator().manual_seed(0)
    x, y = (torch.ones(s) if ones else torch.randn(s, generator=drawn) for s in ((128, 64), (64, 128)))
    sums = SumsOfProgram(ds.program(Multiplied()).bind((x, y)))
    lift_torch(Multiplied(), (x, y), {}).run(observe=sums)
    (site,) = sums.sites
    assert site.coherence == pytest.approx(coherence, rel=0.1)
