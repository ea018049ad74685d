"""Single operators on uncomfortable inputs: what each of them was once said of it that was false."""

from __future__ import annotations

import math

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import driftscope as ds
from driftscope.comparison.measuring.prediction import correlation, without_zeros
from driftscope.lift.noise.floor import noise_sample
from driftscope.lift.torch.tape import lift_torch

G = torch.Generator().manual_seed(3)


def one_node(operator: str, x: torch.Tensor, out: list[int | str], **attributes: object) -> onnx.ModelProto:
    kind = {torch.float32: TensorProto.FLOAT, torch.float16: TensorProto.FLOAT16}[x.dtype]
    given = helper.make_tensor_value_info("x", kind, list(x.shape))
    result = helper.make_tensor_value_info("y", kind, out)
    node = helper.make_node(operator, ["x"], ["y"], name="node", **attributes)
    graph = helper.make_graph([node], "g", [given], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_product_in_half_is_rounded_at_every_factor(swapped):
    x = (1 + 1e-2 * torch.randn(64, 33, generator=G)).half()

    def product(x):
        return torch.prod(x, -1)

    def wide(x):
        return torch.prod(x.float(), -1).half()

    file = one_node("ReduceProd", x, [64], axes=[-1], keepdims=0)
    for other in (wide, file):
        found = ds.compare(*((other, product) if swapped else (product, other)), [x])
        assert found.verdict <= ds.Verdict.PRECISION, found.reason
        assert "run alone, is off" not in found.reason
    assert ds.compare(product, lambda x: 1.1 * product(x), [x], explain=False).verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("running", [False, True])
def test_the_floor_of_products_is_what_they_err_by(running):
    x = (1 + 0.05 * torch.randn(2000, 32, generator=G)).half()

    def multiplied(x):
        return torch.cumprod(x, -1) if running else torch.prod(x, -1)

    graph = lift_torch(multiplied, (x,), {})
    clean = graph.run()
    noise = noise_sample(graph, clean)[0]
    error = multiplied(x).double() - clean[0].value
    ratio = float(error.norm() / noise.norm())
    assert 0.1 < ratio < 1.6  # a kernel that keeps its product wider errs less


@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_added_may_be_subnormal_on_the_way(swapped):
    a, b, c = (1e-38 * torch.randn(4, 33, generator=G) for _ in range(3))

    def fused(a, b, c):
        return torch.addcdiv(a, b, c, value=0.7)

    def parts(a, b, c):
        return a + 0.7 * (b / c)

    found = ds.compare(*((parts, fused) if swapped else (fused, parts)), [a, b, c])
    assert found.verdict is ds.Verdict.ROUNDING, found.reason
    bug = ds.compare(fused, lambda a, b, c: a + 0.7001 * (b / c), [a, b, c], explain=False)
    assert bug.verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("operator", [torch.addcmul, torch.addcdiv])
def test_fused_products_and_quotients_are_what_they_are_written_as(operator):
    a, b, c = (torch.randn(4, 33, generator=G) for _ in range(3))
    for number in (1, 1.0, -0.3, 7):
        graph = lift_torch(lambda a, b, c, n=number: operator(a, b, c, value=n), (a, b, c), {})
        wanted = operator(a.double(), b.double(), c.double(), value=number)
        assert torch.allclose(graph.run()[0].value, wanted, rtol=1e-14)


@pytest.mark.parametrize("swapped", [False, True])
def test_the_logarithm_of_one_and_a_subnormal_number_is_no_other_function(swapped):
    x, y = (1e-40 * torch.randn(4, 33, generator=G) for _ in range(2))

    def parts(x, y):
        return torch.where(x == 0, torch.zeros_like(x), x * torch.log(1 + y))

    pair = (parts, torch.special.xlog1py) if swapped else (torch.special.xlog1py, parts)
    assert ds.compare(*pair, [x, y]).verdict <= ds.Verdict.ROUNDING
    wrong = ds.compare(torch.special.xlog1py, lambda x, y: x * torch.log(1 + 2 * y), [x.sign(), y + 0.5], explain=False)
    assert wrong.verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.sampled(1)
def test_given_numbers_that_are_subnormal_are_taken_as_zero_by_jax(swapped):
    jnp = pytest.importorskip("jax.numpy")
    x = 1e-38 * torch.randn(6, 24, generator=G)
    pair = [ds.program(lambda x: x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6), framework="jax"),
            lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)]  # fmt: skip
    found = ds.compare(*(pair[::-1] if swapped else pair), [x], isolate=False)
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert found.reason.endswith(f"explained by subnormal numbers taken as zero in {'AB'[swapped]}")
    assert ds.compare(*pair, [x * 1e3], isolate=False).verdict <= ds.Verdict.ROUNDING
    sums = [ds.program(lambda x: x + jnp.roll(x, 3, -1), framework="jax"), lambda x: x + x.roll(3, -1)]
    found = ds.compare(*(sums[::-1] if swapped else sums), [x], isolate=False)
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert found.reason.endswith(f"explained by subnormal numbers taken as zero in {'AB'[swapped]}")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.sampled(1)
def test_an_inverse_transform_adds_up_more_than_it_gives(swapped):
    w = torch.randn(2, 4, 5, 5, generator=G)
    w = 4e37 * w / w.abs().amax((-2, -1), keepdim=True)  # 10 times as much is added up along the last axis
    x = torch.zeros_like(w)
    x[..., 0, 0] = 1.0

    def multiplied(x, w):
        x, w = (torch.fft.rfft2(v, s=(10, 10)) for v in (x, w))
        return torch.fft.irfft2(x * w, s=(10, 10))[..., :5, :5]

    def added(x, w):
        whole = x.new_zeros(2, 4, 9, 9)
        for i in range(5):
            for j in range(5):
                whole[..., i : i + 5, j : j + 5] += w[..., i : i + 1, j : j + 1] * x
        return whole[..., :5, :5]

    found = ds.compare(*((added, multiplied) if swapped else (multiplied, added)), [x, w], isolate=False)
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert f"overflow inside a kernel of {'AB'[swapped]}" in found.reason
    assert ds.compare(multiplied, added, [x, w / 1e9], isolate=False).verdict <= ds.Verdict.ROUNDING
    bug = ds.compare(multiplied, lambda x, w: added(x, w).flip(-1), [x, w / 1e9], isolate=False, explain=False)
    assert bug.verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.sampled(1)
