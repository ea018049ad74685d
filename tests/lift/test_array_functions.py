"""Functions on numpy arrays are followed: evaluated in float64, with numpy's own values between."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.lift.arrays.record import lift_arrays
from driftscope.lift.noise.floor import noise_samples
from driftscope.lift.torch.native_values import keeping_natives

Array = np.ndarray[Any, Any]
_WEIGHT = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)
_TORCH_WEIGHT = torch.from_numpy(_WEIGHT)


def drawn(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def written_into(x: Array) -> Array:
    out = np.zeros((x.shape[0], 2), x.dtype)
    out[:, 0] = x.sum(axis=1)
    out[:, 1] += x[:, ::-1][:, 0]
    out *= 3
    return out


def in_place(x: Array) -> Array:
    y = x @ _WEIGHT
    np.maximum(y, 0, out=y)
    y[y > 1] = 1
    return y


def welford(x: Array) -> Array:
    mean, square = np.zeros(x.shape[1], x.dtype), np.zeros(x.shape[1], x.dtype)
    for k in range(x.shape[0]):
        gap = x[k] - mean
        mean = mean + gap / (k + 1)
        square = square + gap * (x[k] - mean)
    return square / x.shape[0]


def windows(x: Array) -> Array:
    padded = np.pad(x, ((0, 0), (1, 1)), mode="reflect")
    return np.einsum("biw,w->bi", np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1), _WEIGHT[:3, 0])


def by_fft(x: Array) -> Array:
    return np.fft.irfft(np.fft.rfft(x, 16, axis=-1) * 0.5, 16, axis=-1)[:, : x.shape[1]].astype(x.dtype)


def chosen(x: Array) -> Array:
    order = np.argsort(-x, axis=-1)[:, :2]
    best = np.take_along_axis(x, order, axis=-1)
    return np.where(best > 0, best, np.expm1(best)) + x[np.arange(len(x)), order[:, 0]][:, None]


def stacked(x: Array) -> Array:
    return np.array([x.mean(), x.std(ddof=1), np.linalg.norm(x), np.logaddexp.reduce(x[0]), np.median(x[:, 0])])


def interleaved(x: Array) -> Array:
    out = np.empty_like(x)
    out[:, ::2], out[:, 1::2] = x[:, ::2] * 3, -x[:, 1::2] / 3
    return out


FOLLOWED = [
    (interleaved, None),
    (written_into, lambda x: torch.stack([x.sum(1), x[:, -1]], 1) * 3),
    (in_place, lambda x: (x @ _TORCH_WEIGHT).clamp(0, 1)),
    (welford, lambda x: x.var(0, unbiased=False)),
    (windows, lambda x: F.conv1d(F.pad(x[:, None], (1, 1), mode="reflect"), _TORCH_WEIGHT[:3, 0][None, None])[:, 0]),
    (by_fft, lambda x: 0.5 * x),
    (chosen, lambda x: F.elu(x.topk(2).values) + x.amax(1, keepdim=True)),
    (stacked, lambda x: torch.stack([x.mean(), x.std(), x.norm(), x[0].logsumexp(0), x[:, 0].median()])),
    (lambda x: np.interp(x, np.linspace(-4, 4, 9), np.linspace(-4, 4, 9) ** 2).astype(np.float32), None),
    (lambda x: np.clip(x, -1, None).cumsum(axis=1) @ _WEIGHT, lambda x: x.clamp(min=-1).cumsum(1) @ _TORCH_WEIGHT),
]  # fmt: skip


@pytest.mark.parametrize("k", range(len(FOLLOWED)))
def test_the_float64_evaluation_is_what_numpy_computes_in_float64(k):
    function = FOLLOWED[k][0]
    x = drawn(5, 6)
    expected = function(x.double().numpy())
    found = lift_arrays(function, (x,), {}).run()[0].value
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-7)  # constants are stored in float32
    assert function.__name__ == "<lambda>" or np.abs(found.numpy() - function(x.numpy())).max() > 0


@pytest.mark.parametrize("k", [k for k, (_, same) in enumerate(FOLLOWED) if same is not None])
def test_the_same_function_in_torch_is_the_same_either_way_round(k):
    function, reference = FOLLOWED[k]
    program = ds.program(function, framework="numpy")
    for a, b in ((reference, program), (program, reference)):
        c = ds.compare(a, b, [drawn(7, 6)], explain=False)
        assert c.verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING), c.reason
        assert "by floor only" not in c.reason
        assert not [f for f in c.findings if f.code in ("R004", "R005")]


def test_two_numpy_programs_are_told_apart():
    one = ds.program(lambda x: x.var(axis=0), framework="numpy")
    same = ds.program(welford, framework="numpy")
    other = ds.program(lambda x: x.var(axis=0, ddof=1), framework="numpy")
    assert ds.compare(one, same, [drawn(40, 6)], explain=False).verdict is ds.Verdict.ROUNDING
    assert ds.compare(one, other, [drawn(40, 6)], explain=False).verdict is ds.Verdict.DIFFERENT


def test_a_place_is_the_line_of_the_numpy_function():
    def norm(x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-3)
        return centred / scale

    c = ds.compare(lambda x: F.layer_norm(x, (6,)), ds.program(norm, framework="numpy"), [drawn(8, 6)])
    assert c.verdict is ds.Verdict.DIFFERENT
    assert c.first.where.file == __file__


def test_the_values_between_are_those_that_numpy_natively_has():
    def sums(x: Array) -> Array:
        return np.exp(np.add.reduce(x, axis=0) * np.float32(1e-4))

    x = drawn(3000, 4) + 5  # far apart: numpy adds along the first axis one after the other
    with keeping_natives() as natives:
        tape = lift_arrays(sums, (x,), {})
    kept = natives.named(tape.tape)
    expected = np.add.reduce(x.numpy(), axis=0)
    assert any(v.shape == (4,) and np.array_equal(v.numpy(), expected) for v in kept.values())


def test_arrays_that_the_function_holds_are_constants_by_their_names():
    tape = lift_arrays(in_place, (drawn(5, 6),), {})
    assert "_WEIGHT" in [c.name for c in tape.constants()]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * float(x.max()),
        lambda x: x * math.sqrt(x[0, 0] ** 2),
        lambda x: np.frombuffer(x.tobytes(), x.dtype) * 2,
        lambda x: np.float32(x.sum()) * x,
        lambda x: np.apply_along_axis(lambda row: math.fsum(row), 1, x),
    ],
)
def test_what_leaves_the_dispatch_is_refused_and_never_a_constant(function):
    with pytest.raises(CannotLift):
        lift_arrays(function, (drawn(5, 6).abs(),), {})


def nearest(x: Array, table: Array = _WEIGHT) -> Array:
    return np.argmin(np.stack([((x - row) ** 2).sum(-1) for row in table]), 0)


def quantised(x: Array) -> Array:
    levels = np.array([0.1, 0.7, -0.3, 0.4, 0.2, 0.9], np.float32)
    return _WEIGHT[nearest(x)] + np.take(levels, nearest(x))[:, None]


def quantised_otherwise(x: Array) -> Array:
    levels = np.array([0.1, 0.7, -0.3, 0.4, 0.2, 0.9], np.float32)
    return _WEIGHT[nearest(x)] + np.take(levels, nearest(-x))[:, None]


def quantised_by_torch(x: torch.Tensor) -> torch.Tensor:
    found = torch.cdist(x, _TORCH_WEIGHT).argmin(-1)
    return _TORCH_WEIGHT[found] + torch.tensor([0.1, 0.7, -0.3, 0.4, 0.2, 0.9])[found, None]


def test_places_that_depend_on_the_inputs_are_looked_up_in_tables_of_the_program():
    x = drawn(5, 4)
    for a, b in ((quantised, quantised_by_torch), (quantised_by_torch, quantised)):
        c = ds.compare(a, b, [x])
        assert c.verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING)
        assert not [f for f in c.findings if f.code in ("R004", "N016")]
    for a, b in ((quantised_otherwise, quantised_by_torch), (quantised_by_torch, quantised_otherwise)):
        c = ds.compare(a, b, [x])
        assert c.verdict is ds.Verdict.DIFFERENT
        assert not [f for f in c.findings if f.code == "R004"]


def test_numpy_is_as_it_was_and_other_threads_never_see_another():
    seen: list[type] = []
    before = np.zeros

    def watched(x: Array) -> Array:
        worker = threading.Thread(target=lambda: seen.append(type(np.zeros(3))))
        worker.start()
        worker.join()
        return np.zeros(x.shape, x.dtype) + x

    lift_arrays(watched, (drawn(5, 6),), {})
    assert set(seen) == {np.ndarray}
    assert np.zeros is before
    with pytest.raises(CannotLift):
        lift_arrays(lambda x: 1 / 0, (drawn(5, 6),), {})
    assert np.zeros is before


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16])
def test_other_formats_are_followed_in_their_own(dtype):
    x = drawn(5, 6).to(dtype)
    found = lift_arrays(lambda x: x * 2 + x.sum(-1, keepdims=True), (x,), {}).run()[0]
    assert found.format == dtype
    torch.testing.assert_close(found.value, x.double() * 2 + x.double().sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (lambda x: x.sum(axis=0), lambda x: x.sum(0)),
        (lambda x: np.cumsum(x, axis=0), lambda x: x.cumsum(0)),
        (lambda x: np.einsum("ij,ij->j", x, x), lambda x: x.square().sum(0)),
        (lambda x: x.T.var(axis=-1), lambda x: x.var(0, unbiased=False)),
    ],
)
def test_numpy_adds_one_after_the_other_along_outer_axes_and_that_is_rounding(function, reference):
    program = ds.program(function, framework="numpy")
    for a, b in ((program, reference), (reference, program)):
        c = ds.compare(a, b, [drawn(3000, 4) + 1])
        assert c.verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING), c.reason
        assert "explained" not in c.reason


def test_the_same_sum_in_half_is_no_ordinary_rounding():
    def in_half(x: Array) -> Array:
        return x.astype(np.float16).sum(axis=0).astype(x.dtype)

    c = ds.compare(lambda x: x.sum(0), ds.program(in_half, framework="numpy"), [drawn(300, 64)])
    assert c.verdict is ds.Verdict.PRECISION, c.reason
    assert " in B" in c.reason
    assert "float16" in c.reason


@pytest.mark.parametrize("scale", [1e-3, 1.0])
@pytest.mark.parametrize(
    "function", [np.tanh, np.exp, np.expm1, np.arctan, np.sin, np.arcsinh], ids=lambda f: f.__name__
)
def test_the_error_of_a_function_of_numpy_is_the_noise_of_its_step(function, scale):
    """Which code numpy has for it depends on the processor: what that loses is measured."""
    x = drawn(64, 64) * scale
    graph = lift_arrays(function, (x,), {})
    clean = graph.run()
    noise = torch.stack([sample[0] for sample in noise_samples(graph, clean)])
    error = torch.from_numpy(function(x.numpy())).double() - clean[0].value
    assert 0.3 < float(error.square().mean().sqrt() / noise.square().mean().sqrt()) < 1.6
