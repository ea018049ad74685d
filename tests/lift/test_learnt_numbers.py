"""Numbers that a program learnt: rounded, two of them may be one, and one may be folded into an attribute."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import driftscope as ds

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
# float16 writes all three as 0.9379883.
ALIKE = (0.93784618, 0.9380778, 0.9381121)


class Scaled(nn.Module):
    """Layers that are followed by a number each."""

    def __init__(self, numbers: tuple[float, ...] = ALIKE, names: str = "abc") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names = names
        for name, number in zip(names, numbers, strict=True):
            self.register_parameter(name, nn.Parameter(torch.tensor([number])))
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in names)

    def forward(self, x: Tensor) -> Tensor:
        for name, layer in zip(self.names, self.layers, strict=True):
            x = torch.tanh(layer(x)) * getattr(self, name)
        return x


def as_half(model: nn.Module) -> nn.Module:
    """The model with every number rounded to float16, and computed in float32."""
    return _Widened(copy.deepcopy(model).half())


class _Widened(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        for name, layer in zip(self.model.names, self.model.layers, strict=True):
            x = torch.tanh(nn.functional.linear(x, layer.weight.float(), layer.bias.float()))
            x = x * getattr(self.model, name).float()
        return x


@pytest.mark.sampled(2)
@torch.no_grad()
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("names", ["abc", "xyz"])
def test_numbers_that_a_format_makes_one_are_told_apart(names: str, swapped: bool) -> None:
    pair = Scaled(), as_half(Scaled(names=names))
    found = ds.compare(*(reversed(pair) if swapped else pair), (X,))
    assert found.verdict is ds.Verdict.PRECISION, found


@torch.no_grad()
def test_a_number_that_the_format_tells_apart_is_another() -> None:
    found = ds.compare(Scaled(), as_half(Scaled((0.93784618, 0.9390778, 0.9381121))), (X,))
    assert found.verdict is ds.Verdict.DIFFERENT, found


class Similarity(nn.Module):
    """The product of two embeddings, times a learnt number that is stored as its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.8133))
        self.text = nn.Parameter(torch.randn(5, 4, generator=torch.Generator().manual_seed(2)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.text.T * self.scale.exp()


def fused(ulps: float) -> onnx.ModelProto:
    """What an optimiser makes of it: the exponential, so many ulps from the best float32, as an attribute."""
    model = Similarity()
    best = np.exp(np.float64(model.scale.item()))
    alpha = float(np.float32(best)) + ulps * float(np.spacing(np.float32(best)))
    node = helper.make_node("Gemm", ["x", "t"], ["y"], "product", alpha=alpha, transB=1)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "fused", [value("x", 1, [6, 4])], [value("y", 1, [6, 5])],
        [numpy_helper.from_array(model.text.detach().numpy(), "t")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@torch.no_grad()
@pytest.mark.parametrize(("ulps", "verdict"), [(1.0, ds.Verdict.ROUNDING), (-1.0, ds.Verdict.ROUNDING),
                                               (2000.0, ds.Verdict.DIFFERENT)])  # fmt: skip
def test_a_number_computed_ahead_of_time_may_be_an_attribute(ulps: float, verdict: ds.Verdict, tmp_path: Path) -> None:
    file = tmp_path / "fused.onnx"
    onnx.save(fused(ulps), file)
    for pair in ((Similarity(), file), (file, Similarity())):
        assert ds.compare(*pair, (X,)).verdict is verdict


class Anchored(nn.Module):
    """Points, each scaled by a part of a learnt table that is repeated for the batch."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.first = first
        self.table = nn.Parameter(torch.randn(9, 4, generator=torch.Generator().manual_seed(4)))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table[self.first : self.first + 6].unsqueeze(0).expand(2, -1, -1)
        return torch.tanh(x * rows[..., 2:] + rows[..., :2])


def stored_in_half() -> onnx.ModelProto:
    """What an exporter and a converter make of it: both parts folded, in float16, and widened where they are read."""
    rows = Anchored().table.detach()[:6].unsqueeze(0).expand(2, -1, -1).half()
    parts = {"p": rows[..., 2:], "q": rows[..., :2]}
    nodes = [helper.make_node("Cast", [name], [f"{name}32"], to=1) for name in parts]
    nodes += [
        helper.make_node("Mul", ["x", "p32"], ["scaled"]), helper.make_node("Add", ["scaled", "q32"], ["moved"]),
        helper.make_node("Tanh", ["moved"], ["y"]),
    ]  # fmt: skip
    value, sizes = helper.make_tensor_value_info, [2, 6, 2]
    stored = [numpy_helper.from_array(part.contiguous().numpy(), name) for name, part in parts.items()]
    graph = helper.make_graph(nodes, "half", [value("x", 1, sizes)], [value("y", 1, sizes)], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@torch.no_grad()
@pytest.mark.parametrize(("first", "verdict"), [(0, ds.Verdict.PRECISION), (1, ds.Verdict.DIFFERENT)])
def test_a_part_of_a_table_may_be_stored_rounded(first: int, verdict: ds.Verdict) -> None:
    points = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(5))
    for pair in ((Anchored(first), stored_in_half()), (stored_in_half(), Anchored(first))):
        found = ds.compare(*pair, (points,))
        assert found.verdict is verdict, found


MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PIXELS = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(4))


def _stored_norm(x: Tensor) -> Tensor:
    mean, spread = (torch.tensor(numbers, dtype=x.dtype).reshape(1, 3, 1, 1) for numbers in (MEAN, SPREAD))
    return (x - mean) / spread


def _folded_norm(x: Tensor, mean: tuple[float, ...] = MEAN) -> Tensor:
    pairs = enumerate(zip(mean, SPREAD, strict=True))
    return torch.stack([x[:, k] * (1 / s) - m / s for k, (m, s) in pairs], 1)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.sampled(2)
def test_decimals_that_one_side_stores_and_the_other_computes_with(swapped: bool, dtype: torch.dtype) -> None:
    pair = (_folded_norm, _stored_norm) if swapped else (_stored_norm, _folded_norm)
    found = ds.compare(*pair, (PIXELS.to(dtype),), isolate=False)
    assert found.verdict <= ds.Verdict.PRECISION, found.reason
    wrong = ds.compare(_stored_norm, lambda x: _folded_norm(x, (0.485, 0.456, 0.407)), (PIXELS,), explain=False)
    assert wrong.verdict is ds.Verdict.DIFFERENT
    near = ds.compare(_stored_norm, lambda x: _folded_norm(x, (0.485, 0.456, 0.40600002)), (PIXELS,), explain=False)
    assert near.verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.sampled(1)
def test_decimals_that_only_a_table_is_computed_from(swapped: bool) -> None:
    turn = ((0.9, -0.2, 0.1), (0.2, 0.8, -0.1))

    def stored(x: Tensor) -> Tensor:
        grid = nn.functional.affine_grid(torch.tensor([turn]).expand(2, 2, 3), (2, 3, 8, 8), align_corners=True)
        return x * grid.sum(-1)[:, None]

    def written(x: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, 8)
        y, z = torch.meshgrid(line, line, indexing="ij")
        (a, b, c), (d, e, f) = turn
        return x * (a * z + b * y + c + (d * z + e * y + f))

    pair = (written, stored) if swapped else (stored, written)
    assert ds.compare(*pair, (PIXELS,), isolate=False).verdict <= ds.Verdict.PRECISION
    wrong = ds.compare(stored, lambda x: written(x) * 1.00001, (PIXELS,), isolate=False, explain=False)
    assert wrong.verdict is ds.Verdict.DIFFERENT
