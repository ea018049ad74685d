"""A cause is named only when a replay predicts the native error; honest rewritings of one size get none."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import driftscope as ds
from driftscope.explain.native.cheap_products import Changed, aside, rounding_to
from driftscope.explain.native.kernels_alone import KernelsAlone
from driftscope.explain.native.pieces import Approximation, PieceDrift
from driftscope.explain.native.replays import _rest
from driftscope.lift.sources import lift_source
from driftscope.lift.steps import Step
from driftscope.records.finding import Where


class Opaque(nn.Module):
    """A module whose inside cannot be seen: its tensors leave torch on the way."""

    def __init__(self, inside: Callable[[Tensor], Tensor]):
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.inside(torch.from_numpy(x.numpy().copy())).numpy())


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(48, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 32)
    ).eval()


def batch() -> Tensor:
    return torch.randn(48, 48, generator=torch.Generator().manual_seed(0))


def with_linear(linear: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    module = network()
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = lambda x, layer=layer: linear(x, layer.weight, layer.bias)

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return module(x)

    return run


def tf32(x: Tensor) -> Tensor:
    """Round to 11 significand bits, ties away from zero, as NVIDIA's conversion does."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def factors(rounded: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return with_linear(lambda x, w, b: F.linear(rounded(x), rounded(w), b))


def running_sum(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(*x.shape[:-1], w.shape[0], dtype=dtype)
        for k in range(x.shape[-1]):
            product = x[..., k, None].to(dtype).float() * w[:, k].to(dtype).float()
            total = (total.float() + product).to(dtype)
        return total.float() + b

    return with_linear(linear)


class StoredIn(TorchDispatchMode):
    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return torch.utils._pytree.tree_map_only(
            Tensor, lambda t: t.to(self.dtype).to(t.dtype) if t.dtype is torch.float32 else t,
            function(*args, **(kwargs or {})),
        )  # fmt: skip


def stored(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    module = network()

    def run(x: Tensor) -> Tensor:
        with StoredIn(dtype), torch.no_grad():
            return module(x)

    return run


def rounded_weights(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    module = network()
    for p in module.parameters():
        p.data = p.data.to(dtype).float()

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return module(x)

    return run


TWINS = {
    "TF32 multiplication": lambda: factors(tf32),
    "bfloat16 multiplication": lambda: factors(lambda t: t.bfloat16().float()),
    "float16 multiplication": lambda: factors(lambda t: t.half().float()),
    "float16 accumulation": lambda: running_sum(torch.float16),
    "bfloat16 accumulation": lambda: running_sum(torch.bfloat16),
    "float16 storage": lambda: stored(torch.float16),
    "bfloat16 storage": lambda: stored(torch.bfloat16),
    "float16 weights": lambda: rounded_weights(torch.float16),
    "bfloat16 weights": lambda: rounded_weights(torch.bfloat16),
}


#: Both keep 11 bits of a number in float16's range.
EITHER = "TF32 or float16 multiplication"


@pytest.mark.parametrize(
    ("planted", "scale", "words"),
    [
        (tf32, 1.0, EITHER),
        (lambda t: t.half().float(), 1.0, EITHER),
        (tf32, 1e6, "TF32 multiplication"),
        (tf32, 1e-7, "TF32 multiplication"),
        (lambda t: t.half().float(), 1e-6, "float16 multiplication"),
    ],
)
def test_only_the_range_tells_tf32_from_float16(planted, scale, words):
    torch.manual_seed(1)
    layer, x = nn.Linear(48, 64, bias=False).eval(), batch() * scale

    def cheaper(v: Tensor) -> Tensor:
        with torch.no_grad():
            return F.linear(planted(v), planted(layer.weight))

    c = ds.compare(layer, Opaque(cheaper), [x])
    assert f"explained by {words} in B" in c.first.what


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.sampled(2)
def test_an_arithmetic_that_is_really_used_is_named_with_its_side_and_its_replay(name):
    c = ds.compare(network(), Opaque(TWINS[name]()), [batch()])
    assert c.verdict is ds.Verdict.PRECISION
    replay = c.first.evidence["replay"]
    words = EITHER if name in ("TF32 multiplication", "float16 multiplication") else name
    assert f"explained by {words} in B" in c.first.what
    assert replay["way"] == words
    assert replay["correlation"] >= 0.9
    assert replay["rest"] <= 1.5


def sequential(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[0])
    for i in range(x.shape[1]):
        total = total + x[:, i]
    return total / x.shape[1]


def welford(x: Tensor) -> Tensor:
    mean, square = torch.zeros(x.shape[0]), torch.zeros(x.shape[0])
    for i in range(x.shape[1]):
        gap = x[:, i] - mean
        mean = mean + gap / (i + 1)
        square = square + gap * (x[:, i] - mean)
    return (x - mean[:, None]) / torch.sqrt(square[:, None] / x.shape[1] + 1e-5)


def plain_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],))


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("shift", [0.0, 300.0])
@pytest.mark.sampled(2)
def test_an_honest_rewriting_is_given_no_cheaper_format(order, shift):
    x = torch.randn(32, 96, generator=torch.Generator().manual_seed(3)) + shift
    pair = (plain_norm, welford) if order == "forward" else (welford, plain_norm)
    c = ds.compare(*pair, [x])
    assert c.verdict is not ds.Verdict.DIFFERENT
    text = " ".join([c.reason, *(f.what + f.why for f in c.findings)])
    assert not any(word in text for word in ("float16", "TF32"))


