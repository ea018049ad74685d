"""Quantisation that torch programs write out: scales per group, activations by their range, constants on the way."""

from __future__ import annotations

import pytest
import torch
from onnx import numpy_helper, parser
from torch import nn

import driftscope as ds


class Plain(nn.Module):
    """A linear layer of positions, which depends on no input, and one of the input."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.one, self.two = nn.Linear(16, 24), nn.Linear(24, 16)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2, generator=generator)
        self.register_buffer("positions", torch.randn(6, 16, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x) + self.one(self.positions)))


class InGroups(nn.Module):
    """A linear layer of 4-bit integers, a scale and a zero point for every four of a row."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        grouped = layer.weight.detach().unflatten(1, (-1, 4))
        low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
        self.bias, scale = layer.bias, (high - low) / 15
        zero = torch.round(-8 - low / scale)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero.to(torch.int8))
        self.register_buffer("levels", (torch.round(grouped / scale) + zero).clamp(-8, 7).to(torch.int8).flatten(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = self.levels.unflatten(1, (-1, 4)).float() - self.zero.float()
        return nn.functional.linear(x, (levels * self.scale).flatten(1), self.bias)


class ByRange(nn.Module):
    """A linear layer of 8-bit integers; its input is rounded by the range of each row."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.bias, scale = layer.bias, layer.weight.detach().abs().amax(1) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("levels", torch.round(layer.weight.detach() / scale[:, None]).to(torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = torch.maximum(-x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)) / 127.5
        levels = torch.clamp(torch.round(x * step.reciprocal()), -128, 127).to(torch.int8)
        whole = torch._int_mm(levels.flatten(0, -2), self.levels.T).unflatten(0, levels.shape[:-1])
        return whole.float() * step * self.scale + self.bias


def quantised(kind: type[nn.Module]) -> nn.Module:
    model = Plain()
    model.one, model.two = kind(model.one), kind(model.two)
    return model


def packed() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(Plain(), {nn.Linear}, dtype=torch.qint8)


def x() -> torch.Tensor:
    # More rows than a kernel of integers needs at least.
    return torch.randn(5, 6, 16, generator=torch.Generator().manual_seed(1))


MADE = {"in groups": lambda: quantised(InGroups), "by range": lambda: quantised(ByRange), "packed": packed}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("way", MADE)
@pytest.mark.sampled(3)
def test_what_is_written_out_is_quantisation_on_either_side(way: str, turned: bool):
    pair = (Plain().eval(), MADE[way]())
    found = ds.compare(*(pair[::-1] if turned else pair), x())
    assert str(found.verdict) == "PRECISION", found.reason
    assert f"{'A' if turned else 'B'} is {'B' if turned else 'A'} with quantised weights: 2 " in found.reason


def _scale(model: nn.Module) -> None:
    model.two.scale.view(-1)[1] *= 1.2


def _integer(model: nn.Module) -> None:
    model.one.levels[3, 5] += 3 if model.one.levels[3, 5] < 0 else -3


def _zero(model: nn.Module) -> None:
    model.two.zero[2, 1] += 1


def _elsewhere(model: nn.Module) -> None:
    model.two.bias.data[1] += 0.1


@pytest.mark.parametrize(
    ("way", "bug"),
    [
        *(("in groups", b) for b in (_scale, _integer, _zero, _elsewhere)),
        *(("by range", b) for b in (_scale, _integer, _elsewhere)),
    ],
)
@pytest.mark.sampled(2)
def test_a_bug_beside_it_is_found(way: str, bug):
    broken = MADE[way]()
    bug(broken)
    for pair in ((Plain(), broken), (broken, Plain())):
        assert str(ds.compare(*pair, x(), explain=False).verdict) == "DIFFERENT"


class Rounded(nn.Module):
    """A program that rounds for a reason of its own, and has nothing but its weights quantised."""

    def __init__(self, layer: nn.Module, by: float):
        super().__init__()
        self.layer, self.by = layer, by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.round(self.layer(x) / self.by) * self.by


def test_a_rounding_that_is_no_quantisation_stays():
    values = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    layer = Plain().one
    found = ds.compare(Rounded(layer, 0.5), Rounded(InGroups(layer), 0.5), values)
    assert str(found.verdict) in ("PRECISION", "ROUNDING"), found.reason
    other = ds.compare(Rounded(layer, 0.5), Rounded(InGroups(layer), 0.25), values)
    assert str(other.verdict) == "DIFFERENT"


LEVELS = torch.randint(-127, 128, (16, 8), generator=torch.Generator().manual_seed(2), dtype=torch.int8)


def file_with_activations_quantised():
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[6,16] x) => (float[6,8] y) <float s = {0.02}, '
        "uint8 z = {120}, float ws = {0.013}> { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
        " w = DequantizeLinear(v, ws) y = MatMul(d, w) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(LEVELS.numpy(), "v"))
    return model


def activations_quantised(of_a_quotient, highest=255):
    def run(x):
        levels = (of_a_quotient(x / 0.02) + 120).clamp(0, highest) - 120
        return (levels * 0.02) @ (LEVELS.float() * 0.013)

    return run


def test_activations_that_are_rounded_by_hand_are_the_operators():
    pair = file_with_activations_quantised(), activations_quantised(torch.round)
    for a, b in (pair, pair[::-1]):
        assert str(ds.compare(a, b, {"x": x()[0]}).verdict) in ("IDENTICAL", "ROUNDING")


@pytest.mark.parametrize("other", [activations_quantised(torch.trunc), activations_quantised(torch.round, 127)])
def test_a_side_that_rounds_by_hand_is_not_held_against_floats(other):
    """The file rounds too: that the other one does is no step that it lacks."""
    for a, b in ((file_with_activations_quantised(), other), (other, file_with_activations_quantised())):
        found = ds.compare(a, b, {"x": x()[0]})
        assert str(found.verdict) == "DIFFERENT"
        assert not any("has no such step" in f.why or "without the quantisation" in f.what for f in found.findings)


def test_what_a_quantised_file_lacks_is_looked_for_without_its_quantisation():
    def without(x):
        return torch.relu(x) @ (LEVELS.float() * 0.013)

    found = ds.compare(without, file_with_activations_quantised(), {"x": x()[0]})
    assert "without the quantisation of B" in found.first.what
