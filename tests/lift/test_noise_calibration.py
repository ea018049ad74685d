"""The floor is calibrated: native error stays near it, cheaper arithmetic does not, and honest reordering does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from calibration import DTYPES, HIGH, LOW, Case, Encoder, grid, on_torch, run_case, summary
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.comparison.measuring.spread import drift_in_floors
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.native.replays import reproduce
from driftscope.lift.evidence import Evidence
from driftscope.lift.noise.floor import ARITHMETICS, ORDINARY, Arithmetic, noise_samples
from driftscope.lift.side_lift import SideLift, add_noise

NAMED = {arithmetic.name: arithmetic for arithmetic in ARITHMETICS}
QUICK = [
    *(Case("encoder 2x128", dtype) for dtype in DTYPES),
    *(Case("encoder 1x64", dtype, "torch", 30.0) for dtype in DTYPES),
    *(Case("encoder 1x64", dtype, "torch", 1.0, 3.0) for dtype in DTYPES),
    *(Case(name, dtype) for name in ("mlp", "convnet", "decoder 3x96", "softmax 4096") for dtype in DTYPES),
    *(Case(name, torch.float32) for name in ("gru 24 steps", "lstm 24 steps", "fused attention 128", "sum 16384")),
]


@pytest.mark.parametrize("case", QUICK, ids=str)
@pytest.mark.sampled(10)
def test_the_native_error_is_about_one_floor(case):
    assert LOW < run_case(case).ratio < HIGH


PARTS = [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.sweep)]


@pytest.mark.parametrize("every", PARTS)
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_the_native_error_is_about_one_floor_on_the_grid(runtime, every):
    """Saturated softmax (inputs x 30) is farthest out, and how far depends on the processor's kernels."""
    dtypes = DTYPES if runtime == "torch" else (torch.float32,)
    rows = [run_case(case) for case in list(grid(runtime, dtypes))[::every]]
    inside = [row for row in rows if LOW <= row.ratio <= HIGH]
    outside = [f"{row.case}: {row.ratio:.2f}" for row in rows if row not in inside]
    assert len(inside) >= 0.9 * len(rows), f"{summary(rows)}; outside: {outside}"
    # No honest kernel may come to what a verdict calls more than rounding.
    assert max(row.ratio for row in rows) <= THRESHOLDS.large, outside


@pytest.mark.parametrize("every", PARTS)
def test_a_runtime_that_widens_float16_stays_below_its_floor(every):
    """onnxruntime computes float16 graphs in float32 on the CPU: better than declared, never worse."""
    rows = [run_case(case) for case in list(grid("onnxruntime", (torch.float16,)))[::every]]
    assert max(row.ratio for row in rows) <= HIGH


# -- twins: planted arithmetic must be seen and named; honest reordering must not -----------------------------------


def encoder() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(11)
    return Encoder(1, 64).eval(), torch.randn(2, 24, 64)


def rho(module: nn.Module, x: Tensor, drift: Tensor, arithmetic: Arithmetic = ORDINARY) -> float:
    """Drift in floors, when one side computes in ordinary arithmetic and the other in ``arithmetic``."""
    _, lifted = on_torch(module, x)
    clean = lifted.run()
    ours = noise_samples(lifted, clean, seed=1)[0][0]
    theirs = noise_samples(lifted, clean, seed=2, arithmetic=arithmetic)[0][0]
    return drift_in_floors(drift.double(), [ours, theirs]).value