@pytest.mark.slow
@pytest.mark.parametrize("shift", [300.0, 3000.0])
def test_a_layer_norm_far_from_zero_is_rounding_of_both_programs_in_either_order(shift):
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(3)) + shift
    for pair in ((plain_norm, welford), (welford, plain_norm)):
        c = ds.compare(*pair, [x], explain=False)
        assert c.verdict in (ds.Verdict.ROUNDING, ds.Verdict.PRECISION)


def test_a_kernel_off_for_no_known_reason_is_not_taken_for_rounding():
    off = PieceDrift(Where(node="n"), 9.0, 1e-3)
    cancels = dataclasses.replace(off, approximation=Approximation(1e-4, cancels=300.0))
    assert KernelsAlone("B", 3, [cancels]).known
    assert not KernelsAlone("B", 3, [cancels, off]).known
    assert not KernelsAlone("B").known


def test_a_gelu_that_is_an_approximation_is_named_by_its_kernel_alone():
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(3)) * 0.3 - 5
    exact = lambda v: v * 0.5 * torch.erfc(-v / math.sqrt(2))  # noqa: E731
    gelu = lambda v: F.gelu(v)  # noqa: E731
    for pair, side in (((gelu, exact), "A"), ((exact, gelu), "B")):
        c = ds.compare(*pair, [x])
        if c.verdict is ds.Verdict.ROUNDING:
            pytest.skip("this processor's gelu keeps its digits")
        assert "the kernel of gelu" in c.reason
        assert f"in {side}" in c.reason
        assert c.findings[0].evidence.get("side", side) == side


def test_a_sum_added_one_term_after_the_other_is_recognised_though_it_cannot_be_lifted():
    x = torch.randn(64, 2048, generator=torch.Generator().manual_seed(0))
    c = ds.compare(lambda v: v.mean(-1), Opaque(sequential), [x])
    assert c.verdict is ds.Verdict.ROUNDING


def in_lanes(lanes: int, start: int = 0) -> Callable[[Tensor], Tensor]:
    """What a compiler may write for ``v.exp().sum(-1)`` where terms repeat, and the sum without its first terms."""

    def run(x: Tensor) -> Tensor:
        terms = x.exp()
        totals = [torch.zeros(x.shape[:-1]) for _ in range(lanes)]
        for k in range(start, x.shape[-1]):
            totals[k % lanes] = totals[k % lanes] + terms[..., k]
        while len(totals) > 1:
            half = len(totals) // 2
            totals = [one + other for one, other in zip(totals[:half], totals[half:], strict=True)]
        return totals[0]

    return run


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("side", "AB")
def test_sums_in_lanes_are_rounding_of_few_and_unequal_sums_too(lanes: int, side: str) -> None:
    x = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0)).repeat(1, 1, 200)
    pair = [lambda v: v.exp().sum(-1), Opaque(in_lanes(lanes))]
    c = ds.compare(*(pair if side == "B" else pair[::-1]), [x])
    # A reference that cannot be evaluated finer gives no verdict, whatever explains the rest.
    assert c.verdict is (ds.Verdict.ROUNDING if side == "B" else ds.Verdict.INCONCLUSIVE), c


def test_a_term_left_out_is_no_order_of_a_sum() -> None:
    x = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0)).repeat(1, 1, 200)
    c = ds.compare(lambda v: v.exp().sum(-1), Opaque(in_lanes(8, start=1)), [x])
    assert c.verdict is ds.Verdict.DIFFERENT


