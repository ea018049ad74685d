"""Weights that are cast to half precision where they are used: the cast is rounding, another weight is not.

Natively a change of a thousandth may vanish in the cast; the stored weight is another one all the same.
"""

from __future__ import annotations

import copy

import pytest
import torch
from onnx import numpy_helper, parser
from tests.zoo.tools import Autocast
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

import driftscope as ds
from driftscope.records.verdict import Verdict

HALF = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
X = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8)).eval()


class Cast(nn.Module):
    """The same layers, their weights and inputs cast by hand."""

    def __init__(self, layers: nn.Module, half: torch.dtype):
        super().__init__()
        self.layers, self.half = layers, half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            held = [p.to(self.half) for p in layer.parameters()]
            x = functional.linear(x.to(self.half), *held).float() if held else layer(x)
        return x


def scaled_row(weight: torch.Tensor) -> None:
    weight[2] *= 1.001


def flipped(bit: int):
    def change(weight: torch.Tensor) -> None:
        number = weight.view(-1)[3:4]
        number.copy_((number.view(torch.int32) ^ (1 << bit)).view(torch.float32))

    return change


def verdicts(a, b, inputs):
    return [ds.compare(*pair, inputs) for pair in ((a, b), (b, a))]


@HALF
@pytest.mark.parametrize("program", [Cast, Autocast])
def test_the_same_weights_cast_are_the_same_function(program, half):
    for found in verdicts(layers(), program(layers(), half), (X,)):
        assert found.verdict in (Verdict.ROUNDING, Verdict.PRECISION), found.reason


@HALF
@pytest.mark.parametrize("program", [Cast, Autocast])
@pytest.mark.parametrize("change", [scaled_row, flipped(15), flipped(10), flipped(3)])
def test_another_weight_cast_is_another_function_and_is_named(program, half, change):
    broken = copy.deepcopy(layers())
    with torch.no_grad():
        change(broken[2].weight)
    for found in verdicts(layers(), program(broken, half), (X,)):
        assert found.verdict is Verdict.DIFFERENT, found.reason
        assert "2.weight" in found.findings[0].what


@HALF
def test_both_under_autocast_share_their_weights_or_not(half):
    broken = copy.deepcopy(layers())
    with torch.no_grad():
        scaled_row(broken[2].weight)
    one = Autocast(layers(), half)
    assert ds.compare(one, Autocast(layers(), half), (X,)).verdict is Verdict.IDENTICAL
    for found in verdicts(one, Autocast(broken, half), (X,)):
        assert found.verdict is Verdict.DIFFERENT, found.reason


class Computed(nn.Module):
    """A table that is computed in half precision, and used in single."""

    def __init__(self, half: torch.dtype):
        super().__init__()
        self.half = half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.cos(torch.arange(16).to(self.half) / 16 * 3).float()


class Held(nn.Module):
    def __init__(self, table: torch.Tensor):
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table


TABLE = torch.cos(torch.arange(16) / 16 * 3)


@HALF
def test_a_table_computed_in_half_precision_is_the_one_stored_in_single_or_in_half(half):
    natively = torch.cos(torch.arange(16).to(half) / 16 * 3).float()
    for table in (TABLE, natively):
        for found in verdicts(Held(table), Computed(half), (X,)):
            assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING, Verdict.PRECISION), found.reason


@HALF
@pytest.mark.parametrize("factor", [1.002, 1 + 2e-5])
def test_another_table_with_digits_of_single_precision_is_none_that_half_precision_computes(half, factor):
    for found in verdicts(Held(TABLE * factor), Computed(half), (X,)):
        assert found.verdict is Verdict.DIFFERENT, found.reason


class Normed(nn.Module):
    """A convolution and a linear layer, each with a batch norm; ``fused`` holds them folded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.conv, self.norm, self.linear, self.last = (
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 6), nn.BatchNorm1d(6),
        )  # fmt: skip
        for norm in (self.norm, self.last):
            for tensor in (norm.running_mean, norm.bias.data):
                tensor.normal_()
            for tensor in (norm.running_var, norm.weight.data):
                tensor.uniform_(0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.linear(self.norm(self.conv(x)).tanh().mean((2, 3))))

    def fused(self) -> Normed:
        other = copy.deepcopy(self)
        other.conv, other.norm = fuse_conv_bn_eval(other.conv, other.norm), nn.Identity()
        other.linear, other.last = fuse_linear_bn_eval(other.linear, other.last), nn.Identity()
        return other


IMAGE = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(3))


@HALF
@pytest.mark.parametrize("casts_too", [False, True])
def test_what_was_folded_before_it_is_cast_is_judged_as_it_was_folded(half, casts_too):
    plain = Normed().eval()
    one = Autocast(plain, half) if casts_too else plain
    for found in verdicts(one, Autocast(plain.fused(), half), (IMAGE,)):
        assert found.verdict in (Verdict.ROUNDING, Verdict.PRECISION), found.reason
    for factor in (1.005, 1.0001, 1 + 1e-5):
        broken = plain.fused()
        with torch.no_grad():
            broken.conv.weight[2] *= factor
        for found in verdicts(one, Autocast(broken, half), (IMAGE,)):
            assert found.verdict is Verdict.DIFFERENT, found.reason


@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1.001, False), (1 + 1e-5, False)])
def test_a_file_that_casts_its_weights_is_told_the_same_way(factor, same):
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[5,16] x) => (float[5,24] y)'
        " { h = Cast<to=10>(x) v = Cast<to=10>(w) c = Cast<to=10>(b) p = MatMul(h, v) s = Add(p, c) y = Cast<to=1>(s) }"
    )
    layer = layers()[0]
    weight = layer.weight.detach().clone()
    weight[2] *= factor
    for name, tensor in (("w", weight.T.contiguous()), ("b", layer.bias.detach())):
        model.graph.initializer.append(numpy_helper.from_array(tensor.numpy(), name))
    for found in verdicts(layer, model, (X,)):
        allowed = (Verdict.ROUNDING, Verdict.PRECISION) if same else (Verdict.DIFFERENT,)
        assert found.verdict in allowed, found.reason
