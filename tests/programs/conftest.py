"""Exports take seconds: each is made once per session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import Lookup


@pytest.fixture(scope="session")
def lookup() -> Lookup:
    return Lookup().eval()


@pytest.fixture(scope="session")
def lookup_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 50, (2, 3), generator=generator), torch.randn(2, 3, 8, generator=generator)


@pytest.fixture(scope="session")
def exported(lookup, lookup_inputs) -> torch.export.ExportedProgram:
    return torch.export.export(lookup, lookup_inputs)


@pytest.fixture(scope="session")
def pt2(exported, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "lookup.pt2"
    torch.export.save(exported, path)
    return path


@pytest.fixture(scope="session")
def onnx_export(lookup, lookup_inputs) -> torch.onnx.ONNXProgram:
    return torch.onnx.export(lookup, lookup_inputs, dynamo=True, verbose=False)


@pytest.fixture(scope="session")
def onnx_file(onnx_export, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "lookup.onnx"
    onnx_export.save(str(path))
    return path
