"""One operator, exported and run by onnxruntime: an honest export is never another function, a planted one always."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_formulas import INPUTS
from torch import Tensor, nn
from torch.nn import functional as F

import driftscope as ds

HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "softsign": F.softsign,
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "layer norm": lambda x: F.layer_norm(x, (8,)),
    "average pool": lambda x: F.avg_pool1d(x[None], 3),
    "prod": lambda x: x.prod(-1),
}
TWINS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "gelu": (lambda x: F.gelu(x, approximate="tanh"), "normal"),
    "elu": (lambda x: F.elu(x, 1.001), "normal"),
    "softmax": (lambda x: x.softmax(0), "normal"),
    "layer norm": (lambda x: F.layer_norm(x, (8,), eps=1e-3), "normal"),
    "softplus": (lambda x: F.softplus(x, beta=1.01), "left tail"),
}


class Operator(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def exported(function: Callable[[Tensor], Tensor], path: Path) -> str:
    torch.onnx.export(Operator(function).eval(), (torch.from_numpy(INPUTS["normal"]),), str(path), verbose=False)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_export_is_the_same_function(name: str, tmp_path: Path) -> None:
    module, path = Operator(HONEST[name]).eval(), exported(HONEST[name], tmp_path / "one.onnx")
    for law in ("normal", "left tail", "right tail", "1e-38", "1e18", "shift of 300", "zeros"):
        verdict = ds.compare(module, path, torch.from_numpy(INPUTS[law])).verdict
        assert verdict != "DIFFERENT", law


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_another_function_behind_the_same_name_is_found(name: str, tmp_path: Path) -> None:
    other, law = TWINS[name]
    path = exported(other, tmp_path / "twin.onnx")
    found = ds.compare(Operator(HONEST[name]).eval(), path, torch.from_numpy(INPUTS[law]))
    assert found.verdict == "DIFFERENT"