def natively(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return module(x)


def with_linear(module: nn.Module, linear: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Let every linear layer of a module compute ``linear(x, weight, bias)``."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = lambda x, layer=layer: linear(x, layer.weight, layer.bias)


def tf32(x: Tensor) -> Tensor:
    """Round to 11 significand bits, to nearest."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def rounded_factors(round_factor: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, w, b: F.linear(round_factor(x), round_factor(w), b)


def accumulated_in(dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Add products one after the other in a running sum of ``dtype``."""

    def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(*x.shape[:-1], w.shape[0], dtype=dtype)
        for k in range(x.shape[-1]):
            product = x[..., k, None].to(dtype).float() * w[:, k].to(dtype).float()
            total = (total.float() + product).to(dtype)
        return total.float() + b

    return linear


class StoredIn(TorchDispatchMode):
    """Round every float32 result to a narrower format, as a graph with inserted casts does."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return torch.utils._pytree.tree_map_only(
            Tensor, lambda t: t.to(self.dtype).to(t.dtype) if t.dtype is torch.float32 else t,
            function(*args, **(kwargs or {})),
        )  # fmt: skip


PLANTED = {
    "TF32 multiplication": rounded_factors(tf32),
    "bfloat16 multiplication": rounded_factors(lambda t: t.bfloat16().float()),
    "float16 accumulation": accumulated_in(torch.float16),
    "bfloat16 accumulation": accumulated_in(torch.bfloat16),
    "float16 storage": torch.float16,
    "bfloat16 storage": torch.bfloat16,
}


def plant(name: str, module: nn.Module, x: Tensor) -> Tensor:
    how = PLANTED[name]
    if isinstance(how, torch.dtype):
        with StoredIn(how):
            return natively(module, x)
    with_linear(module, how)
    return natively(module, x)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_arithmetic_is_seen_and_its_name_fits(name):
    module, x = encoder()
    reference = natively(module, x)
    coarse, _ = encoder()
    drift = plant(name, coarse, x) - reference
    assert rho(module, x, drift) > 2.5
    assert 0.2 < rho(module, x, drift, NAMED[name]) <= 2.5


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.sampled(2)
def test_of_all_arithmetics_the_planted_one_is_named(name):
    module, x = encoder()
    reference = natively(module, x)
    coarse, _ = encoder()
    drift = (plant(name, coarse, x) - reference).double()
    _, graph = on_torch(module, x)
    side = SideLift(graph, clean=graph.run())
    add_noise(side, seed=5)
    found = reproduce(Evidence(side, side, [(0, 0)]), [(0, drift)], seed=6)
    assert found is not None
    # Both keep 11 bits, and nothing here is outside float16's range.
    alike = ("TF32 multiplication", "float16 multiplication") if name == "TF32 multiplication" else ()
    assert found.alike == alike
    assert found.way.name in (alike or (name,))
    assert found.correlation > 0.9


def test_the_processor_s_own_bfloat16_multiplication_is_named():
    """Not planted: torch multiplies float32 matrices in bfloat16 when it is allowed to and the processor can."""
    module, x = encoder()
    reference = natively(module, x)
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        drift = (natively(module, x) - reference).double()
    finally:
        torch.set_float32_matmul_precision(allowed)
    if rho(module, x, drift) < 100.0:
        pytest.skip(
            "this processor multiplies in float32, or in parts of several bfloat16 numbers, whatever is allowed"
        )
    _, graph = on_torch(module, x)
    side = SideLift(graph, clean=graph.run())
    add_noise(side, seed=5)
    assert str(reproduce(Evidence(side, side, [(0, 0)]), [(0, drift)], seed=6)) == "bfloat16 multiplication in B"


def test_a_drift_no_arithmetic_explains_is_not_named():
    module, x = encoder()
    _, graph = on_torch(module, x)
    side = SideLift(graph, clean=graph.run())
    add_noise(side, seed=5)
    drift = 0.5 * side.clean[0].value
    assert reproduce(Evidence(side, side, [(0, 0)]), [(0, drift)], seed=6) is None


@pytest.mark.parametrize(
    ("planted", "milder"),
    [("bfloat16 multiplication", "TF32 multiplication"), ("bfloat16 accumulation", "float16 accumulation")],
)
def test_a_milder_arithmetic_does_not_fit(planted, milder):
    module, x = encoder()
    reference = natively(module, x)
    coarse, _ = encoder()
    drift = plant(planted, coarse, x) - reference
    assert rho(module, x, drift, NAMED[milder]) > 2.5


def backwards(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x.flip(-1), w.flip(-1), b)


def in_two_halves(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x[..., :half] @ w[:, :half].T + x[..., half:] @ w[:, half:].T + b


def in_float64(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x.double(), w.double(), b.double()).to(x.dtype)


def one_after_the_other(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return accumulated_in(torch.float32)(x, w, b)


@pytest.mark.parametrize(
    ("linear", "dtype"),
    [
        *itertools.product((backwards, in_two_halves, in_float64), DTYPES),
        (one_after_the_other, torch.float32),  # narrow factors would be widened first: another program
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_honest_reordering_is_rounding(linear, dtype):
    module, x = encoder()
    module, x = module.to(dtype), x.to(dtype)
    reference = natively(module, x)
    other, _ = encoder()
    other = other.to(dtype)
    with_linear(other, linear)
    assert rho(module, x, natively(other, x).double() - reference.double()) <= 1.5
