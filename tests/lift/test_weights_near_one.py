"""Gains of layer norms near one: in a narrow format they are ones, and each is still its own layer's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnxruntime.transformers.float16 import convert_float_to_float16
from torch import nn

import driftscope as ds
from driftscope.records.verdict import Verdict

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


class Norms(nn.Module):
    """Three layer norms that were trained a little; with ``kept`` one element of each is far from the others."""

    def __init__(self, size: float, kept: bool):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.LayerNorm(16) for _ in range(3))
        self.linear = nn.Linear(16, 16)
        with torch.no_grad():
            for norm in (self.first, self.second):  # the third stays as it was made: exact ones and zeros
                norm.weight.add_(size * torch.randn(16))
                norm.bias.add_(size * torch.randn(16))
                norm.weight[0] = 1.5 if kept else norm.weight[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(x * 2 + self.second(self.linear(self.first(x)).relu()))


def narrowed(model: nn.Module, fmt: torch.dtype, change: Callable[[nn.Module], object] = lambda _: None):
    """The model in a narrow format, between casts; ``change`` spoils it."""
    narrow = copy.deepcopy(model).to(fmt)
    with torch.no_grad():
        change(narrow)
    return lambda x: narrow(x.to(fmt)).float()


@pytest.mark.parametrize("fmt", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("size", [1e-5, 1e-4])
def test_gains_that_are_all_ones_in_a_narrow_format_are_their_own_layers(fmt, kept, size):
    model = Norms(size, kept)
    for pair in ((model, narrowed(model, fmt)), (narrowed(model, fmt), model)):
        found = ds.compare(*pair, X, explain=False)
        assert found.outputs[0].lifted <= found.outputs[0].lifted_threshold, found.reason
        assert found.verdict is Verdict.PRECISION


@pytest.mark.parametrize("kept", [False, True])
def test_a_gain_that_is_no_rounding_of_its_own_is_another(kept):
    def spoil(m):
        m.second.weight[3] *= 1 + 2**-9

    model = Norms(1e-5, kept)
    narrow = narrowed(model, torch.float16, spoil)
    for pair in ((model, narrow), (narrow, model)):
        assert ds.compare(*pair, X, explain=False).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("named", [True, False])
def test_a_converted_file_tells_them_apart_by_their_order_where_names_are_lost(tmp_path: Path, named: bool):
    model, path = Norms(1e-5, kept=True), tmp_path / "norms.onnx"
    torch.onnx.export(model, (X,), path, dynamo=True, verbose=False)
    file = convert_float_to_float16(onnx.load(path), keep_io_types=True)
    for k, stored in enumerate(file.graph.initializer):
        name = stored.name if named else f"stored_{k}"
        for node in file.graph.node:
            node.input[:] = [name if read == stored.name else read for read in node.input]
        stored.name = name
    found = ds.compare(model, file, X, explain=False)
    assert found.verdict is Verdict.PRECISION, found.reason
