"""A folded batch norm is recognised in every format; the same fold with another epsilon is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from driftscope.lift.reconcile import matching
from driftscope.lift.reconcile.folds import match_folds
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.steps import Constant, Origin
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.finding import Where

FORMATS = (torch.float32, torch.float16, torch.bfloat16)


def normed_convolution(fmt: torch.dtype) -> nn.Sequential:
    torch.manual_seed(5)
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, eps=1e-3))
    with torch.no_grad():
        module[1].running_var.uniform_(0.5, 1.5)
        module[1].running_mean.normal_()
        module[1].weight.uniform_(0.5, 1.5)
        module[1].bias.normal_()
    return module.to(fmt).eval()


def folded(module: nn.Sequential, eps: float, multiply: bool) -> list[Constant]:
    conv, norm = module
    with torch.no_grad():
        if multiply:
            scale = norm.weight * torch.rsqrt(norm.running_var + eps)
        else:
            scale = norm.weight / torch.sqrt(norm.running_var + eps)
        weight = conv.weight * scale[:, None, None, None]
        bias = (conv.bias - norm.running_mean) * scale + norm.bias
    return [Constant(name, v, Origin.WEIGHT, Where()) for name, v in (("weight", weight), ("bias", bias))]


def matches(module: nn.Sequential, stored: list[Constant]) -> set[str]:
    lifted = lift_torch(module, (torch.randn(1, 3, 5, 5).to(stored[0].value.dtype),), {}, module=module)
    return {r.name for r in match_folds(stored, ReconciledSide(lifted, []), 2.0)}


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("multiply", [False, True], ids=["divided", "multiplied"])
def test_fold_is_recognised(fmt: torch.dtype, multiply: bool):
    module = normed_convolution(fmt)
    assert "weight" in matches(module, folded(module, 1e-3, multiply))


@pytest.mark.parametrize("fmt", FORMATS[:2], ids=str)
def test_fold_with_another_epsilon_is_not(fmt: torch.dtype):
    module = normed_convolution(fmt)
    stored = folded(module, 1e-5, multiply=False)
    assert not torch.equal(stored[0].value, folded(module, 1e-3, multiply=False)[0].value)
    assert matches(module, stored) == set()


def test_a_fold_stored_wider_than_it_was_computed_is_recognised():
    module = normed_convolution(torch.float16)
    weight, _ = folded(module, 1e-3, multiply=False)
    widened = Constant("weight", weight.value.float(), Origin.WEIGHT, Where())
    lifted = lift_torch(module, (torch.randn(1, 3, 5, 5).half(),), {}, module=module)
    assert [r.kind for r in match_folds([widened], ReconciledSide(lifted, []), 2.0)] == ["fold"]


def test_a_weight_that_nothing_rescales_is_no_fold():
    torch.manual_seed(6)
    layer = nn.Linear(8, 8).half()
    plain = lambda x: x @ layer.weight.T + layer.bias  # noqa: E731
    near = Constant("w", layer.weight.detach().bfloat16().half(), Origin.WEIGHT, Where())
    lifted = lift_torch(plain, (torch.randn(2, 8).half(),), {})
    assert match_folds([near], ReconciledSide(lifted, []), 2.0) == []


def clamped_fold(smallest: float) -> tuple[nn.Sequential, Constant]:
    """A fold that a converter rounded to float16, with a number too small for it as ``smallest``."""
    module = normed_convolution(torch.float32)
    with torch.no_grad():
        module[0].weight.view(-1)[7] = 3e-8
    weight, _ = folded(module, 1e-3, multiply=False)
    stored = weight.value.half()
    stored.view(-1)[7] = smallest
    return module, Constant("weight", stored, Origin.WEIGHT, Where())


@pytest.mark.parametrize(("smallest", "names"), [(1e-7, {"weight"}), (1e-4, set())])
def test_a_fold_that_a_converter_clamped_is_that_fold_and_no_other_number_is(smallest: float, names: set[str]):
    module, stored = clamped_fold(smallest)
    lifted = lift_torch(module, (torch.randn(1, 3, 5, 5),), {}, module=module)
    assert {r.name for r in match_folds([stored], ReconciledSide(lifted, []), 2.0)} == names


def test_most_layouts_of_a_large_fold_are_ruled_out_by_a_few_of_its_elements(monkeypatch: pytest.MonkeyPatch):
    module = normed_convolution(torch.float32)
    weight, _ = folded(module, 1e-3, multiply=False)
    turned = weight.value.transpose(2, 3).contiguous().half()
    looked = []
    whole = matching.stores
    monkeypatch.setattr(matching, "stores", lambda *given: looked.append(given) or whole(*given))
    lifted = lift_torch(module, (torch.randn(1, 3, 5, 5),), {}, module=module)
    stored = Constant("weight", turned, Origin.WEIGHT, Where())
    assert match_folds([stored], ReconciledSide(lifted, []), 2.0)
    assert len(looked) == 1
