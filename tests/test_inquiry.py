"""The main job as it is called from Python."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2).eval()


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize("programs", [{}, {"one": len}, [len, len]])
def test_compare_all_needs_two_programs_with_names(programs: object) -> None:
    with pytest.raises(ds.InputError, match="two or more programs by name"):
        ds.compare_all(programs, X)  # type: ignore[arg-type]


def test_compare_all_groups_equal_bits_and_keeps_refusals_apart(model: nn.Module) -> None:
    other = nn.Linear(4, 2).eval()
    programs = {"a": model, "again": lambda x: model(x), "other": other, "refuses": lambda x: x @ x.half()}
    matrix = ds.compare_all(programs, X)
    assert matrix.classes == (("a", "again"), ("other",))
    assert list(matrix.refused) == ["refuses"]
    assert matrix["a", "other"].verdict is ds.Verdict.DIFFERENT


def test_nothing_compared_is_nothing_decided() -> None:
    nothing = ds.compare(lambda x: None, lambda x: None, X)
    assert nothing.verdict is ds.Verdict.INCONCLUSIVE
    something = ds.compare(lambda x: (None, x), lambda x: (None, x), X)
    assert something.verdict is ds.Verdict.IDENTICAL


def test_shapes_that_do_not_stand_against_each_other_have_no_lifted_drift(model: nn.Module) -> None:
    (output,) = ds.compare(model, lambda x: model(x)[:2], X).outputs
    assert (output.verdict, output.lifted) == (ds.Verdict.DIFFERENT, None)
    (output,) = ds.compare(model, lambda x: model(x), X).outputs
    assert output.lifted == 0.0


def test_a_tolerance_is_suggested_unless_nothing_is_decided(model: nn.Module) -> None:
    (decided,) = ds.compare(model, model, X).outputs
    assert decided.tolerance is not None
    (undecided,) = ds.compare(lambda x: x + torch.rand_like(x), lambda x: x, X).outputs
    assert undecided.tolerance is None


def test_inputs_that_the_reference_does_not_take_are_bad_input(model: nn.Module) -> None:
    for wrong in (X.double(), X[:, :3], X.int()):
        with pytest.raises(ds.InputError, match=r"does not (take|run on) these inputs: torch says: "):
            ds.compare(model, model, wrong)
    news = ds.compare(model, nn.Linear(5, 2).eval(), X)
    assert [f.code for f in news.findings] == ["R002"]
