"""Places where names, modules or unused results used to mislead: shared weights, recurrent layers, shifted counters."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

import driftscope as ds
from driftscope.records.finding import Finding
from driftscope.records.verdict import Verdict


class Mixer(nn.Module):
    """Reads the weights of a module inside it directly, as Mamba does; one of its own has the size of their bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, groups=8)
        self.gain = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv1d(x, self.conv.weight, self.conv.bias, groups=8) * self.gain[:, None]


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer, self.last = Mixer(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mixer(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(self.lstm(x)[0])[0]


class Steps(nn.Module):
    """A state that begins as a constant: what an exporter computes ahead of time is not counted in its names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.first(x)
        state, made = torch.full_like(keys[:, 0], -3.0), []
        for k in range(x.shape[1]):
            top = torch.maximum(state - 0.5, keys[:, k])
            made.append((state - 0.25 - top).exp() + (keys[:, k] - top).exp())
            state = top - 0.1 * keys[:, k]
        return self.norm(torch.stack(made, 1))


def _exported(module: nn.Module, x: Tensor, path: Path) -> ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), path / "m.onnx", dynamo=True, verbose=False)
    return onnx.load(path / "m.onnx")


def _first(a: object, b: object, x: Tensor) -> Finding:
    found = ds.compare(a, b, (x,))
    assert found.verdict is Verdict.DIFFERENT
    assert found.first is not None
    return found.first


def _made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replaced"), [("mixer.conv.weight", False), ("mixer.conv.bias", True)])
def test_a_module_that_reads_the_weights_inside_it_is_not_taken_for_their_owner(
    name: str, replaced: bool, tmp_path: Path
):
    module, x = _made(Outer), torch.randn(2, 8, 8)
    file = _exported(module, x, tmp_path)
    broken = copy.deepcopy(module)
    with torch.no_grad():
        tensor = broken.get_parameter(name)
        tensor.copy_(broken.get_parameter("mixer.gain") if replaced else tensor.flip(0))
    first = _first(broken, file, x)
    assert (first.evidence["reference"], first.verified) == (name, True)


@pytest.mark.slow
def test_the_order_of_axes_between_recurrent_layers(tmp_path: Path):
    module, x = _made(Recurrent), torch.randn(2, 5, 6)
    file = _exported(module, x, tmp_path)
    turned = next(n for n in file.graph.node if n.op_type == "Transpose" and len(n.attribute[0].ints) == 4)
    turned.attribute[0].CopyFrom(helper.make_attribute("perm", [turned.attribute[0].ints[k] for k in (0, 2, 1, 3)]))
    assert turned.name in _first(module, file, x).evidence["piece"]


@pytest.mark.slow
def test_a_recurrent_weight_is_not_looked_for_in_a_state_that_nobody_reads(tmp_path: Path):
    module, x = _made(Recurrent), torch.randn(2, 5, 6)
    file = _exported(module, x, tmp_path)
    broken = copy.deepcopy(module)
    with torch.no_grad():
        broken.gru.weight_hh_l0.copy_(broken.gru.weight_hh_l0.flip(1))
    assert _first(file, broken, x).where.module == "gru"


@pytest.mark.slow
def test_names_that_count_otherwise_are_not_believed(tmp_path: Path):
    module, x = _made(Steps), torch.randn(2, 5, 8)
    file = _exported(module, x, tmp_path)
    norm = next(n for n in file.graph.node if n.op_type == "LayerNormalization")
    (gain,) = [i for i in file.graph.initializer if i.name == norm.input[1]]
    gain.CopyFrom(numpy_helper.from_array(np.linspace(0.5, 1.5, 8, dtype=np.float32), gain.name))
    first = _first(module, file, x)
    assert first.where.node == norm.name
    assert first.verified is True
