"""Probing leaves the model as it was, and says where the model changes itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.shapes.model_state import ModelState


class ShrinksItsWindow(nn.Module):
    """What shifted-window models do on small images: an attribute that never grows again."""

    def __init__(self):
        super().__init__()
        self.window = 4
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        if x.shape[1] <= self.window:
            self.window = x.shape[1]
        return x.view(x.shape[0], -1, self.window) * self.w


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen: list[tuple[int, ...]] = []
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.calls += 1
        self.seen.append(tuple(x.shape))
        self.mean.mul_(0.5).add_(x.mean(0) * 0.5)
        return x * 2


class KeepsAMask(nn.Module):
    def forward(self, x):
        self.mask = torch.ones(x.shape[1], x.shape[1]).tril()
        return x @ self.mask


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x)


def contents(model: nn.Module) -> str:
    held = {k: v for k, v in vars(model).items() if k not in ("_parameters", "_buffers", "_modules")}
    return repr((held, {k: v.tolist() for k, v in model.state_dict().items()}, model.training))


MODELS = [
    (ShrinksItsWindow, (2, 8), "window"),
    (Counts, (2, 3), "calls"),
    (KeepsAMask, (2, 3), "mask"),
    (lambda: nn.BatchNorm1d(3).train(), (4, 3), "running_mean"),
]


@pytest.mark.parametrize(("make", "shape", "changed"), MODELS, ids=["window", "counter", "mask", "statistics"])
@pytest.mark.sampled(1)
def test_the_model_is_as_it_was_and_the_change_is_told(make, shape, changed):
    torch.manual_seed(0)
    model, x = make(), torch.randn(*shape)
    before = contents(model)
    report = ds.check_shapes(model, (x,), targets=())
    assert contents(model) == before
    assert report.status(x) == "right"
    assert contents(model) == before
    ds.cover(model, (x,))
    assert contents(model) == before
    told = [f for f in report.findings if f.code == "S033"]
    assert len(told) == 1
    assert changed in told[0].evidence["changes"]


def test_a_model_that_changes_nothing_is_not_accused():
    report = ds.check_shapes(Plain(), (torch.randn(2, 3),), targets=())
    assert not [f for f in report.findings if f.code == "S033"]


def test_a_window_that_shrank_for_good_is_shown_to_spoil_the_next_call():
    report = ds.check_shapes(ShrinksItsWindow(), (torch.randn(2, 8),), targets=())
    (told,) = (f for f in report.findings if f.code == "S033")
    assert "window is 4 before" in told.what
    assert "then it gives its own example another answer" in told.what
    assert not told.note
    assert report.record.count("export", "right") > 20  # of 96: the guards are another matter


def test_what_a_function_holds_is_put_back():
    cache: dict[str, int] = {}
    inner = nn.BatchNorm1d(2).train()

    def f(x):
        cache[str(x.shape)] = 1
        return inner(x)

    before = copy.deepcopy(inner.state_dict())
    state = ModelState(f)
    with state.kept():
        f(torch.randn(4, 2))
    assert not cache
    assert all(torch.equal(inner.state_dict()[k], v) for k, v in before.items())
    assert "inner.running_mean" in state.changes


def test_a_write_that_torch_does_not_count_is_found_in_the_end():
    model = nn.Linear(100, 100)
    before = model.weight.detach().clone()
    state = ModelState(model)
    model.weight.data.zero_()
    state.put_back(thoroughly=True)
    assert torch.equal(model.weight, before)


def test_the_state_is_that_of_the_moment_of_asking():
    model, x = Plain(), torch.randn(2, 3)
    report = ds.check_shapes(model, (x,), targets=())
    with torch.no_grad():
        model.inner.weight.zero_()
    assert report.status(x) == "right"
    assert not model.inner.weight.any()
