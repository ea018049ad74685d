"""The parts of a check one by one: names, places, derivatives, agreement, divergence."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.records.user_code import is_users
from driftscope.transforms import derivatives
from driftscope.transforms.agreement import differ
from driftscope.transforms.diagnose import syntax
from driftscope.transforms.diagnose.divergence import first_divergence
from driftscope.transforms.naming import levels_of
from driftscope.transforms.transforming import CheckSetting, Level, Ragged, plain, stacked
from driftscope.transforms.world.places import Place, calling_place
from driftscope.transforms.world.trace import Bounded, Trace, is_question

X = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("vmap", (Level("vmap"),)),
        ("vmap(grad)", (Level("vmap"), Level("grad"))),
        (" jacfwd( vmap ( grad )) ", (Level("jacfwd"), Level("vmap"), Level("grad"))),
        ("vmap[chunk_size=1]", (Level("vmap", {"chunk_size": 1}),)),
        ("vmap[randomness=same](grad)", (Level("vmap", {"randomness": "same"}), Level("grad"))),
        ("vmap(randomness='different', chunk_size=2)", (Level("vmap", {"randomness": "different", "chunk_size": 2}),)),
        ("compile(eager)", (Level("compile", {"backend": "eager"}),)),
        ("compile-aot_eager", (Level("compile", {"backend": "aot_eager"}),)),
        ("export strict", (Level("export", {"strict": True}),)),
        ("compile_fullgraph(vmap)", (Level("compile", {"backend": "eager", "fullgraph": True}), Level("vmap"))),
    ],
)
def test_a_transform_is_read_as_it_is_written(text, levels):
    assert levels_of(text) == levels


# ---- places ---------------------------------------------------------------------------------------------------------


def test_a_place_is_an_expression():
    place = calling_place(sys._getframe(0))
    assert place.file == __file__
    assert "calling_place" in place.expression
    assert place.where.column == place.column + 1


def test_what_is_the_users():
    assert is_users(__file__)
    assert not is_users(torch.__file__)
    assert not is_users(sys.modules["ast"].__file__)


def _place(expression: str) -> Place:
    """Return the place of an expression in the function below."""
    lines = open(__file__, encoding="utf-8").read().splitlines()  # noqa: SIM115
    start = next(i for i, line in enumerate(lines) if line.startswith("def _decisions"))
    for number in range(start, len(lines)):
        column = lines[number].find(expression)
        if column >= 0:
            return Place(__file__, number + 1, column, number + 1, column + len(expression))
    raise LookupError(expression)


def _decisions(x, n):
    if x > 1:
        n = n + 2
    while x > 3:
        n = max(x.a, n)
    y = x[: x.b]
    z = n if x > 4 else y
    for _ in range(x.c):
        z = z and x.d
    try:
        z = float(x.e)
    except RuntimeError:
        z = (lambda: x.f)()
    return z


@pytest.mark.parametrize(
    ("expression", "context"),
    [
        ("x > 1", "if"), ("x > 3", "while"), ("x > 4", "conditional"), ("x.a", "max"), ("x.b", "slice"),
        ("x.c", "range"), ("x.d", "and"), ("x.e", ""), ("x.f", ""), ("n + 2", ""),
    ],
)  # fmt: skip
def test_what_an_expression_decides(expression, context):
    assert syntax.context_of(_place(expression)) == context


def test_a_handler_is_found_around_its_body_alone():
    assert syntax.handler_around(_place("float(x.e)")) is not None
    assert syntax.handler_around(_place("x > 1")) is None


# ---- derivatives ----------------------------------------------------------------------------------------------------


def smooth(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.sin().sum(), (x * x.flip(0)).sum(), x[0] * x[1].exp()])


@pytest.mark.parametrize("name", sorted(derivatives.LIFTED))
def test_both_sides_of_a_derivative_agree_on_a_smooth_function(name):
    lifted, plainly = derivatives.LIFTED[name](smooth)(X.clone()), derivatives.PLAIN[name](smooth)(X.clone())
    assert differ(plainly, lifted).agrees


def test_wide_outputs_are_pushed_forward_without_rows():
    def wide(x):
        return x.repeat(40).sin()

    assert wide(X).numel() > derivatives.MAX_ROWS
    assert differ(derivatives.PLAIN["jvp"](wide)(X.clone()), derivatives.LIFTED["jvp"](wide)(X.clone())).agrees


def test_nested_references_differentiate_twice():
    setting = CheckSetting((0,), "error", 1)
    twice = plain(lambda x: (x**3).sum(), (Level("grad"), Level("grad")), setting)
    assert torch.allclose(twice(X.clone()), 6 * X)


def test_what_does_not_depend_on_the_input_has_a_zero_derivative():
    constant = torch.ones(2, dtype=torch.float64)
    assert derivatives.PLAIN["grad"](lambda x: constant)(X.clone()).tolist() == [0.0, 0.0, 0.0]


# ---- agreement ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain_value", "other", "kind"),
    [
        (X, X.clone(), "same"),
        (X, X * (1 + 1e-12), "rounding"),
        (X, X * 1.01, "value"),
        (X, X.float(), "dtype"),
        (X, X[:2], "shape"),
        ((X, X), (X,), "structure"),
        (X, 3.0, "structure"),
        (X, X.new_full((3,), torch.nan), "value"),
        (X.new_full((3,), torch.nan), X.new_full((3,), torch.nan), "same"),
        (Ragged((X, X[:2])), X, "shape"),
        ({"a": 1.0, "b": "n"}, {"a": 1.0, "b": "n"}, "same"),
        ({"a": 1.0}, {"a": 1.5}, "value"),
    ],
)
def test_how_two_results_differ(plain_value, other, kind):
    assert differ(plain_value, other).kind == kind


@settings(max_examples=80)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), st.integers(0, 4))
def test_one_changed_element_is_always_found(values, position):
    a = torch.tensor(values, dtype=torch.float64)
    b = a.clone()
    at = position % len(values)
    b[at] += 1 + a.abs().max()
    found = differ(a, b)
    assert found.kind == "value"
    assert found.index == (at,)


def test_results_that_do_not_stack_are_kept_apart():
    assert isinstance(stacked([X, X[:2]]), Ragged)
    assert stacked([X, X]).shape == (2, 3)


# ---- divergence -----------------------------------------------------------------------------------------------------


def traced(function, *args):
    trace = Trace()
    Bounded(function, trace)(*args)
    return trace.events


def vmapped(function, batch):
    trace = Trace()
    torch.vmap(Bounded(function, trace))(batch)
    return trace.events


def test_the_first_call_that_differs_is_named():
    table = torch.ones(2, 3, dtype=torch.float64)

    def f(v):
        w = v * 2
        z = torch.index_fill(table, 0, torch.tensor([1]), w)
        return z + 1

    found = first_divergence([traced(f, v) for v in X], vmapped(f, X))
    assert found.event.operation == "index_fill"
    assert found.same_inputs
    assert found.same_arguments


def test_equal_traces_do_not_diverge():
    batch = torch.randn(3, 4, dtype=torch.float64)

    def f(x):
        y = (x * 2).sin()
        return y[0] + y.sum() * x.shape[0]

    assert first_divergence([traced(f, x) for x in batch], vmapped(f, batch)) is None


def test_values_are_kept_as_they_were_before_a_write():
    def f(x):
        x.mul_(2)
        return x

    event = next(e for e in traced(f, X.clone()) if e.operation == "mul_")
    assert event.in_place
    assert torch.equal(event.inputs[0], X)
    assert torch.equal(event.outputs[0], X * 2)


def test_questions_are_no_operations():
    assert is_question("Tensor.shape.__get__")
    assert is_question("Tensor.dim")
    assert not is_question("Tensor.data.__get__")
    assert not is_question("Tensor.sum")
