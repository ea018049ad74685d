"""Values that rounding or an approximated kernel carries to the end of a domain: named, and no other function."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional

import driftscope as ds
from driftscope.explain.native import kernels_alone
from driftscope.lift.domains import held_at_ends
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.words import beside_whole

G = torch.Generator().manual_seed(0)
ROWS = torch.randn(40, 33, generator=G)
SATURATING = torch.linspace(12, 22, 132).reshape(4, 33)


def file_of(operators: list[str], columns: int = 33) -> onnx.ModelProto:
    """A chain of operators; ``rsub`` is one minus the value."""
    nodes, name = [helper.make_node("Constant", [], ["one"], value_float=1.0)], "x"
    for k, operator in enumerate(operators):
        last = "y" if k + 1 == len(operators) else f"v{k}"
        given = ["one", name] if operator == "rsub" else [name]
        nodes.append(helper.make_node("Sub" if operator == "rsub" else operator, given, [last], name=f"n{k}"))
        name = last
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


SQUASHED = {
    "log(1 - sigmoid)": (["Sigmoid", "rsub", "Log"], lambda x: torch.log(1 - torch.sigmoid(x)), SATURATING),
    "log(1 - tanh)": (["Tanh", "rsub", "Log"], lambda x: torch.log(1 - torch.tanh(x)), SATURATING / 2),
    "atanh(tanh)": (["Tanh", "Atanh"], lambda x: torch.atanh(torch.tanh(x)), SATURATING / 2),
    "log(sigmoid)": (["Sigmoid", "Log"], functional.logsigmoid, -SATURATING * 4.5),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", SQUASHED)
def test_a_kernel_that_gives_the_end_of_a_domain_itself_is_named(name, swapped):
    operators, function, x = SQUASHED[name]
    file = file_of(operators)
    a, b = (file, function) if swapped else (function, file)
    found = ds.compare(a, b, [x])
    if found.verdict is ds.Verdict.ROUNDING:
        pytest.skip("the two runtimes' kernels saturate at the same places here")
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert found.first.code == "N004"
    assert any(f" in {side}, " in found.reason for side in "AB")
    assert "where " in found.reason
    assert "is not finite" in found.reason
    assert str(found).startswith(
        ("PRECISION: rounding in ", "PRECISION: approximation in ", "PRECISION: underflow in ")
    )
    assert all(f.code != "R003" for f in found.findings)
    bug = ds.compare(
        *((file, lambda t: 1.001 * function(t)) if swapped else (lambda t: 1.001 * function(t), file)), [x]
    )
    assert bug.verdict is ds.Verdict.DIFFERENT


def angle(a, b):
    return torch.acos(functional.cosine_similarity(a, b, dim=-1))


def angle_of_unit_vectors(a, b):
    return torch.acos((functional.normalize(a, dim=-1) * functional.normalize(b, dim=-1)).sum(-1))


def spread_of_squares(x):
    return torch.sqrt((x * x).mean(-1) - x.mean(-1) ** 2)


def spread_of_products(x):
    return torch.sqrt((x * x).sum(-1) / x.shape[-1] - x.sum(-1) * x.mean(-1) / x.shape[-1])


CONSTANT = torch.randn(40, 1, generator=G).expand(40, 33).contiguous()
ENDS = {
    "the angle between equal vectors": (angle, angle_of_unit_vectors, [ROWS, ROWS.clone()]),
    "the spread of equal numbers": (spread_of_squares, spread_of_products, [CONSTANT]),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_an_argument_at_the_end_of_a_domain_is_no_other_function(name, swapped):
    one, other, given = ENDS[name]
    found = ds.compare(*((other, one) if swapped else (one, other)), given)
    assert found.verdict <= ds.Verdict.PRECISION, found.reason
    assert all(f.code != "R003" for f in found.findings)


@pytest.mark.parametrize("swapped", [False, True])
def test_half_an_ulp_of_float64_beyond_the_end_is_the_end(swapped):
    def scaled(x):
        return torch.acos(x * (1 + 2.0**-52))

    x = torch.tensor([1.0, 0.5, -0.25])
    found = ds.compare(*((scaled, torch.acos) if swapped else (torch.acos, scaled)), [x])
    assert found.verdict is ds.Verdict.IDENTICAL
    assert all(f.code != "N016" for f in found.findings)
    note = next(f for f in found.findings if f.code == "N012")
    assert note.note
    assert "1 argument within float64's own rounding of 1, where its domain ends" in note.what
    further = ds.compare(torch.acos, lambda x: torch.acos(x * (1 + 2.0**-40)), [x])
    assert any(f.code == "N016" for f in further.findings)


@pytest.mark.parametrize("factor", [1.001, 0.999, 1 - 1e-9])
@pytest.mark.parametrize("swapped", [False, True])
def test_beside_the_end_of_a_domain_another_function_is_found(factor, swapped):
    def off(a, b):
        return torch.acos(functional.cosine_similarity(a, b, dim=-1) * factor)

    found = ds.compare(*((off, angle) if swapped else (angle, off)), [ROWS, ROWS.clone()], explain=False)
    assert found.verdict in (ds.Verdict.DIFFERENT, ds.Verdict.IDENTICAL), found.reason
    assert "same function" not in found.reason.replace("not the same function", "")


def test_only_arguments_within_rounding_of_the_end_are_taken_as_it():
    near = torch.tensor([1.0, 1 - 2.0**-20, 0.5], dtype=torch.float32)
    graph = lift_torch(lambda x: torch.acos(x / 1.0), (near,), {})
    found = held_at_ends(graph, {})
    assert found is not None
    outputs, held = found
    assert not held
    assert torch.allclose(outputs[0].value, torch.acos(near.double()), rtol=1e-15)
    inside = lift_torch(lambda x: torch.acos(x / 1.0), (torch.tensor([0.5, 0.25]),), {})
    assert held_at_ends(inside, {}) is None


def test_a_value_put_to_the_end_of_a_domain_by_the_program_is_another_function():
    _, function, x = SQUASHED["log(1 - sigmoid)"]
    x = x - 10

    def broken(t):
        s = torch.sigmoid(t)
        return torch.log(1 - torch.where(s > 0.9, torch.ones_like(s), s))

    found = ds.compare(function, broken, [x])
    assert found.verdict is ds.Verdict.DIFFERENT


def test_native_values_are_read_once_for_each_side(monkeypatch):
    asked = []
    real = kernels_alone.native_parts_of
    monkeypatch.setattr(kernels_alone, "native_parts_of", lambda b, s: (asked.append(s), real(b, s))[1])
    operators, function, x = SQUASHED["log(1 - tanh)"]
    ds.compare(function, file_of(operators), [x])
    assert set(asked) <= {"A", "B"}
    assert len(asked) == len(set(asked))


def test_the_words_tell_numbers_beside_one_from_one():
    assert beside_whole(1 + 2.0**-23) == "1 + 1.2e-07"
    assert beside_whole(1 - 2.0**-24) == "1 - 6e-08"
    assert beside_whole(1.0) == "1"
    assert beside_whole(1.0009765625) == "1 + 0.00098"
    assert beside_whole(5.99986, 4) == "5.99986"
    assert beside_whole(-72476.2, 4) == "-72476.2"
    assert beside_whole(1.0009765625, 4) == "1.001"
    assert beside_whole(0.25) == "0.25"
    assert beside_whole(-7.45e-9) == "-7.45e-09"
    assert beside_whole(math.inf) == "inf"
    assert np.isfinite(float(beside_whole(1e300)))


HUGE = tuple(
    torch.randn(6, 24, generator=torch.Generator().manual_seed(5), dtype=torch.float64).mul(1e18).float()
    for _ in range(2)
)


def _by_scores(x, y):
    return (x @ y.T) @ y


@pytest.mark.parametrize("swapped", [False, True])
def test_sums_that_overflow_to_opposite_infinities_are_no_other_function(swapped):
    def by_product(x, y):
        return x @ (y.T @ y)

    pair = (by_product, _by_scores) if swapped else (_by_scores, by_product)
    if torch.equal(*(f(*HUGE) for f in pair)):
        pytest.skip("the products overflow to the same infinities here")
    found = ds.compare(*pair, HUGE)
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert found.first.code == "N004"
    assert "overflow in" in found.reason


@pytest.mark.parametrize("swapped", [False, True])
def test_opposite_infinities_of_another_function_are_one(swapped):
    def negated(x, y):
        return -((x @ y.T) @ y)

    found = ds.compare(*((negated, _by_scores) if swapped else (_by_scores, negated)), HUGE)
    assert found.verdict is ds.Verdict.DIFFERENT, found.reason
