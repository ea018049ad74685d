"""A numpy function that leaves numpy's dispatch is run on float64 arrays: is it the same function?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import driftscope as ds
from driftscope.lift.widened import widened_outputs

Array = np.ndarray[Any, Any]


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],))


def by_hand(x: Array, eps: float = 1e-5) -> Array:
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + x.dtype.type(eps))


def in_order(x: Array) -> Array:
    m = np.zeros(x.shape[0], np.float32)
    s = m.copy()
    for i in range(x.shape[1]):
        d = x[:, i] - m
        m = m + d / np.float32(i + 1)
        s = s + d * (x[:, i] - m)
    return (x - m[:, None]) / np.sqrt(s[:, None] / np.float32(x.shape[1]) + np.float32(1e-5))


def added_in_order(x: Array) -> Array:
    e = np.exp(x)
    return e / np.cumsum(e, axis=-1)[:, -1:]


def narrow_inside(x: Array) -> Array:
    return by_hand(x.astype(np.float32)).astype(x.dtype)


def narrow_mean(x: Array) -> Array:
    c = x - x.astype(np.float32).mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)


def in_half(x: Array) -> Array:
    return by_hand(x.astype(np.float16)).astype(x.dtype)


def inputs(shift: float) -> Tensor:
    return torch.randn(16, 256, generator=torch.Generator().manual_seed(3)) + shift


def unfollowed(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The same function, out of sight: nobody can follow an array through its bytes."""
    return lambda x: function(np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape))


def against(reference: Callable[[Tensor], Tensor], function: Callable[[Array], Array], shift: float) -> ds.Comparison:
    """Compare both ways round; the verdict is the same."""
    program = ds.program(unfollowed(function), framework="numpy")
    found = ds.compare(reference, program, [inputs(shift)], explain=False)
    back = ds.compare(program, reference, [inputs(shift)], explain=False)
    if "run in float64" in found.reason:
        assert back.verdict is found.verdict, back.reason
        assert "A's own code, run in float64" in back.reason
    return found


@pytest.mark.parametrize(
    ("function", "shift"),
    [(by_hand, 0.0), (by_hand, 300.0), (in_order, 0.0), pytest.param(in_order, 300.0, marks=pytest.mark.slow)],
)
def test_an_honest_layer_norm_in_numpy_is_rounding(function, shift):
    c = against(norm, function, shift)
    assert c.verdict is ds.Verdict.ROUNDING
    assert "run in float64" in c.reason


def test_an_honest_softmax_in_numpy_is_rounding():
    assert against(lambda v: torch.softmax(v, -1), added_in_order, 0.0).verdict is ds.Verdict.ROUNDING


@pytest.mark.parametrize("shift", [0.0, 300.0])
@pytest.mark.parametrize("eps", [1e-3, 1e-4])
def test_another_epsilon_in_numpy_is_a_different_function(eps, shift):
    assert against(norm, lambda x: by_hand(x, eps), shift).verdict is ds.Verdict.DIFFERENT


def test_a_numpy_reference_with_another_epsilon_is_a_different_function():
    program = ds.program(unfollowed(lambda x: by_hand(x, 1e-3)), framework="numpy")
    assert ds.compare(program, norm, [inputs(0.0)], explain=False).verdict is ds.Verdict.DIFFERENT


def test_a_function_that_computes_in_half_inside_is_no_rounding():
    assert against(norm, in_half, 0.0).verdict is not ds.Verdict.ROUNDING


@pytest.mark.parametrize("function", [by_hand, in_order, added_in_order])
def test_a_function_that_follows_its_inputs_is_accepted(function):
    program = ds.program(function, framework="numpy")
    assert [v.dtype for v in widened_outputs(program.bind([inputs(0.0)]))] == [torch.float64]


@pytest.mark.parametrize("function", [lambda x: by_hand(x.astype(np.float32)), narrow_inside, in_half, narrow_mean])
def test_a_function_that_is_narrow_inside_is_not(function):
    program = ds.program(function, framework="numpy")
    assert widened_outputs(program.bind([inputs(300.0)])) == [None]


def test_a_function_that_does_not_take_float64_is_not():
    def picky(x: Array) -> Array:
        if x.dtype != np.float32:
            raise TypeError("float32 only")
        return x

    program = ds.program(picky, framework="numpy")
    assert widened_outputs(program.bind([inputs(0.0)])) == []


def test_a_jax_function_is_run_in_float64_and_jax_is_as_it_was():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def normed(eps: float) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            if float(x.max()) > 1e6:  # which JAX cannot trace
                return jnp.zeros_like(x)
            c = x - x.mean(-1, keepdims=True)
            return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + eps)

        return call

    for a, b in ((norm, normed(1e-5)), (normed(1e-5), norm)):
        c = ds.compare(a, b, [inputs(0.0)], explain=False)
        assert c.verdict is ds.Verdict.ROUNDING, c.reason
        assert "run in float64" in c.reason
    assert ds.compare(norm, normed(1e-4), [inputs(0.0)], explain=False).verdict is ds.Verdict.DIFFERENT
    assert jnp.zeros(1).dtype == jnp.float32
