"""Models exported by torch, lifted, against float64 computations written by hand with the same constants."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from driftscope.lift.onnx.graph import LiftedOnnx, lift_onnx

Parameters = dict[str, Tensor]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8, eps=1e-3), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class ConvNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.norm(self.conv(x)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


# -- the same in float64, by hand -----------------------------------------------------------------------------


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def mlp(p: Parameters, x: Tensor) -> Tensor:
    return linear(p, "second", linear(p, "first", x).clamp(min=0))


def block(p: Parameters, x: Tensor) -> Tensor:
    epsilon = torch.tensor(1e-3, dtype=torch.float32).double()  # the file stores it in float32
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
    h = linear(p, "up", y * p["norm.weight"] + p["norm.bias"])
    return x + linear(p, "down", h * 0.5 * (1 + torch.erf(h / math.sqrt(2))))


def gates(p: Parameters, x: Tensor, h: Tensor, count: int) -> tuple[list[Tensor], list[Tensor]]:
    from_x = x @ p["layer.weight_ih_l0"].T + p["layer.bias_ih_l0"]
    from_h = h @ p["layer.weight_hh_l0"].T + p["layer.bias_hh_l0"]
    return list(from_x.chunk(count, -1)), list(from_h.chunk(count, -1))


def gru(p: Parameters, x: Tensor) -> Tensor:
    h, outputs = x.new_zeros(x.shape[1], 5), []
    for row in x:
        (xr, xz, xn), (hr, hz, hn) = gates(p, row, h, 3)
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        h = (1 - z) * torch.tanh(xn + r * hn) + z * h
        outputs.append(h)
    return torch.stack(outputs)


def lstm(p: Parameters, x: Tensor) -> Tensor:
    h = c = x.new_zeros(x.shape[1], 5)
    outputs = []
    for row in x:
        i, f, g, o = (a + b for a, b in zip(*gates(p, row, h, 4), strict=True))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


def attention(p: Parameters, x: Tensor) -> Tensor:
    q, k, v = (t.reshape(2, 6, 2, 4).transpose(1, 2) for t in linear(p, "qkv", x).chunk(3, -1))
    # The exporter scales both factors by a fourth root stored in the model's dtype.
    weights = torch.softmax((q * p["root"]) @ (k * p["root"]).transpose(-1, -2), -1)
    return weights @ v


@dataclass(frozen=True)
class Case:
    """A model, the shape of its input, and its float64 formula."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    by_hand: Callable[[Parameters, Tensor], Tensor]


CASES = {
    "mlp": Case(Mlp, (4, 8), mlp),
    "block": Case(Block, (2, 6, 8), block),
    "gru": Case(functools.partial(Recurrent, nn.GRU), (7, 2, 8), gru),
    "lstm": Case(functools.partial(Recurrent, nn.LSTM), (7, 2, 8), lstm),
    "attention": Case(Attention, (2, 6, 8), attention),
}


@functools.cache
def exported(name: str, dtype: torch.dtype) -> tuple[LiftedOnnx, Parameters, Tensor]:
    torch.manual_seed(3)
    module = (ConvNorm() if name == "convolution" else CASES[name].make()).eval().to(dtype)
    shape = (2, 3, 9, 9) if name == "convolution" else CASES[name].shape
    x = torch.randn(shape).to(dtype)
    logging.disable(logging.WARNING)
    try:
        program = torch.onnx.export(
            module, (x,), dynamo=True, verbose=False, opset_version=20, optimize=name != "convolution"
        )
    finally:
        logging.disable(logging.NOTSET)
    assert program is not None
    model = program.model_proto
    lifted = lift_onnx(model, {model.graph.input[0].name: x})
    parameters = {key: value.double() for key, value in module.state_dict().items()}
    parameters["root"] = torch.tensor(4**-0.25, dtype=dtype).double()
    return lifted, parameters, x.double()


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=["float32", "float16"]
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_lifted_is_the_real_valued_program(name: str, dtype: torch.dtype) -> None:
    lifted, parameters, x = exported(name, dtype)
    (output,) = lifted.run()
    assert output.format == dtype
    assert output.value is not None
    torch.testing.assert_close(output.value, CASES[name].by_hand(parameters, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_a_convolution_with_its_batch_normalisation_is_the_real_valued_program(dtype: torch.dtype) -> None:
    lifted, p, x = exported("convolution", dtype)
    value = lifted.run()[0].value
    assert value is not None
    columns = torch.nn.functional.unfold(x, 3, padding=1, stride=2)
    y = torch.einsum("ok,nkp->nop", p["conv.weight"].flatten(1), columns) + p["conv.bias"][:, None]
    epsilon = torch.tensor(1e-5, dtype=torch.float32).double()
    scale = p["norm.weight"] / (p["norm.running_var"] + epsilon).sqrt()
    y = (y - p["norm.running_mean"][:, None]) * scale[:, None] + p["norm.bias"][:, None]
    torch.testing.assert_close(value.flatten(2), torch.sigmoid(y), rtol=1e-12, atol=1e-12)


def test_a_planted_epsilon_is_seen_and_rounding_is_not() -> None:
    lifted, parameters, x = exported("block", torch.float32)
    exact = CASES["block"].by_hand(parameters, x)
    name = next(c.name for c in lifted.constants() if c.name.endswith("epsilon"))
    wrong = lifted.run(replace={name: torch.tensor(1.1e-3, dtype=torch.float64)})[0].value
    assert wrong is not None
    assert (wrong - exact).norm() / exact.norm() > 1e-6
    right = lifted.run(replace={name: torch.tensor(1e-3, dtype=torch.float64)})[0].value
    assert right is not None
    assert 0 < (right - exact).norm() / exact.norm() < 1e-9


def test_exported_nodes_know_their_module_and_line() -> None:
    lifted, _, _ = exported("block", torch.float32)
    places = {}
    lifted.run(observe=lambda step: places.__setitem__(step.operator, step.where))  # type: ignore[arg-type, func-returns-value]
    assert places["LayerNormalization"].module == "norm"
    assert places["Gelu"].file == __file__
    assert places["Gelu"].expression is not None
    assert "gelu" in places["Gelu"].expression


def test_weights_are_listed_with_their_own_bits() -> None:
    lifted, parameters, _ = exported("gru", torch.float16)
    found = {c.name: c for c in lifted.constants()}
    stored = [c.value for c in found.values() if c.value.dtype == torch.float16]
    assert stored
    recurrent = parameters["layer.weight_hh_l0"]
    same_elements = [v for v in stored if v.numel() == recurrent.numel()]
    assert any(v.double().sum() == recurrent.sum() for v in same_elements)
