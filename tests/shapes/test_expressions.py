"""The tree of conditions: one meaning for numpy, for z3 and for people."""

from __future__ import annotations

import ast
import itertools

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from driftscope.shapes.conditions.expressions import (
    Number,
    Size,
    conjuncts,
    evaluate,
    holds,
    negated,
    operation,
    sizes_in,
    substitute,
    text,
    to_z3,
)
from driftscope.shapes.conditions.parsing import Inexpressible, from_sympy, parse_text
from driftscope.shapes.conditions.phrasing import multiples

NAMES = ("a", "b", "c")
sizes = st.fixed_dictionaries({name: st.integers(0, 40) for name in NAMES})


def terms(depth: int = 3):
    leaves = st.one_of(st.sampled_from([Size(n) for n in NAMES]), st.integers(-9, 9).map(Number))
    if not depth:
        return leaves
    below = terms(depth - 1)
    return st.one_of(
        leaves,
        st.tuples(st.sampled_from(["+", "*", "max", "min"]), below, below).map(lambda t: operation(*t)),
        st.tuples(st.sampled_from(["//", "%"]), below, st.integers(1, 9).map(Number)).map(lambda t: operation(*t)),
    )


def conditions():
    words = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    return st.tuples(words, terms(), terms()).map(lambda t: operation(*t))


@given(terms(), sizes)
def test_the_text_is_python_that_means_the_same(term, at):
    python = eval(compile(ast.parse(text(term), mode="eval"), "term", "eval"), {"max": max, "min": min}, dict(at))  # noqa: S307
    assert python == evaluate(term, at)


@given(conditions())
def test_reading_the_text_gives_the_same_condition_everywhere(condition):
    read = parse_text(text(condition), lambda name: Size(name) if name in NAMES else None)
    grid = np.random.default_rng(0).integers(0, 30, (3, 50))
    at = dict(zip(NAMES, grid, strict=True))
    assert np.array_equal(holds(condition, at, 50), holds(read, at, 50))


@given(conditions(), sizes)
def test_negation_is_the_opposite_everywhere(condition, at):
    row = {name: np.asarray([value]) for name, value in at.items()}
    assert holds(condition, row, 1)[0] != holds(negated(condition), row, 1)[0]


@given(conditions(), sizes)
def test_z3_agrees_with_numpy(condition, at):
    z3 = pytest.importorskip("z3")
    variables = {name: z3.Int(name) for name in NAMES}
    values = [(variables[name], z3.IntVal(value)) for name, value in at.items()]
    translated = to_z3(condition, variables)
    said = z3.simplify(z3.substitute(translated, *values)) if not isinstance(translated, bool) else translated
    row = {name: np.asarray([value]) for name, value in at.items()}
    assert z3.is_true(said) == bool(holds(condition, row, 1)[0])


@given(terms(), sizes)
def test_substituting_numbers_evaluates(term, at):
    assert substitute(term, {name: Number(value) for name, value in at.items()}) == Number(evaluate(term, at))


def test_a_quotient_inside_a_product_keeps_its_parentheses():
    product = operation("*", operation("//", Size("h"), 4), operation("//", Size("w"), 4))
    assert text(product) == "(h//4)*(w//4)"


def test_a_negative_part_is_subtracted():
    difference = operation("+", Size("a"), operation("*", -1, Size("b")), 3)
    assert eval(text(difference), {}, {"a": 5, "b": 2}) == 6  # noqa: S307
    assert "+ (-1)" not in text(difference)


@pytest.mark.parametrize("divide", ["//", "/", "%"])
def test_division_by_a_size_of_zero_raises_nothing_and_equals_no_size(divide):
    quotient = operation(divide, Size("a"), Size("b"))
    found = evaluate(quotient, {"a": np.array([6, 6]), "b": np.array([0, 4])})
    assert found[0] == -1
    assert found[1] == {"//": 1, "/": 1.5, "%": 2}[divide]


