"""The ways of broadcasting are enumerated by asking the model; one capture keeps some, and which is told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds
from shapes.small_models import CenterAlways, seeded


class Product(nn.Module):
    def forward(self, a, b):
        return a * b


class MatrixPlusRow(nn.Module):
    def forward(self, a, b):
        return torch.tanh(a + b)


def ones(report) -> set[tuple[bool, ...]]:
    return {one.ones for one in report.record.broadcasts}


def test_a_product_of_two_axes_has_four_configurations_and_an_export_keeps_two():
    report = ds.check_shapes(Product(), (seeded(3), seeded(3)), targets=())
    assert ones(report) == {(False, False), (True, False), (False, True), (True, True)}
    (finding,) = [f for f in report.findings if f.code == "S031"]
    assert finding.evidence == {"configurations": 4, "kept": 2}
    assert finding.verified
    by_ones = {one.ones: one.outcomes for one in report.record.broadcasts}
    assert by_ones[(True, False)][report.record.mode] == "lost"
    assert by_ones[(True, False)]["unguarded"] == "right"


@pytest.mark.slow
def test_every_subset_of_the_axes_of_two_matrices():
    report = ds.check_shapes(MatrixPlusRow(), (seeded(3, 4), seeded(3, 4)), targets=())
    assert len(ones(report)) == 16


def test_a_model_of_one_tensor_has_no_configurations():
    report = ds.check_shapes(CenterAlways(), (seeded(3, 4),), targets=())
    assert report.record.broadcasts == ()
    assert "S031" not in [f.code for f in report.findings]
