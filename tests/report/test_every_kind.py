"""Every kind of record can be shown on each screen there is, and says itself in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import driftscope as ds
from contracts.test_documentation import script
from driftscope.records.finding import Finding
from driftscope.records.kinds.unanswered import Unanswered

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Double(torch.nn.Module):
    """Twice its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def double(x: torch.Tensor) -> torch.Tensor:
    """Return twice the input."""
    return 2 * x


KINDS: dict[str, Any] = {
    "comparison": lambda: ds.compare(Double(), Double(), X),
    "matrix": lambda: ds.compare_all({"a": Double(), "b": Double()}, X),
    "shapes": lambda: ds.check_shapes(Double(), (X,), targets=()),
    "transforms": lambda: ds.check_transforms(double, X, transforms=("vmap", "grad")),
    "invariance": lambda: ds.check_invariance(Double(), X, axes=("batch",)),
    "study": lambda: ds.studies.reduction("mean", sizes=64, dtypes="float32", permutations=4, workers=0),
    "accumulation": lambda: ds.reveal("numpy.sum", 100),
    "unanswered": lambda: Unanswered((Finding("R006", "the process crashed", fix="run it again"),), "driftscope x", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_shown_everywhere(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = KINDS[kind]()
    assert repr(record).startswith("<")
    assert "\n" not in repr(record)
    assert "<div" in record._repr_html_()
    assert "<script" not in record._repr_html_()
    assert record._repr_markdown_().startswith("### ")
    page = Path(record.save(tmp_path / "page.html")).read_text()
    assert "Content-Security-Policy" in page
    data = json.loads(Path(record.save(tmp_path / "record.json")).read_text())
    jsonschema.validate(data, json.loads(script("generate").schemas()[data["schema"]]))
