"""Filters that a program standardises in every call, and an optimiser stores: computed natively, and in blocks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from test_contrib_nchwc import blocked_operators, optimised
from torch import nn
from torch.nn import functional as F

import driftscope as ds
from driftscope.lift.onnx.contrib.nchwc import blocked_filter
from driftscope.lift.reconcile import certify, subgraphs
from driftscope.lift.steps import Constant, Origin
from driftscope.records.finding import Where

X = torch.randn(2, 16, 9, 9, generator=torch.Generator().manual_seed(3))


class Standardised(nn.Module):
    """Two convolutions whose filters have mean 0 and variance 1: their norms are all the same."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = (nn.Parameter(torch.randn(16, 16, 3, 3)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in (self.first, self.second):
            spread, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, correction=0)
            x = F.conv2d(x, (weight - mean) * torch.rsqrt(spread + 1e-6), padding=1).relu()
        return x


def stored(tmp_path, changed: bool) -> onnx.ModelProto:
    path = tmp_path / "standardised.onnx"
    torch.onnx.export(Standardised().eval(), (X,), path, dynamo=True, verbose=False, external_data=False)
    model = optimised(onnx.load(path), tmp_path)
    if changed:
        node = next(n for n in model.graph.node if n.op_type == "Conv")
        weight = next(t for t in model.graph.initializer if t.name == node.input[1])
        values = numpy_helper.to_array(weight).copy()
        values.reshape(-1)[5] *= 1.0 + 1e-4
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    return model


@pytest.mark.sampled(2)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_stored_filters_are_those_that_are_standardised_in_every_call(changed, turned, tmp_path):
    model = stored(tmp_path, changed)
    pair = (Standardised().eval(), model)
    found = ds.compare(*(pair[::-1] if turned else pair), [X])
    assert (found.verdict is ds.Verdict.DIFFERENT) is changed, (found.reason, blocked_operators(model))


class Residual(Standardised):
    """The same with a share of 0.2 in the sum: residual networks without normalisation have one, optimisers fold it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = self.second - self.second.mean((1, 2, 3), keepdim=True)
        return x + 0.2 * F.conv2d(super().forward(x), last, padding=1)


@pytest.mark.parametrize("factor", [0.2, 0.3])
def test_a_number_of_the_program_is_not_taken_for_one_that_a_kernel_writes_by_itself(factor, tmp_path, monkeypatch):
    path = tmp_path / "residual.onnx"
    torch.onnx.export(Residual().eval(), (X,), path, dynamo=True, verbose=False, external_data=False)
    model = onnx.load(path)
    share = next(t for t in model.graph.initializer if np.array_equal(numpy_helper.to_array(t), np.float32(0.2)))
    share.CopyFrom(numpy_helper.from_array(np.float32(factor), share.name))
    solved, solve = [], certify.solve_scalars
    monkeypatch.setattr(certify, "solve_scalars", lambda *a, **k: solved.append(found := solve(*a, **k)) or found)
    found = ds.compare(model, optimised(model, tmp_path), [X])
    # Half an ulp of the share would be left, and have to be solved for.
    assert found.verdict in (ds.Verdict.ROUNDING, ds.Verdict.IDENTICAL), found.reason
    assert not any(solved)


@pytest.mark.parametrize("moved", [0.0, 1e-4])
def test_a_blocked_filter_is_matched_with_the_table_that_it_is(moved):
    generator = torch.Generator().manual_seed(0)
    exact = {f"w{k}": torch.randn(16, 16, 3, 3, generator=generator, dtype=torch.float64) for k in range(3)}
    exact = {name: value / value.norm() for name, value in exact.items()}  # told apart by their elements alone
    noisy = {name: value + 2.0**-26 for name, value in exact.items()}
    native = blocked_filter(exact["w1"].float(), 16, True)
    native.view(-1)[5] += moved
    held = Constant("reorder", native, Origin.WEIGHT, Where(), True)
    found = subgraphs.stored_repairs([held], subgraphs.Subgraphs(exact, exact, [noisy]), limit=2.5)
    assert [r.sources for r in found] == ([] if moved else [("w1",)])
    assert moved or torch.equal(found[0].value, blocked_filter(exact["w1"], 16, True))
