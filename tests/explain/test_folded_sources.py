"""A folded tensor read backwards: which of the other program's numbers it was not made of, whichever side folds."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import numpy_helper, parser
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import driftscope as ds
from driftscope.records.verdict import Verdict

IMAGE = (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)),)


def _net(edit: Callable[[nn.Sequential], object] = lambda net: None) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8),
        nn.Flatten(), nn.Linear(128, 128), nn.BatchNorm1d(128),
    )  # fmt: skip
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d):
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 1.5)
                m.weight.add_(0.1 * torch.randn(m.weight.shape))
                m.bias.add_(0.1 * torch.randn(m.bias.shape))
        edit(net)
    return net.eval()


def _exchange(one: torch.Tensor, other: torch.Tensor) -> None:
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folds") / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(_net(), IMAGE, path, dynamo=True, verbose=False)
    return path


BUGS = [
    # what is done to the module, its tensor, words of what was done
    (lambda net: net[1].weight.zero_(), "1.weight", "set to zero"),
    (lambda net: net[1].bias.zero_(), "1.bias", "set to zero"),
    (lambda net: net[3].weight.copy_(net[3].weight.flip(0)), "3.weight", "reversed"),
    (lambda net: net[0].weight[2].mul_(1.01), "0.weight", "in index 2 of axis 0"),
    (lambda net: net[6].weight.copy_(net[6].weight.T.clone()), "6.weight", "transposed"),
    (lambda net: setattr(net[4], "eps", 1e-3), "eps", ""),
    (lambda net: _exchange(net[1].weight, net[1].bias), "1.weight", ""),
]
NAMES = ["norm", "shift", "depthwise rows", "scaled row", "transposed", "epsilon", "exchanged"]


@pytest.mark.parametrize(("edit", "tensor", "words"), BUGS, ids=NAMES)
@pytest.mark.sampled(3)
def test_the_numbers_that_a_fold_was_not_made_of_are_named(
    edit: Callable[[nn.Sequential], object], tensor: str, words: str, file: Path
):
    found = ds.compare(file, _net(edit), IMAGE)
    assert found.verdict is Verdict.DIFFERENT
    first = found.first
    assert first is not None
    assert first.verified is True
    assert tensor in first.what
    assert words in first.what
    assert "was folded from" in first.what


def test_a_fold_of_the_same_numbers_is_no_finding(file: Path):
    for a, b in ((file, _net()), (_net(), file)):
        assert ds.compare(a, b, IMAGE).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)


@pytest.mark.parametrize(("edit", "tensor"), [(BUGS[0][0], "1.weight"), (BUGS[6][0], "1.bias")], ids=["norm", "both"])
def test_the_same_tensor_is_named_where_b_folds(edit: Callable[[nn.Sequential], object], tensor: str, file: Path):
    first = ds.compare(_net(edit), file, IMAGE).first
    assert first is not None
    assert (first.code, first.verified) == ("W011", True)
    assert "is folded from another" in first.what
    assert tensor in first.what


def test_a_difference_that_is_not_the_fold_s_names_no_number(file: Path):
    broken = _net(lambda net: net.__setitem__(2, nn.Hardtanh(0.0, 0.5)))
    for a, b in ((file, broken), (broken, file)):
        found = ds.compare(a, b, IMAGE)
        assert found.verdict is Verdict.DIFFERENT
        assert "folded from" not in " ".join(f.what for f in found.findings)


def _before_an_activation(transposed: bool) -> nn.Sequential:
    torch.manual_seed(0)
    conv = nn.ConvTranspose2d(4, 8, 3, 2, 1) if transposed else nn.Conv2d(4, 8, 3, padding=1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), conv, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)).eval()
    with torch.no_grad():
        net[3].running_mean.normal_()
        net[3].running_var.uniform_(0.5, 1.5)
    return net


def _folded_by_hand(net: nn.Sequential, eps: float | None, *, drop: bool = False) -> nn.Sequential:
    made = copy.deepcopy(net)
    if not drop:
        made[3].eps = made[3].eps if eps is None else eps
        made[2] = fuse_conv_bn_eval(made[2], made[3], transpose=isinstance(made[2], nn.ConvTranspose2d))
    made[3] = nn.Identity()
    return made


@pytest.mark.parametrize("back", [False, True], ids=["b folds", "a folds"])
@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "transposed"])
def test_another_epsilon_in_a_fold_is_one_finding(transposed: bool, back: bool):
    net = _before_an_activation(transposed)
    pair = (net, _folded_by_hand(net, 1e-2))
    (finding,) = [f for f in ds.compare(*(pair[::-1] if back else pair), IMAGE).findings if not f.note]
    assert finding.verified is True
    assert "native_batch_norm.eps" in finding.what
    assert ("1e-05 where A has 0.01" if back else "0.01 where A has 1e-05") in finding.what


def _fresh_mean(net: nn.Sequential) -> None:
    net[3].running_mean.zero_()


def _fresh_variance(net: nn.Sequential) -> None:
    net[3].running_var.fill_(1.0)


@pytest.mark.parametrize(("fresh", "tensor"), [(_fresh_mean, "3.running_mean"), (_fresh_variance, "3.running_var")])
def test_statistics_that_only_one_side_has_are_named_whichever_side_folds(fresh, tensor):
    stale, trained = (_before_an_activation(False) for _ in range(2))
    for net in (stale, trained):
        net[3].running_var.copy_(torch.linspace(0.02, 6.0, len(net[3].running_var)))
    assert ds.compare(_folded_by_hand(trained, 1e-5), trained, IMAGE).verdict == Verdict.ROUNDING
    fresh(stale)
    for a, b in ((_folded_by_hand(stale, 1e-5), trained), (_folded_by_hand(trained, 1e-5), stale)):
        said = ds.compare(a, b, IMAGE).first.what
        assert tensor in said
        assert "eps" not in said  # which both sides have


@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "transposed"])
def test_a_batch_norm_that_was_left_out_is_no_fold(transposed: bool):
    net = _before_an_activation(transposed)
    dropped, folded = _folded_by_hand(net, None, drop=True), _folded_by_hand(net, None)
    for a, b, fix in ((net, dropped, "Compute native_batch_norm"), (dropped, net, "Remove native_batch_norm")):
        (finding,) = [f for f in ds.compare(a, b, IMAGE).findings if not f.note]
        assert finding.fix.startswith(fix)
        assert finding.verified is True
    for a, b in ((net, folded), (folded, net)):
        assert ds.compare(a, b, IMAGE).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)


class ScaledNorm(nn.Module):
    """A factor beside a normalisation: it could as well be in the weight."""

    def __init__(self, factor: float):
        super().__init__()
        self.norm, self.linear, self.factor = nn.LayerNorm(8), nn.Linear(8, 8), factor
        self.norm.weight.data = torch.linspace(0.5, 1.5, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x) * self.factor)


@pytest.mark.parametrize(("one", "other"), [(1.0, 1.001), (1.001, 1.0)])
def test_a_number_that_both_programs_write_is_told_before_a_weight_that_nobody_changed(one, other):
    a, b = ScaledNorm(one), ScaledNorm(other)
    b.load_state_dict(a.state_dict())
    (finding,) = [f for f in ds.compare(a, b, torch.randn(4, 8)).findings if not f.note]
    assert (finding.code, finding.where.operator, finding.verified) == ("N001", "aten.mul", True)
    assert f"other is {other:g} here and {one:g} in A" in finding.why


def graph(body, **stored):
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g (float[2,3,7,6] x) => (float[a,b,c,d] y) {{ {body} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    return model


def norm_and_fold(epsilon, variance=1.0):
    """A convolution and a batch norm in a file, and a file that stores them folded with other numbers."""
    draw = np.random.default_rng(0).standard_normal
    w, b, s, t, m, v = (draw(shape).astype(np.float32) for shape in ((4, 3, 3, 3), *[4] * 5))
    v = np.abs(v) + np.float32(0.5)
    apart = graph("c = Conv(x, w, b) y = BatchNormalization<epsilon=1e-5>(c, s, t, m, v)", w=w, b=b, s=s, t=t, m=m, v=v)
    other = v.astype(np.float64)
    other[2] *= variance
    k = s / np.sqrt(other + epsilon)
    folded = (w * k[:, None, None, None]).astype(np.float32), ((b - m) * k + t).astype(np.float32)
    return apart, graph("y = Conv(x, w, b)", w=folded[0], b=folded[1]), {"x": draw((2, 3, 7, 6)).astype(np.float32)}


@pytest.mark.parametrize("turned", [False, True])
def test_a_fold_with_another_epsilon_names_the_attribute_of_the_norm(turned):
    *pair, x = norm_and_fold(1e-3)
    first = ds.compare(*(pair[::-1] if turned else pair), x).first
    assert "BatchNormalization_1.epsilon" in first.what
    assert "0.001" in first.what
    assert first.verified


def test_a_fold_with_another_variance_is_no_other_epsilon():
    one, other, x = norm_and_fold(1e-5, 1.01)
    first = ds.compare(one, other, x).first
    assert first.code == "W011"
    assert "epsilon" not in first.what


@pytest.mark.parametrize("rolled", [0, 1])
def test_positions_that_a_file_expands_over_the_batch_are_looked_up_where_they_are_looked_up(rolled):
    """The rows were A's in another order, and so "stored exactly"; the addition behind them was blamed."""
    rows = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    body = "e = Gather(t, p) w = Expand(e, s) h = Add(x, w) y = Tanh(h)"
    other = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g (float[2,9,6] x) => (float[a,b,c] y) {{ {body} }}'
    )
    held = {"t": rows.numpy(), "p": np.roll(np.arange(9), rolled)[None], "s": np.array([2, 9, 6])}
    other.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in held.items())
    c = ds.compare(lambda x: (x + rows[torch.arange(9)][None]).tanh(), other, (torch.randn(2, 9, 6),))
    if not rolled:
        assert c.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)
        assert not c.findings
        return
    assert c.first.code == "W011"
    assert "looks up 8, 0, 1, 2, ... here, and 0, 1, 2, 3, ... in A" in c.first.what


