"""A quantisation and small terms that one side leaves out are in every layer: what else differs is told beside them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tests.zoo.tools import dynamo, quantised_dynamically
from torch import nn

import driftscope as ds
from driftscope.records.kinds.comparison import Comparison

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))


class Norm(nn.Module):
    """A root mean square norm of several steps, with or without the term that keeps its divisor from zero."""

    def __init__(self, small: float | None):
        super().__init__()
        self.small, self.weight = small, nn.Parameter(1 + 0.1 * torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(mean if self.small is None else mean + self.small)


class Net(nn.Module):
    """Two norms, three layers."""

    def __init__(self, small: float | None = 1e-8, kind: str = "none"):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two, self.kind = Norm(small), Norm(small), kind
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 0.05 * x
        x = x + self.b(nn.functional.gelu(self.a(self.one(x)), approximate=self.kind))
        return self.c(self.two(x))


def compared(a: object, b: object) -> Comparison:
    with torch.no_grad():
        return ds.compare(a, b, (X,))


def wrong(found: Comparison) -> list[str]:
    return [f"{f.what} {f.why}" for f in found.findings if not f.note]


@pytest.mark.parametrize("turned", [False, True])
def test_a_changed_weight_beside_terms_that_are_left_out(turned: bool) -> None:
    broken = Net(small=None)
    with torch.no_grad():
        broken.a.weight[1] *= 1.5
    found = compared(broken, Net()) if turned else compared(Net(), broken)
    weight, term = wrong(found)
    assert "a.weight is not the reference's a.weight" in weight
    assert "adds 1e-08 in add and add_2" in term
    assert "alone it moves the output by" in term


def test_terms_that_are_left_out_alone_are_one_finding() -> None:
    (term,) = wrong(compared(Net(), Net(small=None)))
    assert "without it the two are the same function" in term


def test_a_changed_weight_alone_is_one_finding() -> None:
    broken = Net()
    with torch.no_grad():
        broken.a.weight[1] *= 1.5
    assert len(wrong(compared(Net(), broken))) == 1


def test_what_a_quantised_file_leaves_out_besides(tmp_path: Path) -> None:
    file = quantised_dynamically(Net(small=None), (X,), tmp_path)
    for a, b, side in ((Net(), file, "B"), (file, Net(), "A")):
        found = compared(a, b)
        (term,) = wrong(found)
        assert "adds 1e-08 in add and add_2" in term
        assert f", and without the quantisation of {side} by " in found.answer


def test_another_function_in_a_quantised_file(tmp_path: Path) -> None:
    file = quantised_dynamically(Net(small=None, kind="tanh"), (X,), tmp_path)
    found = compared(Net(small=None), file)
    (kind,) = wrong(found)
    assert "approximate is 'tanh' here and 'none' in A" in kind
    assert "without the quantisation of B the program's output is off by" in kind


def test_a_quantised_file_alone_is_honest(tmp_path: Path) -> None:
    net = Net(small=None)
    assert compared(net, quantised_dynamically(net, (X,), tmp_path)).verdict is ds.Verdict.PRECISION
    broken = copy.deepcopy(net)
    with torch.no_grad():
        broken.b.bias.zero_()
    (first,) = wrong(compared(broken, dynamo(net, (X,), tmp_path)))
    assert "b.bias" in first
