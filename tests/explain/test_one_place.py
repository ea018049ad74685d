"""One mistake is one finding with one edit that was tried, however many places it shows in."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import driftscope as ds
from driftscope.records.finding import Finding

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(3))


class Attention(nn.Module):
    """Attention with turned queries and keys, and one mistake in it."""

    def __init__(self, mistake: str = ""):
        super().__init__()
        self.mistake = mistake
        self.k, self.v, self.q, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))

    def turned(self, x: Tensor) -> Tensor:
        angle = torch.arange(6.0)[:, None] / 100.0 ** (torch.arange(4.0) / 4)
        if self.mistake == "layout":
            cos, sin, (a, b) = angle.cos(), angle.sin(), (x[..., ::2], x[..., 1::2])
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([b, -a] if self.mistake == "sign" else [-b, a], -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).view(2, 6, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.mistake == "exchanged":
            k, v = v, k
        if self.mistake == "read twice":
            v = k
        scores = self.turned(q) @ self.turned(k).mT
        return self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(2, 6, 16)).tanh()


def made(mistake: str = "") -> Attention:
    torch.manual_seed(0)
    return Attention(mistake).eval()


def exported(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (X,), path / "m.onnx", dynamo=True, verbose=False)
    return path / "m.onnx"


def only(a: object, b: object) -> Finding:
    found = ds.compare(a, b, (X,))
    assert found.verdict == "DIFFERENT"
    (first,) = [f for f in found.findings if not f.note]
    assert first.verified
    return first


@pytest.mark.parametrize("turned", [False, True], ids=["right is A", "right is B"])
@pytest.mark.parametrize(
    ("mistake", "words"),
    [("exchanged", "Exchange transpose"), ("sign", "Turn the sign of what cat"), ("layout", "in the place of")],
)
@pytest.mark.sampled(2)
def test_a_mistake_that_shows_twice_is_one_finding(mistake: str, words: str, turned: bool):
    pair = (made(), made(mistake))
    assert words in only(*(pair[::-1] if turned else pair)).fix


def test_one_value_read_twice_is_not_told_as_an_exchange():
    assert "xchange" not in only(made(), made("read twice")).fix


@pytest.mark.slow
def test_two_exchanged_weights_of_a_file_without_names_are_one_finding(tmp_path: Path):
    file, broken = exported(made(), tmp_path), made()
    with torch.no_grad():
        kept = broken.k.weight.clone()
        broken.k.weight.copy_(broken.v.weight)
        broken.v.weight.copy_(kept)
    first, turned = only(file, broken), only(broken, file)
    assert first.code == turned.code == "W010"
    assert "xchange" in first.fix
    assert "xchange" in turned.fix


def test_two_weights_changed_apart_are_two_findings(tmp_path: Path):
    file, broken = exported(made(), tmp_path), made()
    with torch.no_grad():
        broken.k.weight[3] *= -1
        broken.v.weight[:, 2] *= 1.5
    found = [f for f in ds.compare(file, broken, (X,)).findings if not f.note]
    assert [f.evidence["weight"] for f in found] == ["k.weight", "v.weight"]
    assert all(f.verified for f in found)


@pytest.mark.parametrize("mistake", ["exchanged", "layout", "sign"])
def test_the_same_mistake_on_both_sides_is_none(mistake: str):
    found = ds.compare(made(mistake), made(mistake), (X,))
    assert not [f for f in found.findings if not f.note]
