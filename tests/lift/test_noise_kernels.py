"""One kernel at a time: the error torch really makes, in units of the noise that is injected for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch.nn import functional as F

from driftscope.lift.formulas.activations import gelu, gelu_parts
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.noise.products import ProductKind, grown
from driftscope.lift.steps import Kind, Rounding, Step
from driftscope.numerics.groupings import growth, sequential
from driftscope.records.finding import Where

FORMATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Kernel:
    """A native kernel, its arguments, and how its step describes itself."""

    name: str
    function: Callable[..., torch.Tensor]
    arguments: Sequence[torch.Tensor]
    kind: Kind
    length: int = 1
    squares: Callable[..., torch.Tensor] | None = None
    attributes: dict[str, object] = field(default_factory=dict)
    parts: Callable[..., torch.Tensor] | None = None
    operator: str = ""
    library: str = ""
    low: float = 0.5
    high: float = 1.35


def normal(*shape: int, mean: float = 0.0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator) * scale + mean


def step_of(
    value: torch.Tensor,
    dtype: torch.dtype,
    rounding: Rounding,
    *,
    operator: str = "aten.op",
    inputs: Sequence[torch.Tensor] = (),
    attributes: dict[str, object] | None = None,
    constant: bool = False,
    where: Where = Where(),  # noqa: B008
) -> Step:
    return Step(0, "n", operator, where, [], ["o"], inputs, [value], [dtype], rounding, attributes or {}, constant)


def error_in_noise(kernel: Kernel, dtype: torch.dtype) -> float:
    """rms(native - float64) / rms(injected noise), with arguments that are exact in both."""
    native = [a.to(dtype) for a in kernel.arguments]
    lifted = [a.double() for a in native]
    value = kernel.function(*lifted)
    squares, parts = (None if f is None else (lambda f=f: f(*lifted)) for f in (kernel.squares, kernel.parts))
    rounding = Rounding(kernel.kind, kernel.length, squares, parts)
    step = step_of(value, dtype, rounding, operator=kernel.operator or kernel.name, inputs=lifted,
                   attributes=kernel.attributes, where=Where(operator=kernel.library or None))  # fmt: skip
    noise = torch.stack([NoiseInjector(seed=s)(step)[0] - value for s in range(4)])
    error = kernel.function(*native).double() - value
    return float(error.square().mean().sqrt() / noise.square().mean().sqrt())


def matmul(k: int, mean: float = 0.0, rows: int = 128, columns: int = 192, *, across: bool = False) -> Kernel:
    """Of one row the kernel is another one, and yet another where the matrix lies as a layer's weight does."""
    a, b = normal(rows, k, mean=mean), normal(k, columns, mean=mean)
    b = b.T.contiguous().T if across else b
    name = f"mm {k} mean {mean}" + (f" rows {rows}" if rows != 128 else "") + (" across" if across else "")
    squares = lambda a, b: a.square() @ b.square()  # noqa: E731
    return Kernel(name, torch.mm, (a, b), Kind.DOT, k, squares, operator="aten.mm")


def by_numpy(kernel: Kernel) -> Kernel:
    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(a.numpy() @ b.numpy())

    return replace(kernel, name=f"numpy {kernel.name}", function=multiply, library="numpy.matmul")