@pytest.mark.parametrize(
    ("guard", "at", "expected"),
    [
        ("((1 + L['z'].size()[1]) // 2) != 1", {"z1": 2}, False),
        ("((1 + L['z'].size()[1]) // 2) != 1", {"z1": 3}, True),
        ("math.ceil(L['z'].size()[1] / 8) == 2", {"z1": 9}, True),
        ("math.trunc(L['z'].size()[1] / 2) == 3", {"z1": 8}, False),
        ("2 <= L['z'].size()[1] <= 5", {"z1": 6}, False),
        ("Mod(L['z'].size()[1], 4) == 0 or not L['z'].size()[1] > 3", {"z1": 3}, True),
        ("Max(1, L['z'].size()[1], 7) != L['z'].size()[1]", {"z1": 7}, False),
    ],
)
def test_guards_as_torch_writes_them(guard, at, expected):
    term = parse_text(guard, lambda source: Size("z1") if source == "L['z'].size()[1]" else None)
    assert bool(holds(term, {name: np.asarray([v]) for name, v in at.items()}, 1)[0]) is expected


@pytest.mark.parametrize("guard", ["L['q'].stride()[0] == 1", "lambda: 3", "x ===", "unheard_of(3) == 1"])
def test_what_has_no_reading_is_refused_by_name(guard):
    with pytest.raises(Inexpressible):
        parse_text(guard, lambda _: None)


def test_sympy_of_torch_reads_alike():
    from torch.utils._sympy.functions import FloorDiv, Mod

    s = sympy.Symbol("s0", integer=True, positive=True)
    term = from_sympy(sympy.Eq(FloorDiv(s + 1, 2) + Mod(s, 3), 4), {"s0": Size("x.shape[0]")})
    assert sizes_in(term) == {"x.shape[0]"}
    values = np.arange(1, 30)
    expected = [(n + 1) // 2 + n % 3 == 4 for n in values]
    assert holds(term, {"x.shape[0]": values}, len(values)).tolist() == expected


def test_a_symbol_of_no_input_is_unreadable():
    with pytest.raises(Inexpressible, match="u0"):
        from_sympy(sympy.Symbol("u0") + 1, {})


def test_conjunctions_come_apart():
    both = operation("and", operation(">", Size("a"), 1), operation("<", Size("b"), 2))
    assert len(conjuncts(both)) == 2
    assert conjuncts(both.terms[0]) == (both.terms[0],)


@pytest.mark.parametrize(("condition", "said"), [
    ("b*c*h*w == 16*b*c*(h//4)*(w//4)", [("h", 4), ("w", 4)]),
    ("6*(h//2)*(w//3) == h*w", [("h", 2), ("w", 3)]),
    ("h == 4*(h//4)", [("h", 4)]),
    ("h*w == 8*(h//4)*(w//4)", []),  # half as many: holds nowhere
    ("h*w == 16*(h//4)*(v//4)", []),
    ("h*w == 4*(h//4)*w + 0*h", []),
    ("h*h == 16*(h//4)*(h//4)", []),
    ("h*w == k*(h//k)*w", []),
    ("h*w*v == 16*(h//4)*(w//4)", []),
    ("h*w >= 16*(h//4)*(w//4)", []),
])  # fmt: skip
def test_cutting_into_patches_says_what_is_a_multiple_of_what(condition: str, said: list[tuple[str, int]]) -> None:
    term = parse_text(condition, Size)
    assert multiples(term) == said
    if said:
        steps = dict(said)
        sizes = {name: range(1, 13) if name in steps else range(1, 3) for name in sorted(sizes_in(term))}
        points = np.array(list(itertools.product(*sizes.values())), np.int64)
        at = {name: points[:, k] for k, name in enumerate(sizes)}
        meant = np.all([at[name] % step == 0 for name, step in said], axis=0)
        assert (holds(term, at, len(points)) == meant).all()
