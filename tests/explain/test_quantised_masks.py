"""A mask of zeros and ones that a quantiser stores as integers is no other table of its size, quantised wrongly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tests.zoo.tools import quantised_statically
from torch import nn

import driftscope as ds

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))


class Resetting(nn.Module):
    """A layer that is left out at the first position, and a table of as many numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(6)
        return self.b(torch.tanh(self.a(x) * (at != 0)[:, None] + at[:, None].float().cos()))


def edited(file: Path, masks: bool) -> onnx.ModelProto:
    """The quantised file with one number of its mask or of its table changed."""
    model = onnx.load(file)
    for stored in model.graph.initializer:
        integers = numpy_helper.to_array(stored).copy()
        if integers.size == 6 and integers.dtype == np.uint8 and (len(np.unique(integers)) == 2) == masks:
            integers.reshape(-1)[2] = 0
            stored.CopyFrom(numpy_helper.from_array(integers, stored.name))
            return model
    raise AssertionError("the quantised file stores no such table")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = quantised_statically("QDQ")(Resetting(), (X,), tmp_path_factory.mktemp("quantised"))
    return made


@torch.no_grad()
def test_a_quantised_mask_is_the_mask(file: Path) -> None:
    for pair in ((Resetting(), file), (file, Resetting())):
        found = ds.compare(*pair, (X,))
        assert found.verdict is ds.Verdict.PRECISION, found.reason


@torch.no_grad()
def test_another_mask_is_another_function(file: Path) -> None:
    found = ds.compare(Resetting(), edited(file, masks=True), (X,))
    assert found.verdict is ds.Verdict.DIFFERENT
    assert not any("cos quantised" in f.what for f in found.findings)


@torch.no_grad()
def test_a_table_quantised_wrongly_is_told(file: Path) -> None:
    first = ds.compare(Resetting(), edited(file, masks=False), (X,)).first
    assert first is not None
    assert first.code == "W012"
    assert "is not cos quantised" in first.what
