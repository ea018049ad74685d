"""Values and shapes are told apart: a mask that makes a file wrong is named, and sizes that do are not blamed on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import driftscope as ds
from driftscope.shapes.asked_model import asked_model
from driftscope.shapes.check import Effort
from driftscope.shapes.findings.deciding_values import _hides_nothing, full_masks, unmasked_only
from driftscope.shapes.probe.domain import RIGHT, WRONG, Domain, probe
from driftscope.shapes.probe.exploration import ProbePlan
from driftscope.shapes.probe.original import Original
from driftscope.shapes.probe.runners import TorchRunner

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


class Fits(torch.nn.Module):
    """Whatever the values, the mask must fit."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.relu() * mask


class DropsFullMask(Fits):
    """As models of transformers: a mask of ones is left away, whatever its size, and any other must fit."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.relu() if bool((mask == 1).all()) else super().forward(x, mask)


def original_of(model: torch.nn.Module, mask: torch.Tensor) -> Original:
    asked = asked_model(model, {"x": torch.linspace(0, 1, 10).reshape(2, 5), "mask": mask}, "all")
    assert asked.original.runs(asked.original.example)
    return asked.original


ONES = torch.ones(2, 5, dtype=torch.int64)
FITTING, FULL_ONLY = (3, 4, 3, 4), (3, 4, 6, 4)


def test_shapes_that_run_only_while_a_mask_hides_nothing():
    original = original_of(DropsFullMask(), ONES)
    assert original.runs(FITTING)
    assert original.runs(FULL_ONLY)
    found = unmasked_only(original, [FITTING, FULL_ONLY])
    assert found.points == {FULL_ONLY}
    assert "the model runs there only while mask hides nothing" in str(found)


@pytest.mark.parametrize(
    ("model", "mask"),
    [(Fits(), ONES), (DropsFullMask(), ONES.triu()), (DropsFullMask(), ONES.float()), (DropsFullMask(), ONES * 7)],
    ids=["needs it to fit", "hides something", "is no mask", "holds no ones"],
)
def test_its_twins_run_whatever_the_mask_hides(model: torch.nn.Module, mask: torch.Tensor):
    assert not unmasked_only(original_of(model, mask), [FITTING, (2, 5, 1, 1)]).points


def runner_of(function: Callable[..., torch.Tensor], original: Original) -> TorchRunner:
    return TorchRunner("tried", function, original)


@pytest.mark.parametrize(("reads", "outcome"), [(True, RIGHT), (False, WRONG)])
def test_a_program_that_reads_no_mask_is_not_right(reads: bool, outcome: str):
    original = original_of(DropsFullMask(), ONES)
    original.masks = full_masks(original)
    runner = runner_of(lambda x, mask: x.relu() * mask if reads else x.relu(), original)
    assert probe(original, [runner], [FITTING], Domain()).seen["tried"][FITTING].outcome == outcome
