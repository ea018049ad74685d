"""Of several tensors that are not A's only those are told without which B is not the same function."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.explain.causes.alterations import alteration_of
from driftscope.records.verdict import Verdict

LEAST = torch.finfo(torch.float32).min


class Masked(nn.Module):
    """Causal attention whose mask has one limit or another: after a softmax both are nothing."""

    def __init__(self, limit: float):
        super().__init__()
        self.limit = limit
        self.query, self.gain = nn.Linear(8, 8), nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()
        mask = torch.where(seen, 0.0, self.limit)
        return (self.query(x) @ x.mT + mask).softmax(-1) @ x * self.gain


def _pair() -> tuple[Masked, Masked, torch.Tensor]:
    torch.manual_seed(0)
    a, b = Masked(LEAST), Masked(float("-inf"))
    b.load_state_dict(a.state_dict())
    return a, b, torch.randn(2, 6, 8)


@pytest.mark.parametrize("back", [False, True], ids=["b", "a"])
def test_a_limit_that_does_nothing_is_not_told_beside_a_weight(back: bool):
    a, b, x = _pair()
    assert ds.compare(a, b, x).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)
    with torch.no_grad():
        b.gain[1] += 0.01
    pair = (b, a) if back else (a, b)
    (finding,) = [f for f in ds.compare(*pair, x).findings if not f.note]
    assert finding.evidence["weight"] == "gain"


def test_two_weights_that_are_both_needed_are_both_told():
    a, _, x = _pair()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.gain[1] += 0.01
        b.query.bias[2] += 0.01
    told = {f.evidence["weight"] for f in ds.compare(a, b, x).findings if not f.note}
    assert told == {"gain", "query.bias"}


def test_another_limit_is_no_rounding():
    least = torch.tensor([0.0, LEAST, 0.0, LEAST], dtype=torch.float64)
    endless = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf], dtype=torch.float64)
    assert alteration_of(endless, least, torch.float32).words == "-inf where A has -3.4028235e+38"
    large = torch.tensor([0.5, 1e5, 0.25, 3e5], dtype=torch.float64)
    assert "rounded to float16" in alteration_of(large.half().double(), large, torch.float32).words


class Joined(nn.Module):
    """What is written into memory that nobody filled."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(*x.shape[:-1], 12)
        out[..., :8] = self.one(x)
        out[..., 8:] = self.other(x)
        return out.tanh()


def test_memory_that_nobody_filled_is_no_weight():
    torch.manual_seed(0)
    a, x = Joined(), torch.randn(3, 8)
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.other.weight[1, 2] += 0.01
    (finding,) = [f for f in ds.compare(a, torch.export.export(b, (x,)), x).findings if not f.note]
    assert finding.evidence["weight"] == "other.weight"


class Shares(nn.Module):
    """Attention: the bias of its keys has no effect on it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.query(x) @ self.key(x).mT).softmax(-1) @ x


@pytest.mark.parametrize("back", [False, True], ids=["b", "a"])
@pytest.mark.parametrize("biases", [True, False], ids=["layers", "weights alone"])
def test_an_exchange_is_told_whole_though_one_of_its_tensors_has_no_effect(biases: bool, back: bool):
    torch.manual_seed(0)
    a = Shares()
    b = copy.deepcopy(a)
    b.query, b.key = b.key, b.query
    if not biases:
        b.query.bias, b.key.bias = b.key.bias, b.query.bias
    finding = ds.compare(*((b, a) if back else (a, b)), torch.randn(2, 5, 8)).first
    assert finding.code == "W010"
    assert "hold each other's numbers" in finding.what
    assert ("bias" in finding.fix) == biases
    assert finding.verified


def test_weights_of_another_seed_are_no_exchange_though_one_has_no_effect():
    torch.manual_seed(0)
    a, b = Shares(), Shares()
    finding = ds.compare(a, b, torch.randn(2, 5, 8)).first
    assert "hold each other's numbers" not in finding.what
    assert "key.bias" not in finding.evidence["weights"]


class Gained(nn.Module):
    """Two layers, each with a norm, computed in a format."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.one, self.first, self.other, self.second = nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 8), nn.RMSNorm(8)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.one.weight.dtype)
        return self.second(self.other(self.first(self.one(x)).relu())).float()


@pytest.mark.parametrize("back", [False, True], ids=["b", "a"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat"])
def test_weights_that_are_exchanged_are_told_so_though_one_side_rounds_them(dtype: torch.dtype, back: bool):
    torch.manual_seed(0)
    a, b, x = Gained(), Gained(dtype), torch.randn(4, 8)
    with torch.no_grad():
        for norm in (a.first, a.second):
            norm.weight += 0.2 * torch.randn(8)
    b.load_state_dict(a.state_dict())
    assert ds.compare(*((b, a) if back else (a, b)), x).verdict in (Verdict.ROUNDING, Verdict.PRECISION)
    b.first.weight, b.second.weight = b.second.weight, b.first.weight
    finding = ds.compare(*((b, a) if back else (a, b)), x).first
    assert finding.code == "W010", finding
    assert "first.weight and second.weight hold each other's numbers" in finding.what
    with torch.no_grad():  # and with another number in one of them they are exchanged no more
        b.first.weight[3] += 0.25
    assert ds.compare(*((b, a) if back else (a, b)), x).first.code != "W010"
