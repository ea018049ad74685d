"""Views that stand alone between kernels are paired by where they stand: what that pairs wrongly is no place."""

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

import driftscope as ds
from driftscope.explain.locate import locating

X = torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(5))


class Attention(nn.Module):
    """Attention from one packed projection, as timm writes it: its export transposes keys between views."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.packed, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.packed(self.norm(x)).reshape(1, 8, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 8, 16))


class Layers(nn.Module):
    """Three attentions and a layer with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Attention() for _ in range(3)))
        self.up, self.down, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(x)
        return self.norm(x + self.down(self.up(x).tanh()))


@pytest.fixture(scope="module")
def layers():
    torch.manual_seed(0)
    module = Layers().eval()
    return module, torch.onnx.export(module, (X,), dynamo=True, verbose=False).model_proto.SerializeToString()


def edited(file: bytes, operator: str, which: int):
    """The export and one of its nodes, to be changed."""
    model = onnx.load_from_string(file)
    return model, [n for n in model.graph.node if n.op_type == operator][which]


def test_a_wrong_wire_behind_views_that_are_paired_wrongly_is_found_at_once(layers, monkeypatch):
    module, file = layers
    model, end = edited(file, "Add", -1)
    up, down = (edited(file, "Add", k)[1].output[0] for k in (-3, -2))
    end.input[list(end.input).index(down)] = up
    runs, real = [], locating.Search.follow
    monkeypatch.setattr(locating.Search, "follow", lambda self, *a, **k: runs.append(1) or real(self, *a, **k))
    found = ds.compare(module, model, (X,))
    assert found.verdict == "DIFFERENT"
    assert found.first.where.node == end.name
    # Nobody reads the other value: it is one wire, and nothing was exchanged.
    assert f"it reads {up}" in found.first.why
    assert "each other's places" not in found.first.why
    assert found.first.fix.startswith(f"Connect {end.name}")
    assert found.first.verified is True
    assert len(runs) == 2  # as it is, and with A's value there


def test_a_view_that_really_is_another_one_is_found(layers):
    module, file = layers
    model, turned = edited(file, "Transpose", 1)
    (order,) = turned.attribute
    assert list(order.ints) == [0, 2, 1]
    order.ints[:] = [0, 1, 2]
    found = ds.compare(module, model, (X,))
    assert found.verdict == "DIFFERENT"
    assert found.first.where.module == "blocks.0"
    assert turned.name in (found.first.where.node, *found.first.evidence.get("piece", ())), found.first


def test_the_export_itself_is_the_same_function(layers):
    module, file = layers
    assert ds.compare(module, onnx.load_from_string(file), (X,)).verdict in ("IDENTICAL", "ROUNDING")
