"""A last step that only moves what the other program returns as it is: placed and told, in both orders."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.explain.causes.edits.schemas import same_signature

G = torch.Generator().manual_seed(1)
SQUARE = torch.randn(6, 6, generator=G)


class Moved(nn.Module):
    def __init__(self, move):
        super().__init__()
        self.move = move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.move(torch.tanh(x))


MOVES = {
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(2, 0),
    "transpose": lambda x: x.T,
    "rows chosen": lambda x: x.index_select(0, torch.tensor([1, 0, 2, 3, 4, 5])),
}
SAME = {"twice flipped": lambda x: x.flip(-1).flip(-1), "twice transposed": lambda x: x.T.T}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", MOVES)
def test_a_last_step_that_moves_elements_is_the_place(name, swapped):
    plain, moved = Moved(lambda x: x), Moved(MOVES[name])
    found = ds.compare(*((moved, plain) if swapped else (plain, moved)), [SQUARE])
    assert found.verdict is ds.Verdict.DIFFERENT
    assert found.first.code == "N001"
    assert found.first.where.node, found.first.what
    assert found.first.verified
    operator = found.first.where.operator
    assert operator == "aten.tanh" if swapped else operator != "aten.tanh"


@pytest.mark.parametrize("name", SAME)
def test_moves_that_undo_each_other_are_none(name):
    found = ds.compare(Moved(lambda x: x), Moved(SAME[name]), [SQUARE])
    assert found.verdict is ds.Verdict.IDENTICAL


def test_an_operator_is_tried_in_the_place_of_those_alone_that_compute_of_the_same_kinds():
    assert "Compress" not in same_signature("Gather")
    assert "OptionalGetElement" not in same_signature("Neg")
    assert {"Abs", "Relu"} <= set(same_signature("Neg"))
    assert "Mul" in same_signature("Add")
    assert "GreaterOrEqual" in same_signature("Less")


def test_of_zeros_another_operator_is_no_cause():
    """0 * 0 and 0 ** 0 lead to the same output where it is divided by them, or multiplied with nothing."""

    def with_epsilon(x):
        return x.sum(-1) / ((x * x).sum(-1) + 1e-24).sqrt()

    def without(x):
        return x.sum(-1) / (x * x).sum(-1).sqrt()

    found = ds.compare(with_epsilon, without, [torch.zeros(4, 33)])
    assert found.verdict is ds.Verdict.DIFFERENT
    assert not any("in its place it gives" in f.why for f in found.findings)
