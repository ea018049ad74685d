"""Affine pieces, folded by whoever folds them, are the same function; with a planted error they are not."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import driftscope as ds
from driftscope.lift.reconcile.maps import moved_axes, result_axis
from driftscope.lift.steps import Kind, Rounding, Step
from driftscope.records.finding import Where
from driftscope.records.verdict import Verdict

HONEST = (Verdict.IDENTICAL, Verdict.ROUNDING)


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _trained(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.weight.copy_(0.5 + _draw(norm.weight.numel(), seed=1).abs())
        norm.bias.copy_(_draw(norm.bias.numel(), seed=2))
        if hasattr(norm, "running_mean"):
            norm.running_mean.copy_(_draw(norm.weight.numel(), seed=3))
            norm.running_var.copy_(0.5 + _draw(norm.weight.numel(), seed=4).abs())
    return norm


class Layers(nn.Sequential):
    """A chain; its tail is a nonlinearity, so that a wrong factor is no factor of the result."""

    def __init__(self, *layers: nn.Module):
        super().__init__(*layers, nn.Tanh())
        self.eval()


def _scale_shift(norm: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return scale.detach(), (norm.bias - norm.running_mean * scale).detach()


def linear_and_norm() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """Linear + BatchNorm1d into one Linear."""
    torch.manual_seed(0)
    one, norm = nn.Linear(16, 24), _trained(nn.BatchNorm1d(24))
    scale, shift = _scale_shift(norm)
    two = copy.deepcopy(one)
    two.weight.data = one.weight.data * scale[:, None]
    two.bias.data = one.bias.data * scale + shift
    return Layers(one, norm), Layers(two), _draw(8, 16, seed=9)


def norm_alone() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """A lone BatchNorm as a depthwise convolution."""
    norm = _trained(nn.BatchNorm2d(8))
    scale, shift = _scale_shift(norm)
    conv = nn.Conv2d(8, 8, 1, groups=8)
    conv.weight.data, conv.bias.data = scale[:, None, None, None].clone(), shift.clone()
    return Layers(norm), Layers(conv), _draw(2, 8, 5, 5, seed=9)


def norm_before_convolution() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """A BatchNorm into the convolution behind it, without padding."""
    torch.manual_seed(0)
    norm, one = _trained(nn.BatchNorm2d(8)), nn.Conv2d(8, 6, 3)
    scale, shift = _scale_shift(norm)
    two = copy.deepcopy(one)
    two.weight.data = one.weight.data * scale[None, :, None, None]
    two.bias.data = one.bias.data + (one.weight.data * shift[None, :, None, None]).sum((1, 2, 3))
    return Layers(norm, one), Layers(two), _draw(2, 8, 7, 7, seed=9)


def transposed_and_norm() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """ConvTranspose + BatchNorm."""
    torch.manual_seed(0)
    one, norm = nn.ConvTranspose2d(5, 6, 3), _trained(nn.BatchNorm2d(6))
    scale, shift = _scale_shift(norm)
    two = copy.deepcopy(one)
    two.weight.data = one.weight.data * scale[None, :, None, None]
    two.bias.data = one.bias.data * scale + shift
    return Layers(one, norm), Layers(two), _draw(2, 5, 6, 6, seed=9)


class Normed(nn.Module):
    """A layer norm and a linear layer behind it."""

    def __init__(self, norm: nn.LayerNorm, linear: nn.Linear, folded: bool):
        super().__init__()
        self.norm, self.linear, self.folded = norm, linear, folded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.layer_norm(x, (16,)) if self.folded else self.norm(x)
        return torch.tanh(self.linear(y))


def norm_into_linear() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """The weight and bias of a layer norm into the linear layer behind it."""
    torch.manual_seed(0)
    norm, one = _trained(nn.LayerNorm(16)), nn.Linear(16, 24)
    two = copy.deepcopy(one)
    two.weight.data = one.weight.data * norm.weight.data
    two.bias.data = one.bias.data + one.weight.data @ norm.bias.data
    return Normed(norm, one, False).eval(), Normed(norm, two, True).eval(), _draw(8, 16, seed=9)


class Tuned(nn.Module):
    """A linear layer with a low-rank update beside it."""

    def __init__(self, linear: nn.Linear, down: nn.Linear, up: nn.Linear):
        super().__init__()
        self.linear, self.down, self.up = linear, down, up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) + self.up(self.down(x)) * 0.5)


def low_rank_update() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """W + BA merged into one weight."""
    torch.manual_seed(0)
    linear, down, up = nn.Linear(16, 24), nn.Linear(16, 3, bias=False), nn.Linear(3, 24, bias=False)
    merged = copy.deepcopy(linear)
    merged.weight.data = linear.weight.data + up.weight.data @ down.weight.data * 0.5
    return Tuned(linear, down, up).eval(), Layers(merged), _draw(8, 16, seed=9)


def _chain(size: int, between: type[nn.Module]) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    pairs = [(nn.Linear(size, size), _trained(nn.BatchNorm1d(size))) for _ in range(3)]
    folded = []
    for linear, norm in pairs:
        scale, shift = _scale_shift(norm)
        one = copy.deepcopy(linear)
        one.weight.data = linear.weight.data * scale[:, None]
        one.bias.data = linear.bias.data * scale + shift
        folded.append(one)
    two = Layers(*(m for one in folded for m in (one, between())))
    return Layers(*(m for pair in pairs for m in (*pair, between()))), two, _draw(8, size, seed=9)


def square_layers() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """Square linear layers with biases, each with its norm, and a function between that keeps some numbers."""
    return _chain(12, nn.ReLU)


def square_layers_in_a_row() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """The same with nothing between: the whole chain is one map, and every part of it is folded alone."""
    return _chain(12, nn.Identity)


CASES = [
    linear_and_norm, norm_alone, norm_before_convolution, transposed_and_norm, norm_into_linear, low_rank_update,
    square_layers, square_layers_in_a_row,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
@pytest.mark.sampled(4)
def test_a_fold_is_the_same_function_either_way(case):
    one, two, x = case()
    for a, b in ((one, two), (two, one)):
        found = ds.compare(a, b, x, explain=False)
        assert found.verdict in HONEST, found.reason
        assert any(f.code == "W002" for f in found.findings)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
@pytest.mark.sampled(2)
def test_a_fold_with_one_element_off_by_a_few_ulps_is_not(case):
    one, two, x = case()
    weight = next(p for p in two.parameters() if p.ndim >= 2)
    with torch.no_grad():
        weight.view(-1)[3] *= 1 + 2e-5
    for a, b in ((one, two), (two, one)):
        assert ds.compare(a, b, x, explain=False).verdict is Verdict.DIFFERENT


SQUARE = [square_layers, square_layers_in_a_row]


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("case", SQUARE, ids=lambda c: c.__name__)
@pytest.mark.sampled(2)
def test_a_square_fold_is_told_from_its_transpose(case, rows):
    one, two, x = case()
    x = x[:rows]
    assert ds.compare(one, two, x, explain=False).verdict in HONEST
    with torch.no_grad():
        two[2].weight.copy_(two[2].weight.T.clone())
    for a, b in ((one, two), (two, one)):
        assert ds.compare(a, b, x, explain=False).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("few", [True, False], ids=["any column", "the last columns"])
@pytest.mark.parametrize("turned", [True, False])
def test_the_axis_of_the_result_is_told_where_a_few_columns_do_not_tell_it(turned, few):
    weight, rows = _draw(80, 80).double(), _draw(5, 80, seed=1).double()
    if not few:
        weight[:70] = weight.T[:70].clone()
        weight[:70, :70] = weight[:70, :70] + weight[:70, :70].T
    made = rows @ (weight if turned else weight.T)
    step = Step(0, "n", "MatMul", Where(), ["x", "w"], ["y"], [rows, weight], [made], [None], Rounding(Kind.DOT), {})
    assert result_axis(step, weight, rows) == int(turned)


@pytest.mark.parametrize("case", SQUARE, ids=lambda c: c.__name__)
def test_a_scaled_row_of_a_square_fold_is_found(case):
    one, two, x = case()
    with torch.no_grad():
        two[2].weight[5] *= 1 + 1e-5
    for a, b in ((one, two), (two, one)):
        assert ds.compare(a, b, x, explain=False).verdict is Verdict.DIFFERENT


def test_no_repair_touches_a_square_weight_with_equal_bits():
    torch.manual_seed(0)
    one = Layers(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12))
    two = copy.deepcopy(one)
    with torch.no_grad():
        two[2].bias[0] += 1e-3
    found = ds.compare(one, two, _draw(8, 12, seed=9), explain=False)
    assert found.verdict is Verdict.DIFFERENT
    assert not [f for f in found.findings if f.code.startswith("W")]


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_axes_are_followed_through_moves_alone(axes):
    one = _draw(3, 4, 5)
    moved = moved_axes(one, one.permute(axes), permutes=True)
    assert moved == {axis: axes.index(axis) for axis in range(3)}
    assert moved_axes(one, one.relu(), permutes=False) is None
    assert moved_axes(one, one.neg(), permutes=True) is None
    assert moved_axes(one, one.reshape(12, 5), permutes=False) == {0: None, 1: None, 2: 1}


class Scaled(nn.Module):
    """A projection that is scaled, beside the inverse of that scale: a fold of it is not undone to be an original."""

    def __init__(self, folded: bool, factor: float = 1.0):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.folded = nn.Linear(8, 8), folded
        with torch.no_grad():
            for value in self.linear.parameters():
                value.mul_(8**-0.5 * factor if folded else 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 8**0.5 + self.linear(x) * (1.0 if self.folded else 8**-0.5)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1 + 1e-5, False)])
def test_a_fold_and_what_it_was_folded_from_do_not_change_places(turned, factor, same):
    pair = (Scaled(folded=False), Scaled(folded=True, factor=factor))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    found = ds.compare(*(pair[::-1] if turned else pair), x, explain=False)
    assert (found.verdict is not ds.Verdict.DIFFERENT) is same, found.reason


@pytest.mark.parametrize("turned", [False, True])
def test_a_tensor_that_both_store_is_not_one_times_almost_one(turned):
    token, x, weight = (_draw(1, n, 8, seed=n) for n in (1, 3, 8))

    def divided(given):
        both = torch.cat((token.expand(2, 1, 8), (given @ weight * 0.3).expand(2, 3, 8)), 1)
        return both / torch.linalg.vector_norm(given).clamp_min(1e-12)

    nodes = [
        helper.make_node("Expand", ["token", "one"], ["tokens"]),  # by constants alone
        helper.make_node("MatMul", ["x", "folded"], ["product"]),
        helper.make_node("Expand", ["product", "three"], ["given"]),
        helper.make_node("Concat", ["tokens", "given"], ["both"], axis=1),
        helper.make_node("ReduceL2", ["x"], ["norm"], keepdims=0),
        helper.make_node("Clip", ["norm", "least"], ["clipped"]),
        helper.make_node("Div", ["both", "clipped"], ["out"]),
    ]
    stored = {"token": token.numpy(), "one": np.array([2, 1, 8]), "three": np.array([2, 3, 8]),
              "least": np.array(1e-12, np.float32), "folded": (weight.double() * 0.3).float().numpy()}  # fmt: skip
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", [1, 3, 8]), ("out", [2, 4, 8]))]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(v, n) for n, v in stored.items()])
    pair = divided, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    found = ds.compare(*(pair[::-1] if turned else pair), [x], explain=False)
    assert found.verdict <= ds.Verdict.ROUNDING, found.reason
    assert "not the same function" not in found.reason
