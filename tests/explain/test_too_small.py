"""What a format makes zero of, or carries to the end of a domain, on one side alone."""

from __future__ import annotations

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

import driftscope as ds
from driftscope.lift.sources import lift_source
from driftscope.programs.protocol import OnnxSource

G = torch.Generator().manual_seed(5)


def _root_of_mean(x: torch.Tensor) -> torch.Tensor:
    cubes = (x**3).mean(-1)
    return (cubes.sign() * cubes.abs()) ** (1.0 / 3.0)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return _root_of_mean(x.float()).half()


@pytest.mark.parametrize("swapped", [False, True])
def test_numbers_in_the_place_of_nan_are_an_underflow(swapped: bool) -> None:
    x = (1e-3 * torch.randn(64, 4, generator=G)).half()
    found = ds.compare(*((_wide, _root_of_mean) if swapped else (_root_of_mean, _wide)), [x])
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert f"underflow in {'B' if swapped else 'A'}, " in found.reason
    assert found.first is not None
    assert found.first.where.operator == "aten.pow"


@pytest.mark.parametrize("swapped", [False, True])
def test_numbers_in_the_place_of_nan_without_an_underflow_are_another_function(swapped: bool) -> None:
    x = torch.randn(64, 4, generator=G).half()

    def positive(x: torch.Tensor) -> torch.Tensor:
        return (x.float() ** 3).mean(-1).abs().pow(1.0 / 3.0).half()

    found = ds.compare(*((positive, _root_of_mean) if swapped else (_root_of_mean, positive)), [x])
    assert found.verdict is ds.Verdict.DIFFERENT
    assert "underflow" not in found.reason


def test_a_sign_decides_nothing_of_what_its_format_lost() -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4]) for name in "xy"]
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("Mul", ["s", "x"], ["c"]),
        helper.make_node("Sign", ["c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    x = torch.tensor([-1e-3, 2e-3, 0.0, torch.nan]).half()
    (found,) = lift_source(OnnxSource(model, {"x": x}, None)).run()
    assert found.value is not None
    assert found.value[:3].tolist() == [-1.0, 1.0, 0.0]
    assert bool(found.value[3].isnan())


def _angle(x: torch.Tensor) -> torch.Tensor:
    return torch.acos(F.cosine_similarity(x, x * 1.0000001, dim=-1))


def _angle_in_parts(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.0000001
    return torch.acos((F.normalize(x, dim=-1) * F.normalize(y, dim=-1)).sum(-1))


@pytest.mark.parametrize("swapped", [False, True])
def test_an_angle_of_nothing_is_decided_at_the_end_of_its_domain(swapped: bool) -> None:
    for x in (1.0 + 1e-5 * torch.randn(4, 33, generator=G), 1e3 * torch.randn(4, 33, generator=G)):
        found = ds.compare(*((_angle_in_parts, _angle) if swapped else (_angle, _angle_in_parts)), [x])
        assert found.verdict <= ds.Verdict.PRECISION, found.reason
        wrong = ds.compare(_angle, lambda x: _angle(x) + 0.01, [x], explain=False)
        assert wrong.verdict in (ds.Verdict.DIFFERENT, ds.Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_loss_of_saturated_probabilities_is_lifted(swapped: bool) -> None:
    x, y = (1e3 * torch.randn(4, 33, generator=G) for _ in range(2))

    def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x.sigmoid(), y.sigmoid())

    def parts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p, q = x.sigmoid(), y.sigmoid()
        return ((q - 1) * torch.log1p(-p).clamp(min=-100) - q * p.log().clamp(min=-100)).mean()

    found = ds.compare(*((parts, whole) if swapped else (whole, parts)), [x, y])
    assert found.verdict <= ds.Verdict.PRECISION, found.reason
    wrong = ds.compare(whole, lambda x, y: 1.001 * parts(x, y), [x, y], explain=False)
    assert wrong.verdict is ds.Verdict.DIFFERENT


def test_the_half_format_that_leads_to_an_infinity_in_float32_is_the_one_named() -> None:
    x = (3.0 + torch.randn(4, 33, generator=G)).half() * 3
    found = ds.check_half(lambda x: torch.log((1 - torch.sigmoid(x)).float()), [x])
    words = " ".join(f.what for f in found.findings)
    assert "a device that computes in float16 gives NaN or infinity at log" in words
    assert "computes in float32" not in words
