"""compare(A, B) and compare(B, A) give one verdict and name one cause; a program against itself is IDENTICAL."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.records.verdict import FailOn, Verdict


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 16)).eval()


class Narrow(nn.Module):
    """Takes and returns float32 and computes in float16."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = copy.deepcopy(model).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.half()).float()


class HalfWeights(nn.Module):
    """Stores its weights in float16 and computes in float32."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.weight = nn.Parameter(model[0].weight.detach().half())
        self.rest = copy.deepcopy(model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.linear(x, self.weight.float(), self.rest[0].bias)
        return self.rest[1:](y)


class Chosen(nn.Module):
    """An index chosen from what a model computes."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).argmax(-1)


class Moved(nn.Module):
    """One logit moved by much more than rounding."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) + torch.nn.functional.one_hot(torch.tensor(3), 16) * 0.5


X = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("make", "verdict"), [(Narrow, Verdict.PRECISION), (HalfWeights, Verdict.PRECISION)])
def test_half_storage_has_one_verdict_and_the_side_that_rounds_is_named(make, verdict):
    model = _model()
    there, back = ds.compare(model, make(model), X), ds.compare(make(model), model, X)
    assert (there.verdict, back.verdict) == (verdict, verdict), (there.reason, back.reason)
    assert " in B" in there.reason
    assert " in A" in back.reason
    assert there.first.code == back.first.code


def test_a_tie_in_the_noise_of_either_side_is_rounding():
    model = _model()
    wide, narrow = Chosen(model), Chosen(Narrow(model))
    rows = torch.randn(20000, 32, generator=torch.Generator().manual_seed(2))
    assert not torch.equal(wide(rows), narrow(rows)), "the twin needs a tie"
    differing = rows[(wide(rows) != narrow(rows))][:8]
    for a, b in ((wide, narrow), (narrow, wide)):
        assert ds.compare(a, b, differing).verdict is Verdict.ROUNDING
    bug = Chosen(Moved(model))
    for a, b in ((wide, bug), (bug, wide)):
        assert ds.compare(a, b, X).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_program_against_itself_is_identical_with_no_lifted_drift(dtype):
    model = _model().to(dtype)
    found = ds.compare(model, model, X.to(dtype))
    assert found.verdict is Verdict.IDENTICAL
    assert [o.lifted for o in found.outputs] == [0.0]
    assert not found.functions_differ


def test_the_same_bits_from_another_function_are_said_first_and_can_fail():
    def guarded(v: torch.Tensor) -> torch.Tensor:
        return v / (v.abs().sum(-1, keepdim=True) + 1e-9)

    def plain(v: torch.Tensor) -> torch.Tensor:
        return v / v.abs().sum(-1, keepdim=True)

    found = ds.compare(guarded, plain, X + 5)
    assert found.verdict is Verdict.IDENTICAL
    assert "not the same function" in str(found).splitlines()[0]
    assert not FailOn.PRECISION.fails(found.verdict, functions_differ=found.functions_differ)
    assert FailOn.FUNCTION.fails(found.verdict, functions_differ=found.functions_differ)
    same = ds.compare(plain, plain, X + 5)
    assert not FailOn.FUNCTION.fails(same.verdict, functions_differ=same.functions_differ)


FUSED = torch.tensor(0.3**0.5 * 0.7 / 1.13)


def _fused_scale(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ x.T * FUSED)


def _split_scale(x: torch.Tensor, off: float = 0.0) -> torch.Tensor:
    return torch.tanh((x * 0.3**0.5) @ (x * (0.7 / 1.13 * (1.0 + off))).T)


@pytest.mark.parametrize("off", [0.0, 3e-7])
def test_a_product_of_numbers_that_one_side_stores_rounded_is_found_on_either_side(off):
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    split = functools.partial(_split_scale, off=off)
    verdicts = {
        ds.compare(*pair, (x,), explain=False).verdict for pair in ((_fused_scale, split), (split, _fused_scale))
    }
    assert verdicts <= ({Verdict.DIFFERENT} if off else {Verdict.IDENTICAL, Verdict.ROUNDING})


def _centred(x: torch.Tensor) -> torch.Tensor:
    """A layer norm whose mean is taken away by a matrix, stored in the input's format."""
    centre = (torch.eye(24, dtype=torch.float64) - 1 / 24).to(x.dtype)
    y = x @ centre
    return y / (y.square().sum(-1, keepdim=True) / 24 + 1e-5).sqrt()


@pytest.mark.parametrize("shift", [0.0, 300.0])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.sampled(6)
def test_a_rounded_matrix_is_named_on_its_side_also_where_nothing_is_left(dtype, equal, shift):
    """Of rows of equal elements float64's own rounding is left, on one side alone."""
    g = torch.Generator().manual_seed(0)
    x = (torch.randn(5, 1 if equal else 24, generator=g, dtype=torch.float64).expand(5, 24) + shift).to(dtype)
    pair = (lambda v: torch.nn.functional.layer_norm(v, (24,))), _centred
    there, back = ds.compare(*pair, x), ds.compare(*pair[::-1], x)
    assert there.verdict is back.verdict, (there.reason, back.reason)
    assert there.verdict in (Verdict.ROUNDING, Verdict.PRECISION)
    assert ("rounded in B" in there.reason) == ("rounded in A" in back.reason)
