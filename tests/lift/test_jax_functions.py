"""Functions on JAX arrays are followed: evaluated in float64, with JAX's own values between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.lift.torch.native_values import keeping_natives

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
from driftscope.lift.jax.record import lift_jax  # noqa: E402  (it imports JAX)

lax = jax.lax
_WEIGHT = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)
_ROWS = np.array([2, 0, -1])


def drawn(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _conv(x: Any, **kwargs: Any) -> Any:
    kernel = jnp.asarray(np.arange(2 * 3 * 3).reshape(2, 3, 3) / 8 - 1, x.dtype)
    return lax.conv_general_dilated(x[None, :3], kernel, dimension_numbers=("NCH", "OIH", "NCH"), **kwargs)


def _window(reduce: Any, start: float) -> Callable[[Any], Any]:
    return lambda x: lax.reduce_window(x, start, reduce, (1, 3), (1, 2), [(0, 0), (1, 1)])


def _swapped(x: Any) -> Any:
    return lax.cond(x.sum() > 1e6, jnp.sin, jnp.cos, x)


def _newton(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, 0.5 * (c[1] + abs(x) / c[1])), (0, abs(x) + 1))[1]


def _square(x: Any) -> Any:
    return x[:, :5] + 3 * jnp.eye(5, dtype=x.dtype)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu by tanh": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=0),
    "a jitted layer": jax.jit(lambda x: jax.nn.relu(x @ _WEIGHT + 1.0)),
    "contracted from the front": lambda x: lax.dot_general(x, x, (((0,), (0,)), ((), ()))),
    "a batch of dots": lambda x: jax.vmap(jnp.dot)(x, x),
    "einsum": lambda x: jnp.einsum("ij,jk,ik->i", x, _WEIGHT, x @ _WEIGHT),
    "variance": lambda x: jnp.var(x, axis=-1, ddof=1),
    "convolution": lambda x: _conv(x, window_strides=(1,), padding=[(1, 1)]),
    "convolution, one side padded": lambda x: _conv(x, window_strides=(2,), padding=[(2, 0)]),
    "convolution, dilated": lambda x: _conv(x, window_strides=(1,), padding=[(2, 2)], rhs_dilation=(2,)),
    "convolution, transposed": lambda x: _conv(x, window_strides=(1,), padding=[(2, 2)], lhs_dilation=(2,)),
    "maxima of windows": _window(lax.max, -np.inf),
    "sums of windows": _window(lax.add, 0.0),
    "rows taken": lambda x: x[_ROWS],
    "rows taken, filled": lambda x: jnp.nan_to_num(jnp.take(x, np.array([1, 9]), axis=0), nan=7.0),
    "taken along": lambda x: jnp.take_along_axis(x, jnp.argsort(x, axis=1)[:, :2], axis=1),
    "one element": lambda x: x[1, 2],
    "written": lambda x: x.at[0].set(1.0).at[_ROWS].add(2.0).at[:, 1].multiply(3.0).at[1:3, 2].max(0.5),
    "a slice that moves": lambda x: lax.dynamic_slice(x, (1, 2), (2, 3)),
    "a slice written": lambda x: lax.dynamic_update_slice(x, x[:2, :2] * 2, (2, 1)),
    "padded between": lambda x: lax.pad(x, 2.0, ((1, 0, 2), (-1, 1, 0))),
    "strided": lambda x: x[::2, 1::3][::-1],
    "top three": lambda x: lax.top_k(x, 3),
    "sorted": lambda x: jnp.sort(x, axis=0),
    "order of two keys": lambda x: lax.sort((jnp.sign(x), x), dimension=1, num_keys=2)[1],
    "running": lambda x: jnp.cumsum(x, axis=1) + lax.cumsum(x, axis=0, reverse=True),
    "products": lambda x: jnp.prod(x, axis=(0, 1)),
    "chosen": lambda x: jnp.where(x > 0, x, 0.1) + jnp.clip(x, -1, 1),
    "a loop of rounds": lambda x: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + x[i], x),
    "a scan": lambda x: lax.scan(lambda c, y: (c * 0.9 + y, c), jnp.zeros(x.shape[1], x.dtype), x, reverse=True),
    "a loop that asks": _newton,
    "a branch": _swapped,
    "recomputed": lambda x: jax.checkpoint(jnp.sin)(x),
    "stacked": lambda x: jnp.stack([x, 2 * x], axis=-1).reshape(-1),
    "lower half": lambda x: jnp.tril(x) + jnp.roll(x, 1, axis=1),
    "a spectrum": lambda x: jnp.fft.irfft(jnp.fft.rfft(x, axis=-1) * 0.5, axis=-1),
    "solved": lambda x: jax.scipy.linalg.solve_triangular(jnp.tril(x[:, :5]) + 3 * jnp.eye(5), x, lower=True),
    "a system": lambda x: jnp.linalg.solve(_square(x), x),
    "an inverse and a determinant": lambda x: jnp.linalg.inv(_square(x)) * jnp.linalg.det(_square(x)),
    "orthogonal factors": lambda x: jnp.abs(jnp.linalg.qr(x)[1]),
    "singular values": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "least squares": lambda x: jnp.linalg.lstsq(x.T, jnp.ones(6, x.dtype))[0],
    "eigenvectors": lambda x: jnp.abs(jnp.linalg.eigh(x @ x.T)[1]),
    "a Cholesky factor": lambda x: jnp.linalg.cholesky(x @ x.T),
    "an exponential of a matrix": lambda x: jax.scipy.linalg.expm(0.1 * _square(x)),
    "between grid points": lambda x: jnp.interp(x, jnp.arange(-2.0, 3.0, dtype=x.dtype), x[:, 0]),
    "drawn inside": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "its gradient": jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 2)),
    "a number": lambda x: {"loss": x.mean(), "shape": 3},
}


# XLA compiles every primitive for every shape, which takes half a second a function.
_QUICK = (
    "softmax",
    "a system",
    "eigenvectors",
    "a jitted layer",
    "convolution",
    "rows taken",
    "a scan",
    "a branch",
    "top three",
)
_TABLE = [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FUNCTIONS]


@pytest.mark.parametrize("name", _TABLE)
def test_a_function_in_float64_is_what_jax_computes_in_float64(name):
    function = FUNCTIONS[name]
    x = drawn(5, 6)
    lifted = lift_jax(function, (x,), {}).run()
    drawn_there = np.asarray(function(jnp.zeros(x.shape))) if name == "drawn inside" else None
    with jax.enable_x64(True):  # in which JAX draws other numbers
        wide = jnp.asarray(x.double().numpy())
        wanted = jax.tree.leaves(function(wide)) if drawn_there is None else [wide + drawn_there]
    found = [out.value for out in lifted if out.value is not None]
    values = [np.asarray(w) for w in wanted if hasattr(w, "shape")]
    assert len(found) == len(values)
    for one, other in zip(found, values, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=3e-7, atol=3e-7)  # numbers written in float32 stay such


def test_what_a_function_returns_beside_arrays_is_returned_as_it_is():
    lifted = lift_jax(lambda x: (None, x * 2, None, 3), (drawn(4),), {}).run()
    assert [out.value is not None for out in lifted] == [False, True, False, False]


def test_native_values_are_jax_own():
    x = drawn(16, 6)
    function = FUNCTIONS["a jitted layer"]
    with keeping_natives() as natives:
        tape = lift_jax(function, (x,), {})
    name = tape.run()[0].name
    want = np.asarray(function(jnp.asarray(x.numpy())))
    assert np.array_equal(natives.named(tape.tape)[name].numpy(), want)


def test_a_primitive_without_a_counterpart_is_named():
    with pytest.raises(CannotLift, match=r"jax\.lax\.\w+ has no float64 evaluation"):
        lift_jax(lambda x: jax.scipy.special.betainc(2.0, 3.0, jax.nn.sigmoid(x)), (drawn(4, 4),), {})


def test_a_branch_in_python_cannot_be_traced():
    with pytest.raises(CannotLift, match="JAX cannot trace it"):
        lift_jax(lambda x: jnp.sin(x) if float(x.sum()) > 0 else jnp.cos(x), (drawn(3),), {})


def norm(x: Any, eps: float = 1e-5) -> Any:
    c = x - x.mean(-1, keepdims=True)
    return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + eps)


def _solved(x: Any, matrix: Any) -> Any:
    return jnp.linalg.solve(matrix + 4 * jnp.eye(6, dtype=x.dtype), x[0])


def attention(x: Any, scale: float = 6**-0.5) -> Any:
    return jax.nn.softmax(x @ x.T * scale) @ x


@pytest.mark.parametrize("jitted", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["as called", "jitted"])
@pytest.mark.parametrize("turned", [False, True], ids=["B", "A"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: F.layer_norm(x, (6,)), norm),
        (lambda x: F.scaled_dot_product_attention(x, x, x), attention),
        (F.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
        (
            lambda x: torch.linalg.solve(x[:6] + 4 * torch.eye(6), x[0]),
            lambda x: jnp.linalg.inv(x[:6] + 4 * jnp.eye(6)) @ x[0],
        ),
    ],
    ids=["layer norm", "attention", "gelu", "system and inverse"],
)
def test_an_honest_port_is_rounding_either_way_round(ours, theirs, turned, jitted):
    theirs = ds.program(jax.jit(theirs) if jitted else theirs, framework="jax")
    pair = (theirs, ours) if turned else (ours, theirs)
    found = ds.compare(*pair, [drawn(16, 6)])
    assert found.verdict in (ds.Verdict.ROUNDING, ds.Verdict.IDENTICAL), str(found)


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (norm, lambda x: norm(x, 1e-3), "1e-05"),
        (attention, lambda x: attention(x, 0.5), ""),
        (lambda x: jax.nn.gelu(x, approximate=False), jax.nn.gelu, ""),
        (lambda x: jnp.var(x, axis=-1), lambda x: jnp.var(x, axis=-1, ddof=1), ""),
        (lambda x: jax.nn.softmax(x, axis=-1), lambda x: jax.nn.softmax(x, axis=0), ""),
        (lambda x: _solved(x, x[:6]), lambda x: _solved(x, x[:6].T), ""),
    ],
    ids=["epsilon", "scale", "gelu", "degrees of freedom", "axis", "transposed system"],
)
@pytest.mark.sampled(2)
def test_a_bug_between_two_jax_functions_is_found_and_placed(right, wrong, says):
    for a, b in ((right, wrong), (wrong, right)):
        found = ds.compare(ds.program(a, framework="jax"), ds.program(b, framework="jax"), [drawn(16, 6)])
        assert found.verdict is ds.Verdict.DIFFERENT, str(found)
        where = found.findings[0].where
        assert where is not None
        assert where.file is not None
        assert where.file.endswith("test_jax_functions.py")
    assert says in str(ds.compare(right, wrong, [drawn(16, 6)]))


def test_subnormal_numbers_taken_as_zero_are_named_as_such():
    """XLA takes subnormal numbers as zero; nothing here is stored in float16."""
    x = drawn(16, 6) * 1e-20
    for a, b, side in ((lambda x: (x * x).mean(-1), lambda x: jnp.mean(x * x, -1), "B"),
                       (lambda x: jnp.mean(x * x, -1), lambda x: (x * x).mean(-1), "A")):  # fmt: skip
        reason = ds.compare(a, b, [x]).reason
        assert f"explained by subnormal numbers taken as zero in {side}" in reason
    half = ds.compare(lambda x: (x * x).mean(-1), lambda x: (x * x).half().float().mean(-1), [drawn(16, 6)])
    assert "float16" in half.reason
    assert "subnormal" not in half.reason


@pytest.mark.parametrize("right", [True, False])
def test_a_number_times_i_that_is_stored_rounded_is_the_number(right: bool) -> None:
    """JAX's cosine transform multiplies with exp(-i pi k / 2n), its pi/2 in complex64."""
    from jax.scipy.fft import dct

    def by_matrix(x: torch.Tensor) -> torch.Tensor:
        k, m = torch.arange(16)[:, None], torch.arange(16)[None]
        turn = torch.pi if right else 3.141594
        return 2 * x @ torch.cos(turn * k * (2 * m + 1) / 32).T

    for pair in ((lambda x: dct(x), by_matrix), (by_matrix, lambda x: dct(x))):
        found = ds.compare(*pair, (drawn(3, 16),))
        assert (found.verdict in ("ROUNDING", "PRECISION")) is right, found.reason
