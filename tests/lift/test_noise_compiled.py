"""Noise that the compiled library adds is the noise that torch adds: same draws, same limits, same signs of zeros."""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accumulation.test_exact_build import functions_with_fma
from driftscope.lift.formulas.activations import gelu, gelu_parts
from driftscope.lift.formulas.terms import ProductSquares
from driftscope.lift.noise import compiled
from driftscope.lift.noise.measured import function_errors
from driftscope.lift.noise.perturbing import LEVELS, Noise, RowNoise, TermSizes
from driftscope.lift.noise.rows import NormalisedRows

SPECIALS = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 5e-324, 1e-310, 1.7e308)


@contextlib.contextmanager
def without_library() -> Iterator[None]:
    """Inside, the package behaves as if it had been built without a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "library", lambda: None)
        yield


def need_compiled() -> None:
    if compiled.library() is None:
        pytest.skip("the package was built without a compiler")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def value_of(shape: list[int], seed: int, special: bool) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, dtype=torch.float64, generator=random)
    if special:
        flat = value.view(-1)
        for k, number in enumerate(SPECIALS[: flat.numel()]):
            flat[(k * 7) % flat.numel()] = number
    return value


def same_both_ways(noise: Noise, value: torch.Tensor) -> None:
    noise.generator = generator()
    noisy, smallest, largest = noise.added(value)
    with without_library():
        noise.generator = generator()
        expected, least, most = noise.added(value)
    torch.testing.assert_close(noisy, expected, rtol=1e-14, atol=1e-15, equal_nan=True)
    zero = (noisy == 0) & (expected == 0)
    assert torch.equal(noisy.signbit()[zero], expected.signbit()[zero])
    assert smallest == least
    assert largest == pytest.approx(most, rel=1e-14, nan_ok=True)


SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(lambda s: [*s, 13] if len(s) % 2 else s)


@given(SHAPES, st.integers(0, 2**20), st.booleans(), st.booleans())
def test_a_share_of_the_value(shape, seed, special, limited):
    need_compiled()
    same_both_ways(Noise(1e-3, generator(), room=1.7 if limited else 0.0), value_of(shape, seed, special))


@given(SHAPES, st.integers(0, 2**20), st.booleans(), st.data())
def test_terms_that_broadcast(shape, seed, limited, data):
    need_compiled()
    value = value_of(shape, seed, special=False)
    kept = [data.draw(st.booleans()) for _ in shape]
    sizes = torch.rand([n if k else 1 for n, k in zip(shape, kept, strict=True)], dtype=torch.float64)
    sizes = sizes[(0,) * data.draw(st.integers(0, kept.index(True) if True in kept else len(kept)))]
    terms = TermSizes.of(sizes, value.shape)
    rows = torch.cat([terms.block(slice(r, r + 1)).expand(1, shape[-1] if shape else 1)
                      for r in range(value.shape[:-1].numel())])  # fmt: skip
    assert torch.equal(rows.reshape(value.shape), sizes.expand(value.shape))
    argument = value_of(shape, seed + 1, special=False) if limited else None
    same_both_ways(Noise(1e-3, generator(), terms, 1e-2, argument=argument, room=1.7 if limited else 0.0), value)


MATRICES = [
    ((4, 6), (6, 5)), ((2, 3, 4, 6), (2, 3, 6, 5)), ((2, 3, 4, 6), (6, 5)), ((4, 6), (3, 6, 5)),
    ((2, 1, 4, 6), (1, 3, 6, 5)), ((1, 1, 4, 6), (2, 3, 6, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), MATRICES)
def test_terms_of_a_product_are_not_multiplied_out(a, b):
    need_compiled()
    left, right = torch.randn(a, dtype=torch.float64), torch.randn(b, dtype=torch.float64)
    squares, value = ProductSquares(left, right, 0.5), left @ right * 0.5
    terms = TermSizes.of_product(squares, value.shape)
    assert terms is not None
    rows = torch.cat([terms.block(slice(r, r + 1)) for r in range(value.shape[:-1].numel())])
    torch.testing.assert_close(rows.reshape(value.shape), squares().sqrt().expand(value.shape), rtol=1e-14, atol=0)
    same_both_ways(Noise(1e-3, generator(), terms, 1e-2), value)


@pytest.mark.parametrize(("a", "b"), [((6,), (6, 5)), ((4, 6), (6,)), ((6,), (6,))])
def test_terms_of_a_product_with_a_vector_are_those_of_its_squares(a, b):
    left, right = torch.randn(a, dtype=torch.float64), torch.randn(b, dtype=torch.float64)
    assert TermSizes.of_product(ProductSquares(left, right), (left @ right).shape) is None


@given(st.integers(0, 2**20), st.booleans(), st.booleans())
def test_errors_by_argument(seed, special, limited):
    need_compiled()
    x = value_of([6, 17], seed, special) * 3
    y = gelu(x)
    errors = function_errors("gelu", "none", torch.float32, "cpu")
    terms = TermSizes.of(gelu_parts(x, y), y.shape)
    same_both_ways(Noise(1e-3, generator(), terms, 1e-4, errors, x, 1.7 if limited else 0.0), y)


def test_a_value_larger_than_what_torch_perturbs_at_a_time():
    need_compiled()
    value = value_of([300, 257], 3, special=False)
    terms = TermSizes.of(torch.rand(300, 1, dtype=torch.float64), value.shape)
    same_both_ways(Noise(1e-3, generator(), terms, 1e-2), value)


def test_levels_have_the_deviation_they_are_said_to_have():
    need_compiled()
    noisy, *_ = Noise(0.25, generator()).added(torch.ones(100_000, dtype=torch.float64))
    assert abs(float((noisy - 1).mean())) < 0.005
    assert float((noisy - 1).std()) == pytest.approx(0.25, rel=0.01)
    assert float((noisy - 1).abs().max()) == pytest.approx(0.25 * 127.5 / LEVELS)


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**20), st.booleans(), st.sampled_from([0.0, 300.0, 1e8]))
def test_sizes_of_rows(count, length, seed, centred, shift):
    need_compiled()
    view = value_of([count, length], seed, special=False)
    before = view * 0.1 + shift if centred else None
    rows = NormalisedRows(view, lambda x: x, before, 1e-5, 0.7)
    found = rows.size()
    with without_library():
        expected = rows.size()
    # How far the mean of numbers near 1e8 is off depends on the order of their sum.
    torch.testing.assert_close(found, expected, rtol=1e-12 if shift < 1e8 else 1e-6, atol=0)


def test_rows_of_equal_elements_have_the_size_of_what_their_mean_is_off_by():
    need_compiled()
    view, before = torch.zeros(2, 8, dtype=torch.float64), torch.full((2, 8), 4.0, dtype=torch.float64)
    size = NormalisedRows(view, lambda x: x, before, 1e-5, 0.5).size()
    assert size.flatten().tolist() == pytest.approx([0.5 * 4.0 / math.sqrt(1e-5)] * 2)


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**20), st.booleans(), st.booleans())
def test_what_rows_have_in_common(count, length, seed, sized, special):
    need_compiled()
    rows = value_of([count, length], seed, special)
    sizes = torch.rand(count, 1, dtype=torch.float64) if sized else None
    noise = RowNoise(1e-3, 1e-2, 1e-8, 1e-3)
    noisy, expected = rows.clone(), rows.clone()
    finite = noise.add(noisy, rows, sizes, generator())
    with without_library():
        plain = noise.add(expected, rows, sizes, generator())
    torch.testing.assert_close(noisy, expected, rtol=1e-13, atol=1e-18, equal_nan=True)
    assert finite == bool(torch.isfinite(noisy).all())
    assert plain == finite or float(rows.abs().nan_to_num(0).max()) > 1e300  # a sum of finite numbers may overflow


def test_the_library_multiplies_and_adds_in_two_steps():
    need_compiled()
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    (library,) = Path(compiled.__file__).parent.glob("_noise*.so")
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True)
    assert "driftscope_perturb" in listing.stdout
    assert functions_with_fma(listing.stdout) == {}
