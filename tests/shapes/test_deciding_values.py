"""Values and shapes are told apart: a mask that makes a file wrong is named, and sizes that do are not blamed on it."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds
from driftscope.shapes.check import Effort
from driftscope.shapes.findings.deciding_values import _hides_nothing
from driftscope.shapes.probe.exploration import ProbePlan

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

EFFORT = Effort(ProbePlan(seconds=0.2, most=40, fewest=20), valid=20, invalid=5, ranked=10)


class Attention(torch.nn.Module):
    """Torch gives zeros where a row attends to nothing, a softmax in a file something else."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x[:, None]
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, None, :] != 0)


def wrong_files(mask: torch.Tensor) -> list:
    free = {"x": {0: torch.export.Dim.AUTO}, "mask": {0: torch.export.Dim.AUTO}}
    inputs = {"x": torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)), "mask": mask}
    report = ds.check_shapes(Attention(), inputs, targets=("onnx",), dynamic=free, effort=EFFORT)
    return [f for f in report.findings if f.code == "S021"]


@pytest.mark.slow
def test_a_mask_that_hides_whole_rows_is_named():
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[1] = 0
    found = wrong_files(mask)
    assert found
    assert all("values of mask decide, not the sizes: with 1 everywhere it is right" in f.why for f in found)
    assert not any(f.verified for f in found)


@pytest.mark.slow
def test_its_twin_has_nothing_to_name():
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[1, 3:] = 0
    assert not wrong_files(mask)


@pytest.mark.parametrize(
    ("example", "neutral"),
    [
        (torch.tensor([1, 0, 1]), 1),
        (torch.tensor([True, False]), 1),
        (torch.tensor([0.0, -1e9]), 0),
        (torch.tensor([0.0, float("-inf")]), 0),
        (torch.tensor([1, 1]), None),
        (torch.tensor([0, 7, 3]), None),
        (torch.tensor([0.0, -0.5]), None),
        (torch.zeros(0), None),
        (3, None),
    ],
)
def test_only_a_mask_has_a_value_that_hides_nothing(example, neutral):
    assert _hides_nothing(example) == neutral