def test_an_exponent_is_rounded_to_the_format_that_it_is_computed_in(swapped):
    x = 1e18 * torch.rand(6, 24, generator=G) + 1.0
    pair = [lambda x: x**1.7, lambda x: x * x**0.7]
    found = ds.compare(*(pair[::-1] if swapped else pair), [x], isolate=False)
    assert found.verdict is ds.Verdict.ROUNDING, found.reason
    wrong = ds.compare(pair[0], lambda x: x * x**0.70001, [x], isolate=False, explain=False)
    assert wrong.verdict is ds.Verdict.DIFFERENT


def test_the_sign_of_nan_is_nan_in_onnx_and_zero_in_torch():
    x = torch.tensor([[math.nan, 1.0, -2.0, 0.0]])
    found = ds.compare(torch.sgn, one_node("Sign", x, [1, 4]), [x])
    assert found.verdict is ds.Verdict.DIFFERENT
    assert found.first.where.operator == "Sign"
    plain = torch.tensor([[3.0, 1.0, -2.0, 0.0]])
    assert ds.compare(torch.sgn, one_node("Sign", plain, [1, 4]), [plain]).verdict is ds.Verdict.IDENTICAL


def test_zeros_prove_no_format():
    value = torch.randn(200, generator=G, dtype=torch.float64) * 1e-26
    gone = -value
    assert correlation(gone, gone) > 0.99
    assert correlation(without_zeros(gone, value + gone), gone) == -1.0
    rounded = value.bfloat16().double()
    assert correlation(without_zeros(rounded - value, rounded), rounded - value) > 0.99


class Faint(torch.nn.Module):
    """Results far below what float16 holds, and none beside them: as of a recurrent layer that saturates."""

    def __init__(self, cut: float):
        super().__init__()
        self.cut = cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x - 60)
        return torch.where(y < self.cut, torch.zeros_like(y), y)


def test_what_becomes_zero_is_no_storage_in_float16():
    x = torch.randn(16, 33, generator=G)
    found = ds.compare(Faint(0.0), Faint(1.0), [x])
    assert "float16" not in found.reason
    assert not any("float16" in f.what or "float16" in f.why for f in found.findings)


@pytest.mark.parametrize("swapped", [False, True])
def test_products_that_are_subnormal_are_taken_as_zero_inside_a_convolution_by_jax(swapped):
    jax = pytest.importorskip("jax")
    taps = torch.tensor([0.25, 0.5, 0.25])
    x = 1e-38 * torch.randn(6, 24, generator=torch.Generator().manual_seed(5))

    def convolved(weights):
        rows = jax.vmap(lambda row: jax.numpy.convolve(row, weights, mode="same"))
        return ds.program(rows, framework="jax")

    def plain(v):
        return torch.nn.functional.conv1d(v[:, None], taps[None, None], padding=1)[:, 0]

    for weights, verdict in ((taps, ds.Verdict.PRECISION), (taps * 1.5, ds.Verdict.DIFFERENT)):
        pair = plain, convolved(jax.numpy.array(weights.numpy()))
        found = ds.compare(*(pair[::-1] if swapped else pair), [x], isolate=False)
        assert found.verdict is verdict, found.reason
        told = f"explained by subnormal numbers taken as zero in {'A' if swapped else 'B'}"
        assert (told in found.reason) is (verdict is ds.Verdict.PRECISION), found.reason


def _cross(a, b):
    return torch.stack([a[:, k - 2] * b[:, k - 1] - a[:, k - 1] * b[:, k - 2] for k in range(3)], 1)


def test_cross_product_whose_products_leave_the_range_is_narrow_not_another_function():
    x, y = (300 + torch.randn(4, 3, generator=torch.Generator().manual_seed(k)).half() for k in (1, 2))
    wide = lambda a, b: _cross(a.float(), b.float()).half()  # noqa: E731
    found = ds.compare(torch.linalg.cross, wide, [x, y], isolate=False)
    assert found.verdict is ds.Verdict.PRECISION
    assert "overflow inside a kernel of A" in found.reason
    turned = ds.compare(lambda a, b: torch.linalg.cross(b, a), wide, [x, y], isolate=False, explain=False)
    assert turned.verdict is ds.Verdict.DIFFERENT
