"""One function of JAX at a time: the error that XLA really makes, in units of the noise that is injected for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import driftscope as ds
from driftscope.lift.noise.floor import noise_samples

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
from driftscope.lift.jax.record import lift_jax  # noqa: E402  (it imports JAX)

FUNCTIONS = {
    **{name: getattr(jnp, name) for name in ("tanh", "exp", "expm1", "sin", "arctan", "arcsinh")},
    **{name: getattr(jax.nn, name) for name in ("sigmoid", "softplus", "mish", "elu")},
    "erf": jax.scipy.special.erf,
    "lgamma": lambda x: jax.lax.lgamma(jnp.abs(x) + 0.5),
    "digamma": lambda x: jax.lax.digamma(jnp.abs(x) + 0.5),
    "log1p": lambda x: jnp.log1p(jnp.abs(x)),
}


def drawn(scale: float) -> torch.Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * scale


def error_in_noise(function: Callable[[Any], Any], x: torch.Tensor) -> float:
    """rms(native - own lift) / floor."""
    graph = lift_jax(function, (x,), {})
    clean = graph.run()
    noise = torch.stack([sample[0] for sample in noise_samples(graph, clean)])
    error = torch.from_numpy(np.array(function(jnp.asarray(x.numpy())))).double() - clean[0].value
    return float(error.square().mean().sqrt() / noise.square().mean().sqrt())


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sampled(14)
def test_the_error_of_a_function_is_the_noise_of_its_step(name, scale):
    assert 0.3 < error_in_noise(FUNCTIONS[name], drawn(scale)) < 1.6


@pytest.mark.parametrize("mean", [0.0, 1.0])
@pytest.mark.parametrize("length", [64, 512])
def test_the_error_of_a_product_is_the_noise_of_its_step(length, mean):
    """XLA adds in other blocks than torch, and erred 2.7 times as much as torch's would on 512 numbers of mean one."""
    generator = torch.Generator().manual_seed(0)
    weight = np.array(torch.randn(length, 64, generator=generator) + mean)
    assert 0.4 < error_in_noise(lambda x: x @ weight, torch.randn(32, length, generator=generator) + mean) < 1.6


@pytest.mark.parametrize(("ours", "theirs", "scale"), [(torch.exp2, jnp.exp2, 30.0), (torch.sinh, jnp.sinh, 10.0)])
def test_an_exponential_that_rounds_its_argument_is_an_approximation(ours, theirs, scale):
    """An ulp of 80 is fifty ulps of two to that power: DIFFERENT is what no such rounding makes."""
    x = drawn(scale)[:16, :16].clamp(-60.0, 60.0)
    for a, b in ((ours, theirs), (theirs, ours)):
        assert str(ds.compare(a, b, x).verdict) in ("ROUNDING", "PRECISION")
    for a, b in ((ours, lambda x: theirs(x) * 1.0001), (lambda x: theirs(x) * 1.0001, ours)):
        assert str(ds.compare(a, b, x).verdict) == "DIFFERENT"
