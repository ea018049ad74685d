"""Results in memory that the next run writes to again, and results that are no plain tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.errors import InputError

X = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
WORKSPACE = torch.zeros(6, 16)
ARRAY = np.zeros((6, 16), np.float32)
PLACES = torch.zeros(6, dtype=torch.int64)


class OfTheClass(nn.Module):
    """Write into a workspace that all its objects share."""

    work = torch.zeros(6, 16)

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        self.work.copy_(x * self.factor)
        return self.work


class Noisy(nn.Module):
    """Draw unseeded numbers into a workspace of its own, which is no buffer."""

    def __init__(self):
        super().__init__()
        self.work = torch.zeros(6, 16)

    def forward(self, x):
        self.work.copy_(x + torch.rand(6, 16))
        return self.work


PAIRS = {
    "out=": lambda k: lambda x: torch.mul(x, k, out=WORKSPACE),
    "numpy": lambda k: lambda x: np.multiply(x, np.float32(k), out=ARRAY),
    "class": OfTheClass,
}


@pytest.mark.parametrize("kind", PAIRS)
def test_two_programs_that_share_a_workspace_are_told_apart(kind):
    made, inputs = PAIRS[kind], X.numpy() if kind == "numpy" else X
    for one, other in ((2.0, 2.5), (2.5, 2.0)):
        assert ds.compare(made(one), made(other), inputs).verdict is ds.Verdict.DIFFERENT
    assert ds.compare(made(2.0), made(2.0), inputs).verdict is ds.Verdict.IDENTICAL


def test_places_in_a_shared_tensor_are_told_apart():
    found = ds.compare(lambda x: torch.argmax(x, -1, out=PLACES), lambda x: torch.argmin(x, -1, out=PLACES), X)
    assert found.verdict is ds.Verdict.DIFFERENT


def test_a_program_that_does_not_repeat_itself_in_its_workspace_is_found_out():
    noisy = Noisy()
    for other in (noisy, Noisy()):
        assert ds.compare(noisy, other, X).verdict is ds.Verdict.INCONCLUSIVE


def quantised(factor, scale=0.1):
    return lambda x: torch.quantize_per_tensor(x * factor, scale, 0, torch.qint8)


def test_quantised_results_are_the_numbers_they_stand_for():
    for other in (quantised(1.0), lambda x: quantised(1.0)(x).dequantize()):
        for pair in ((quantised(1.0), other), (other, quantised(1.0))):
            assert ds.compare(*pair, X).verdict is ds.Verdict.IDENTICAL
    for other in (quantised(1.5), quantised(1.0, 0.11)):
        assert ds.compare(quantised(1.0), other, X).verdict is ds.Verdict.DIFFERENT


@pytest.mark.filterwarnings("ignore")
def test_what_is_two_arrays_is_refused_in_a_sentence():
    def masked(x):
        return torch.masked.masked_tensor(x, x > 0)

    with pytest.raises(InputError, match="cannot be compared; return plain tensors"):
        ds.compare(masked, masked, X)


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_are_the_same_or_not_known():
    def nested(factor):
        return lambda x: torch.nested.nested_tensor([x[0] * factor, x[1, :5]])

    assert ds.compare(nested(1.0), nested(1.0), X).verdict is ds.Verdict.IDENTICAL
    assert ds.compare(nested(1.0), nested(2.0), X).verdict is ds.Verdict.INCONCLUSIVE


def test_what_is_expanded_takes_no_more_memory():
    found = ds.program(lambda x: x[:1].expand(1 << 43, 16))(X)
    assert found.stride() == (0, 1)


def test_numbers_of_pythons_are_said_to_be_such():
    found = ds.compare(lambda x: (x, 1.0), lambda x: (x, 2.0), X)
    assert found.verdict is ds.Verdict.INCONCLUSIVE
    assert "1.0 against 2.0" in found.reason
    assert ds.compare(lambda x: (x, 1.0), lambda x: (x, 1.0), X).verdict is ds.Verdict.IDENTICAL
    assert ds.compare(lambda x: (x, 1), lambda x: (x, 2), X).verdict is ds.Verdict.DIFFERENT


def test_a_program_that_has_jax_compute_in_64_bits_does_so_alone():
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64

    def widening(x):
        jax.config.update("jax_enable_x64", not before)
        return jax.numpy.sin(x)

    found = ds.compare(widening, widening, X.numpy())
    assert jax.config.jax_enable_x64 == before
    assert [f.code for f in found.findings].count("O021") >= 1
