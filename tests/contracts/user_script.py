"""What a user writes, typed strictly: ``mypy --strict`` must find nothing here but the lines that say so."""

from __future__ import annotations

import numpy as np
import torch

import driftscope as ds


def check(a: torch.nn.Module, b: str) -> str:
    """Compare, and use what comes back."""
    found: ds.Comparison = ds.compare(ds.torch(a), ds.onnx(b, level="all"), {"x": torch.ones(2, 3)})
    first: ds.Finding | None = found.first
    where: ds.Where | None = first.where if first is not None else None
    total: torch.Tensor | np.ndarray = ds.exact.sum(torch.ones(3), dim=0)
    order = ds.reveal("torch.sum", 64, dtype="float32")
    report: ds.ShapeReport = ds.check_shapes(a, {"x": torch.ones(2, 3)})
    ds.testing.assert_close(total, torch.tensor(3.0))
    if found.verdict is ds.Verdict.DIFFERENT:
        return f"{where} {order.pattern} {report.findings}"
    return found.verdict.value