def summed(n: int, mean: float, axis: int = -1) -> Kernel:
    x = normal(2**18 // n, n, mean=mean).movedim(-1, axis)
    return Kernel(
        f"sum {n} mean {mean} axis {axis}", lambda x: x.sum(axis), (x,), Kind.SUM, n, lambda x: x.square().sum(axis)
    )


def convolution(channels: int, size: int) -> Kernel:
    def squares(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.square(), w.square(), padding=size // 2)

    x, w = normal(4, channels, 16, 16), normal(32, channels, size, size)
    return Kernel(
        f"convolution {channels} {size}", lambda x, w: F.conv2d(x, w, padding=size // 2), (x, w),
        Kind.DOT, channels * size**2, squares,
    )  # fmt: skip


def softmax(n: int, scale: float, axis: int = -1) -> Kernel:
    x = normal(2**17 // n, n, scale=scale)
    # 32 columns: a tail shorter than a vector is rounded twice in narrow formats (1.4 of the noise).
    x = x if axis == -1 else x.reshape(-1, n, 32)
    return Kernel(f"softmax {n} x{scale} axis {axis}", lambda x: x.softmax(axis), (x,), Kind.SOFTMAX, n)


def layer_norm(n: int, mean: float) -> Kernel:
    x = normal(2**16 // n, n, mean=mean)
    return Kernel(f"layer_norm {n} mean {mean}", lambda x: F.layer_norm(x, (n,)), (x,), Kind.NORM, n)


def batch_norm(mean: float, *, training: bool) -> Kernel:
    x = normal(4, 32, 16, 16, mean=mean)
    statistics = (normal(32, mean=mean, scale=0.2), normal(32).abs() + 0.5)

    def function(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        given = (None, None) if training else (mean, variance)
        return F.batch_norm(x, *given, training=training)

    length = 4 * 256 if training else 1
    return Kernel(
        f"batch_norm mean {mean} training {training}", function, (x, *statistics), Kind.NORM, length,
        attributes={"training": training},
    )  # fmt: skip


def function(name: str, scale: float = 1.0, *, positive: bool = False) -> Kernel:
    x = normal(200, 200, scale=scale)
    x = x.abs() + 0.01 if positive else x
    parts = (lambda x: gelu_parts(x, gelu(x))) if name == "gelu" else None
    return Kernel(name, getattr(torch, name, None) or getattr(F, name), (x,), Kind.FUNCTION, parts=parts)


def upsample(size: int, scale: float, mode: str) -> Kernel:
    """Resizing computes its coordinates in float32; the file's own rounding of the scale is part of that."""
    return Kernel(
        f"upsample_{mode}2d {size} x{scale}", lambda x: F.interpolate(x, scale_factor=scale, mode=mode),
        (normal(1, 2, size, size),), Kind.DOT, 4 if mode == "bilinear" else 16,
        attributes={"scales_h": scale}, low=0.45, high=1.6,
    )  # fmt: skip


def fourier(n: int) -> Kernel:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.rfft(x if x.dtype is torch.float64 else x.float()))

    return Kernel(f"_fft_r2c {n}", function, (normal(16, n),), Kind.SUM, math.ceil(math.log2(n)) + 1)


KERNELS = [
    *(upsample(n, scale, mode) for n in (20, 64) for scale in (1.7, 2.0) for mode in ("bilinear", "bicubic")),
    Kernel("add", torch.add, (normal(300, 300), normal(301, 301)[1:, 1:]), Kind.ROUND),
    Kernel("mul", torch.mul, (normal(300, 300), normal(301, 301)[1:, 1:]), Kind.ROUND),
    *(function(name) for name in ("exp", "tanh", "sigmoid", "erf", "sin", "cos", "gelu", "silu", "softplus", "mish")),
    *(function(name, positive=True) for name in ("sqrt", "rsqrt", "log", "log2", "reciprocal")),
    *(function(name, 4.0) for name in ("tanh", "gelu", "silu")),
    *(matmul(k, mean) for k in (8, 64, 384, 1280, 2048) for mean in (0.0, 1.0)),
    *(matmul(k, mean, 1, 1024, across=a) for k in (256, 4096) for mean in (0.0, 1.0) for a in (False, True)),
    *(summed(n, mean) for n in (16, 64, 1024, 4096) for mean in (0.0, 1.0)),
    summed(1024, 0.0, axis=0),
    *(convolution(c, k) for c, k in ((3, 3), (16, 3), (64, 1), (128, 5))),
    *(softmax(n, scale) for n in (8, 64, 256, 1024, 4096) for scale in (1.0, 10.0)),
    softmax(256, 1.0, axis=1),
    *(layer_norm(n, mean) for n in (16, 64, 512, 4096) for mean in (0.0, 1.0, 10.0, 100.0)),
    *(batch_norm(mean, training=training) for mean in (0.0, 5.0) for training in (False, True)),
]
# numpy's library is another than torch's, and multiplies float32 and float64 alone.
NUMPY = [
    *(by_numpy(matmul(k, mean)) for k in (8, 64, 384, 1280, 2048) for mean in (0.0, 1.0)),
    *(by_numpy(matmul(k, mean, 1, 1024, across=a)) for k in (256, 4096) for mean in (0.0, 1.0) for a in (False, True)),
]


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.sampled(90)
def test_the_error_of_a_kernel_is_the_noise_of_its_step(kernel, dtype):
    assert kernel.low < error_in_noise(kernel, dtype) < kernel.high


@pytest.mark.parametrize("kernel", NUMPY, ids=lambda kernel: kernel.name)
def test_the_error_of_a_product_in_numpy_is_the_noise_of_its_step(kernel):
    assert kernel.low < error_in_noise(kernel, torch.float32) < kernel.high


def running(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Products added one after the other in float32."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = total + a[:, k, None] * b[None, k]
    return total


def coarse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cheaper arithmetic: factors rounded to 16 bits, products added in float64."""
    return (a.bfloat16().double() @ b.bfloat16().double()).float()


@pytest.mark.parametrize("length", [64, 600])
def test_a_kernel_is_measured_as_its_sums_are_grouped(length):
    layout = ProductKind("torch", 16, length, 16, (False, False), batched=False)
    expected, found = growth(sequential(length)), grown(running, layout)
    assert found.terms + found.total == pytest.approx(expected.terms + expected.total, rel=0.3)
    assert found.total == pytest.approx(expected.total, rel=0.3)


@pytest.mark.parametrize("length", range(3, 40))
def test_an_error_of_the_totals_alone_leaves_none_to_the_terms(length):
    """A rounding below nothing would be the root of a negative number."""

    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a.double() @ b.double()) * (1 + 2.0**-25)).double()

    found = grown(scaled, ProductKind("torch", 8, length, 8, (False, False), False))
    assert found is None or (found.terms >= 0.0 and found.total >= 0.0)


def test_cheaper_arithmetic_is_never_taken_for_the_kernel_of_this_processor():
    """The twin: a floor that learnt from such a kernel would call its drift rounding."""
    layout = ProductKind("torch", 16, 600, 16, (False, False), batched=False)
    assert grown(coarse, layout) is None
    assert grown(lambda a, b: a.half().float() @ b.half().float(), layout) is None


@pytest.mark.parametrize("n", [16, 256, 1000, 4096])
def test_the_error_of_a_fourier_transform_is_the_noise_of_its_step(n):
    assert 0.5 < error_in_noise(fourier(n), torch.float32) < 1.4


def test_interpolation_at_exact_places_has_no_error_of_coordinates():
    """The twin: doubling a size samples at quarters, and an error of coordinates would be twenty times too much."""
    exact, inexact = (upsample(64, scale, "bilinear") for scale in (2.0, 1.7))
    mistaken = Kernel(inexact.name, exact.function, exact.arguments, Kind.DOT, 4, attributes=inexact.attributes)
    assert error_in_noise(exact, torch.float32) > 10 * error_in_noise(mistaken, torch.float32)


@pytest.mark.parametrize("length", [256, 2048])
def test_noise_on_the_result_alone_would_be_far_too_small(length):
    """The twin: a model blind to the length of sums is caught by the same measurement."""
    kernel = matmul(length)
    blind = Kernel(kernel.name, kernel.function, kernel.arguments, Kind.ROUND)
    assert error_in_noise(blind, torch.float32) > 4


def test_half_precision_accumulation_is_not_ordinary():
    """Products added up in float16, one after the other: dozens of times the noise of a float32 accumulator."""

    def accumulate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype is torch.float64:
            return a @ b
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
        for k in range(a.shape[1]):
            total = torch.addcmul(total.float(), a[:, k, None].float(), b[None, k].float()).half()
        return total

    ordinary = matmul(512)
    coarse = Kernel("mm", accumulate, ordinary.arguments, Kind.DOT, 512, ordinary.squares)
    assert error_in_noise(ordinary, torch.float16) < 1.2
    assert error_in_noise(coarse, torch.float16) > 5


def test_a_softmax_finds_its_axis_by_its_attribute():
    x = normal(32, 64, 64).double()
    rounding = Rounding(Kind.SOFTMAX, 64)
    noise = {}
    for axis in (1, 2):
        value = x.softmax(axis)
        step = step_of(value, torch.float32, rounding, operator="softmax", attributes={"dim": axis})
        noise[axis] = NoiseInjector()(step)[0] - value
    # Along an outer axis torch keeps one running sum, so the denominator is worse.
    assert noise[1].square().mean() > 1.3 * noise[2].square().mean()