def test_a_changed_weight_is_told_before_folds_that_differ_in_their_last_digits(file: Path):
    def folded(row: float) -> nn.Sequential:
        net = _net(lambda net: net[3].weight[2].mul_(row))
        for k in (0, 3):
            net[k] = fuse_conv_bn_eval(net[k], net[k + 1])
            net[k + 1] = nn.Identity()
        return net

    (digits, *_), (first, *_) = (ds.compare(folded(row), file, IMAGE).findings for row in (1.0, 1.01))
    assert "3.weight" not in digits.what  # what is folded otherwise comes first in the program
    assert "3.weight" in first.what


class Branches(nn.Module):
    """Three convolutions with a batch norm each, added: folded, one convolution."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolutions = nn.ModuleList(nn.Conv2d(3, 4, 3, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        return torch.relu(sum(norm(part(x)) for part, norm in zip(self.convolutions, self.norms, strict=True)))

    def folded(self):
        parts = [fuse_conv_bn_eval(part, norm) for part, norm in zip(self.convolutions, self.norms, strict=True)]
        one = parts[0]
        with torch.no_grad():
            one.weight.copy_(sum(part.weight for part in parts))
            one.bias.copy_(sum(part.bias for part in parts))
        return nn.Sequential(one, nn.ReLU())


def test_the_epsilon_of_the_last_of_three_branches_is_named():
    right, wrong = Branches().eval(), Branches().eval()
    wrong.norms[2].eps = 1e-3
    assert ds.compare(right, right.folded(), IMAGE).verdict == Verdict.ROUNDING
    first = ds.compare(right, wrong.folded(), IMAGE).first
    assert "native_batch_norm_2.eps" in first.what
    assert "it is 0.001 where A has 1e-05" in first.what


@pytest.mark.parametrize("lost", [False, True])
def test_a_folded_bias_of_zeros_is_not_the_shift_of_zeros_that_the_norm_has(lost):
    net = _net(lambda net: [net[k].bias.zero_() for k in (1, 4)])
    folded = copy.deepcopy(net)
    folded[0], folded[1] = fuse_conv_bn_eval(folded[0], folded[1]), nn.Identity()
    if lost:
        folded[0].bias.data.zero_()
    c = ds.compare(net, folded, IMAGE)
    if not lost:
        assert c.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)
        return
    assert c.first.code == "W011"
    assert "0.bias is folded from another 1.bias (or 1.running_mean)" in c.first.what