def test_an_error_of_the_right_size_without_the_right_pattern_is_not_explained():
    module = network()

    def noisy(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = module(x)
        return y + 3e-4 * torch.randn(y.shape, generator=torch.Generator().manual_seed(7))

    c = ds.compare(network(), Opaque(noisy), [batch()])
    assert "explained by" not in " ".join([c.reason, *(f.what for f in c.findings)])


@pytest.mark.parametrize("ties", ["even", "away", "cut"])
def test_rounding_to_tf32_keeps_eleven_bits(ties):
    x = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = rounding_to("tf32", ties)(x)
    assert float(((y - x) / x).abs().max()) <= 2.0 ** (-10 if ties == "cut" else -11)
    assert torch.equal(rounding_to("tf32", ties)(y), y)
    assert torch.equal(tf32(y.float()).double(), y)


def test_running_sums_in_float64_change_nothing():
    module, x = copy.deepcopy(network()).double(), batch().double()
    plain = module(x)
    with Changed(total=lambda t: t):
        again = module(x)
    assert torch.allclose(plain, again, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: x @ y.mT,
        lambda x, y: x[0, 0] @ y[0, 0],
        lambda x, y: x.sum(-1, keepdim=True) + y.mean((0, 2)),
        lambda x, y: x.cumsum(1) * y.var(-1, keepdim=True),
    ],
    ids=["products", "one product", "sums", "running sums"],
)
def test_running_sums_are_those_of_a_plain_loop(compute: Callable[..., Tensor], lanes: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = (10.0 * torch.randn(3, 37, 37, generator=draw, dtype=torch.float64) for _ in range(2))
    quick = rounding_to("float32")
    for product in (False, True):
        results = []
        for total in (quick, lambda t: quick(t)):  # what is no plain format is added without numpy
            with Changed(total=total, product=total if product else None, sums=lanes):
                results.append(compute(x, y))
        assert torch.equal(*results)
        assert not torch.equal(results[0], compute(x, y))


def test_what_an_observer_computes_is_not_changed() -> None:
    x, found = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), []
    tape = lift_source(ds.program(lambda v: v * 2).lift_source(x))

    def observe(step: Step) -> None:
        found.append(step.outputs[0].sum(0))

    with Changed(total=rounding_to("float16")):
        tape.run(observe=observe)
        tape.run(observe=aside(observe))
    exact = (2 * x.double()).sum(0)
    assert not torch.equal(found[0], exact)
    assert torch.equal(found[1], exact)


@pytest.mark.parametrize(("rows", "alike", "explained"), [(2, 0.999, True), (2, 0.95, False), (20, 0.999, False)])
def test_a_few_values_that_turned_over_do_not_unmake_an_explanation(rows, alike, explained):
    draw = torch.Generator().manual_seed(0)
    noise, left = (torch.randn(40, 32, generator=draw, dtype=torch.float64) for _ in range(2))
    left[:rows] *= 100.0
    assert (_rest(left, [noise], alike) <= 1.5) is explained


TILED = np.tile(np.random.default_rng(0).random((50, 8), dtype=np.float32), (400, 1))
IN_NUMPY = {
    "sum": (lambda a: a.sum(0), lambda t: t.sum(0)),
    "variance": (lambda a: a.var(0), lambda t: t.var(0, correction=0)),
    "running": (lambda a: np.cumsum(a, 0)[-1], lambda t: t.sum(0)),
    "product": (lambda a: np.ones(len(a), np.float32) @ a, lambda t: t.sum(0)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", IN_NUMPY)
@pytest.mark.parametrize("side", "AB")
def test_terms_that_repeat_are_rounded_alike_and_that_is_rounding(name: str, side: str) -> None:
    ours, theirs = IN_NUMPY[name]
    pair = [ds.program(theirs, framework="torch"), ds.program(ours, framework="numpy")]
    c = ds.compare(*(pair if side == "B" else pair[::-1]), [TILED])
    assert c.verdict in (ds.Verdict.ROUNDING, ds.Verdict.IDENTICAL), c
    assert not any("squeeze" in f.what for f in c.findings)


def test_a_variance_with_another_correction_is_no_rounding() -> None:
    pair = ds.program(lambda t: t.var(0), framework="torch"), ds.program(lambda a: a.var(0), framework="numpy")
    assert ds.compare(*pair, [TILED]).verdict is ds.Verdict.DIFFERENT
