"""A float64 run that is not finite where its program is says nothing of that element; empties have no bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.comparison.measuring.pieces import same_bits
from driftscope.explain import measured

G = torch.Generator().manual_seed(5)
X = torch.randn(4, 33, generator=G)


class Scaled(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * self.factor


def spoilt(monkeypatch, side: int, places: torch.Tensor) -> None:
    """Have the float64 run of one side give NaN in some places."""
    real = measured.measure

    def measure(results, evidence, leaf, pair):
        known = evidence.reconciled
        outputs = known.outputs_b if side else known.outputs_a
        value = outputs[0].value.clone()
        value[places] = torch.nan
        outputs[0].value = value
        known.drifts[0] = measured.lifted_drift(
            known.outputs_a[0].value, known.outputs_b[0].value, None, relative=1e-13, multiple=100.0
        )
        return real(results, evidence, leaf, pair)

    monkeypatch.setattr("driftscope.explain.judging.measure", measure)


@pytest.mark.parametrize("side", [0, 1])
def test_nan_of_a_float64_run_alone_is_no_other_function(monkeypatch, side):
    places = X > 1.5
    spoilt(monkeypatch, side, places)
    found = ds.compare(Scaled(0.7), lambda x: 0.7 * torch.tanh(x), [X])
    assert found.verdict <= ds.Verdict.ROUNDING, found.reason
    note = next(f for f in found.findings if f.code == "N012")
    assert note.note
    assert f"{int(places.sum())} elements are not finite in one float64 run alone" in note.what
    bug = ds.compare(Scaled(0.7), lambda x: 0.7001 * torch.tanh(x), [X], explain=False)
    assert bug.verdict is ds.Verdict.DIFFERENT


def test_nan_that_a_side_natively_has_is_heard():
    found = ds.compare(Scaled(0.7), lambda x: 0.7 * torch.tanh(x) + 0 * torch.log(x + 1.5), [X], explain=False)
    assert found.verdict is ds.Verdict.DIFFERENT
    assert "NaN in B only" in found.reason


def test_nothing_has_the_same_bits_whatever_its_strides():
    for dtype in (torch.float32, torch.float16, torch.int8):
        empty = torch.zeros(0, 33, dtype=dtype)
        assert same_bits(empty.diagonal(), empty.diagonal().clone())
    assert not same_bits(torch.zeros(0, 3), torch.zeros(0, 4))
    x = torch.zeros(0, 33)
    assert ds.compare(lambda t: t.diagonal(), lambda t: t.diagonal() * 1, [x]).verdict is ds.Verdict.IDENTICAL
