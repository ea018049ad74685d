"""A step that several readers share and one program leaves out is one finding, at that step, and tried."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import driftscope as ds
from driftscope.records.verdict import Verdict

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


class WrittenNorm(nn.Module):
    """A root mean square norm of several steps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.3 * torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attending(nn.Module):
    """A layer whose queries, keys and values read a norm of what the residual reads."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.last = nn.Linear(16, 16), norm, nn.Linear(16, 16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        h = self.norm(x)
        q, k, v = (part(h).view(2, 6, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 6, 16)
        return self.last(F.gelu(x + y))


class Gating(nn.Module):
    """A gated layer, both halves of which read a norm of what the residual reads."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Linear(16, 16), norm
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _norm(kind: str) -> nn.Module:
    torch.manual_seed(5)
    norm = WrittenNorm() if kind == "written" else nn.LayerNorm(16)
    with torch.no_grad():
        norm.weight.mul_(1.3)
    return norm


def _file(module: nn.Module, folder: Path) -> Path:
    path = folder / "whole.onnx"
    torch.onnx.export(module.eval(), (X,), path, dynamo=True, verbose=False)
    return path


@pytest.mark.parametrize("file", ["", "A", "B"])
@pytest.mark.parametrize("norm", ["layer", "written"])
@pytest.mark.parametrize("layer", [Attending, Gating])
@pytest.mark.sampled(2)
def test_a_norm_left_out_before_all_its_readers_is_one_finding_at_the_norm(
    layer: type[nn.Module], norm: str, file: str, tmp_path: Path
) -> None:
    whole, short = layer(_norm(norm)), layer(nn.Identity())
    a, b = _file(whole, tmp_path) if file == "A" else whole, _file(short, tmp_path) if file == "B" else short
    c = ds.compare(a, b, X)
    causes = [f for f in c.findings if not f.note]
    assert len(causes) == 1, [str(f) for f in causes]
    found = causes[0]
    assert found.verified
    assert "as it is" in found.why, found.why
    assert found.where.module == "norm"


@pytest.mark.parametrize("layer", [Attending, Gating])
def test_a_norm_that_one_reader_alone_leaves_out_is_not_said_of_all(layer: type[nn.Module]) -> None:
    class One(layer):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Tensor:
            left = self.q if hasattr(self, "q") else self.gate
            held = [None]

            def remember(_module: nn.Module, given: tuple[Tensor, ...]) -> None:
                held[0] = given[0]

            hooks = [self.norm.register_forward_pre_hook(remember),
                     left.register_forward_pre_hook(lambda _m, _given: (held[0],))]  # fmt: skip
            try:
                return super().forward(x)
            finally:
                for hook in hooks:
                    hook.remove()

    c = ds.compare(layer(_norm("layer")), One(_norm("layer")), X)
    assert c.verdict is Verdict.DIFFERENT
    assert " and " not in c.first.why.partition(" as it is")[0]
    assert c.first.verified
    assert ds.compare(layer(_norm("layer")), layer(_norm("layer")), X).verdict is Verdict.IDENTICAL


class Summed(nn.Module):
    """A residual that a norm and a product read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + torch.tanh(self.second(x))
        return self.norm(x) * x


def test_a_step_that_hands_on_what_it_reads_is_the_place_and_not_its_readers(tmp_path: Path) -> None:
    model = onnx.load(_file(Summed(), tmp_path))
    node = next(n for n in reversed(model.graph.node) if n.op_type == "Add")
    node.op_type = "Identity"
    del node.input[1]
    found = ds.compare(Summed(), model, X).first
    assert found is not None
    assert (found.where.node, found.where.operator) == (node.name, "Identity")
    assert found.verified


class Written(nn.Module):
    """GELU by its name, or its approximation written out, and a projection."""

    def __init__(self, written: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.written = written
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.written:
            y = 0.5 * y * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (y + 0.044715 * y.pow(3))))
        else:
            y = F.gelu(y)
        return self.last(y)


def test_one_step_for_several_of_a_is_the_place_and_not_a_view_of_what_it_gives() -> None:
    found = ds.compare(Written(True), Written(False), X).first
    assert found is not None
    assert found.where.operator == "aten.gelu"
    assert found.verified
