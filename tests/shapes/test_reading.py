"""Every relation a trace assumed is read, minimised and said plainly, with the model's own line."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import driftscope as ds
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import Capture, capture
from driftscope.shapes.probe.axes import arguments_of
from shapes.small_models import (
    CenterAlways,
    CenterUnlessAlone,
    DampLong,
    Doubled,
    FirstOf,
    Folded,
    Gated,
    Halved,
    Looped,
    PadToFive,
    PoolAndAdd,
    pool_inputs,
    seeded,
)


def exported(model, inputs, mode=Mode.AUTO, hint=Dim.AUTO) -> Capture:
    arguments = arguments_of(model, inputs)
    made = capture(model, arguments, Attempt(mode, (hint,) * len(arguments.axes)))
    assert isinstance(made, Capture), made
    return made


def texts(made: Capture) -> list[str]:
    return [clause.text for clause in made.relations]


def line_of(model, words: str) -> int:
    source, first = inspect.getsourcelines(type(model).forward)
    return first + next(number for number, line in enumerate(source) if words in line)


def test_sums_and_halves_are_solved_for_the_size_that_follows():
    made = exported(PoolAndAdd(), pool_inputs())
    assert "left.shape[1] == right.shape[1] == long.shape[1]" in texts(made)
    expected = "long.shape[0] in {2*left.shape[0] + 2*right.shape[0] - 1, 2*left.shape[0] + 2*right.shape[0]}"
    assert expected in texts(made)


def test_each_relation_knows_the_models_line():
    model = PoolAndAdd()
    for clause in exported(model, pool_inputs()).relations:
        if clause.enforced:
            assert clause.user_line is not None, clause.text
            assert clause.user_line.line == line_of(model, "torch.cat")
            assert clause.user_line.file == inspect.getsourcefile(PoolAndAdd)
            assert clause.user_line.user


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        (Folded(), (seeded(2, 12),), "x.shape[1] is a multiple of 3"),
        (DampLong(), (seeded(2, 4),), "x.shape[1] <= 5"),
        (DampLong(), (seeded(2, 9),), "x.shape[1] >= 6"),
        (Halved(), (seeded(7, 2),), "x.shape[0] in {6, 7}"),
        (Looped(), (seeded(3, 2),), "x.shape[0] == 3"),
        (Gated(), (seeded(2, 6), seeded(2, 6)), "gate.shape[1] == 6"),
        (FirstOf(), (seeded(2, 6), 4), "x.shape[1] >= count"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_relations_in_words(model, inputs, expected):
    found = texts(exported(model, inputs))
    assert any(expected in words for words in found), found


def grid_points(made: Capture, sizes) -> np.ndarray:
    return np.array(list(itertools.product(sizes, repeat=len(made.relations.axes))), np.int64)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Folded(), (seeded(2, 12),)),
        (DampLong(), (seeded(2, 4),)),
        (PadToFive(), (seeded(2, 12),)),
        (Halved(), (seeded(7, 2),)),
        (Looped(), (seeded(3, 2),)),
        (Gated(), (seeded(2, 6), seeded(2, 6))),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.OBLIVIOUS])
@pytest.mark.sampled(3)
def test_what_is_admitted_is_what_the_program_lets_pass(model, inputs, mode):
    made = exported(model, inputs, mode)
    points = grid_points(made, range(13) if len(made.relations.axes) == 2 else (0, 1, 2, 3, 6))
    admitted = made.relations.admits(points)
    module = made.module
    for point, said in zip(points.tolist(), admitted, strict=True):
        shapes, rest = [], list(point)
        for value in inputs:
            shapes.append(rest[: value.ndim])
            rest = rest[value.ndim :]
        try:
            module(*(torch.zeros(shape) for shape in shapes))
            passed = True
        except AssertionError as error:
            assert "Guard failed" in str(error)  # noqa: PT017
            passed = False
        except ZeroDivisionError:
            passed = False  # the check itself divides by a size
        except (RuntimeError, IndexError):
            passed = True  # a kernel refused, no check did
        assert said == passed, (point, said)


@pytest.mark.slow
def test_minimised_clauses_say_what_all_recorded_ones_say():
    made = exported(PadToFive(), (seeded(2, 12),))
    relations = made.relations
    assert len(relations.clauses) < len(relations.recorded)
    # Sizes from 2 on: below, torch's own unchecked bound makes the difference.
    points = grid_points(made, range(2, 60))
    recorded = relations.admits(points)
    shown = np.ones(len(points), bool)
    for clause in relations.clauses:
        if clause.enforced:
            shown &= np.array([clause not in relations.violated(point) for point in points])
    assert np.array_equal(recorded, shown)


def test_a_branch_on_one_is_named_as_decided_and_unchecked():
    model = CenterUnlessAlone()
    decided = [c for c in exported(model, (seeded(4, 2),)).relations.unchecked if c.kind == "decided"]
    assert [c.text for c in decided] == ["batch.shape[0] != 1 was decided while tracing, not checked"]
    assert decided[0].user_line.line == line_of(model, "== 1")


def test_the_same_model_without_the_branch_decides_nothing():
    relations = exported(CenterAlways(), (seeded(4, 2),)).relations
    assert not [c for c in relations if c.kind == "decided"]
    assert "batch.shape[0] traced as >= 2, not checked" in texts(exported(CenterAlways(), (seeded(4, 2),)))


def test_a_decision_that_is_checked_is_not_called_unchecked():
    relations = exported(DampLong(), (seeded(2, 4),)).relations
    assert not [c for c in relations if c.kind == "decided"]
    bound = next(c for c in relations if "<= 5" in c.text)
    assert bound.enforced
    assert bound.user_line.line == line_of(DampLong(), "> 5")


def test_oblivious_tracing_checks_the_branch():
    relations = exported(CenterUnlessAlone(), (seeded(4, 2),), Mode.OBLIVIOUS).relations
    assert any(c.enforced and c.text == "batch.shape[0] != 1" for c in relations), str(relations)


def test_unbacked_sizes_keep_relations_and_say_whether_the_program_checks_them():
    """Torch 2.15 puts a check of its own into the graph where older ones leave it to a kernel to refuse."""
    model = PoolAndAdd()
    made = exported(model, pool_inputs(), Mode.UNBACKED, Dim.DYNAMIC)
    tied = [c for c in made.relations if "long.shape[0] in" in c.text]
    assert len(tied) == 1
    assert tied[0].user_line is not None
    assert tied[0].user_line.line == line_of(model, "torch.cat")
    assert tied[0].user_line.file == inspect.getsourcefile(PoolAndAdd)
    with pytest.raises((RuntimeError, AssertionError)) as refused:
        made.exported.module()(seeded(3, 4), seeded(3, 4), seeded(20, 4))
    assert ("assertion" in str(refused.value).lower()) == tied[0].enforced, refused.value


def test_derived_dims_are_read_back():
    model, arguments = Doubled(), arguments_of(Doubled(), (seeded(4, 2), seeded(9, 2)))
    rows, columns = Dim("rows", min=3), Dim("columns")
    made = capture(model, arguments, Attempt(Mode.DERIVED, (rows, columns, 2 * rows + 1, columns)))
    assert isinstance(made, Capture), made
    assert "longer.shape[0] == 2*rows.shape[0] + 1" in texts(made)
    points = np.array([[5, 2, 11, 2], [5, 2, 10, 2], [2, 2, 5, 2]])
    assert made.relations.admits(points).tolist() == [True, False, False]


def test_violated_names_the_clause():
    relations = exported(Folded(), (seeded(2, 12),)).relations
    assert ["multiple of 3" in c.text for c in relations.violated((2, 13)) if c.enforced] == [True]
    assert not [c for c in relations.violated((2, 15)) if c.enforced]


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.OBLIVIOUS])
def test_relations_do_not_depend_on_torchs_cache_of_operators(monkeypatch, mode):
    import contextlib

    from torch._dynamo import config

    from driftscope.shapes.capture import export

    model, inputs = PoolAndAdd(), pool_inputs()
    arguments = arguments_of(model, inputs)
    attempt = Attempt(mode, tuple(Dim.AUTO for _ in arguments.axes))
    before = config.fake_tensor_cache_enabled
    without = capture(model, arguments, attempt)
    assert config.fake_tensor_cache_enabled == before
    monkeypatch.setattr(export, "without_dispatch_cache", contextlib.nullcontext)
    cached = capture(model, arguments, attempt)
    assert [c.text for c in without.relations.recorded] == [c.text for c in cached.relations.recorded]
    assert without.exported.graph_module.code == cached.exported.graph_module.code


class FoldedInTwo(nn.Module):
    """Adds its two halves: torch makes a size of its own for the second, which the sizes of the input settle."""

    def forward(self, x):
        half = x.shape[1] // 2
        return x[:, :half] + x[:, x.shape[1] - half :]


class UpTo(nn.Module):
    """Takes as many columns as a value says."""

    def forward(self, x, count):
        return x[:, : count.item()] * 2


class Positive(nn.Module):
    """Keeps what is positive."""

    def forward(self, x):
        return x[x > 0] * 2


def test_a_size_that_the_sizes_of_the_input_settle_is_told_in_them_and_depends_on_no_values():
    report = ds.check_shapes(FoldedInTwo(), (seeded(3, 6),), targets=())
    assert str(report.relations) == "no relation between sizes"
    assert "S009" not in [finding.code for finding in report.findings]


def test_a_size_that_depends_on_values_is_named_by_its_node_and_line():
    for model, inputs, node in (
        (UpTo(), (seeded(3, 6), torch.tensor(4)), "slice_1.shape[1] <= x.shape[1]"),
        (Positive(), (seeded(3, 6),), "index.shape[0]"),
    ):
        found = [f for f in ds.check_shapes(model, inputs, targets=()).findings if f.code == "S009"]
        assert len(found) == 1
        assert node in found[0].what
        lines, first = inspect.getsourcelines(type(model).forward)
        assert found[0].where.line == first + len(lines) - 1
