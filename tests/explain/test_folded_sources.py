"""A folded tensor read backwards: which of the other program's numbers it was not made of, whichever side folds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

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
    assert f"with {one:g} it gives A's values" in finding.why
