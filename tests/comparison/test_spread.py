"""Ratios of drift to floor: honest noise stays near 1 wherever it is looked at, a local bug does not."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftscope as ds
from driftscope.comparison.measuring.spread import _slice_means, drift_in_floors, lifted_drift, rms, shared_sentinels
from driftscope.records.first_line import share

SHAPES = [(8,), (4, 10), (64, 10), (3, 16, 64), (512, 1152), (2, 3, 17, 19), (1, 1000), (4096,)]


def normal(shape, seed, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.sampled(4)
def test_honest_noise_is_ordinary_everywhere(shape):
    ratios = [drift_in_floors(normal(shape, s), [normal(shape, s + 500)]).value for s in range(40)]
    assert max(ratios) <= 1.5
    assert sorted(ratios)[20] >= 0.3


@pytest.mark.parametrize("shape", [(64, 10), (512, 1152), (2, 3, 17, 19)])
def test_rows_of_very_different_size_are_each_judged_on_their_own_scale(shape):
    rows = torch.logspace(-6, 6, shape[0], dtype=torch.float64).reshape(-1, *[1] * (len(shape) - 1))
    assert max(drift_in_floors(normal(shape, s) * rows, [normal(shape, s + 99) * rows]).value for s in range(20)) <= 1.5


@pytest.mark.parametrize("where", ["channel", "row", "element"])
def test_a_bug_in_one_place_is_not_diluted(where):
    drift = normal((512, 1152), 1)
    place = {"channel": (slice(None), 7), "row": (3, slice(None)), "element": (3, 7)}[where]
    drift[place] += 5.0 if where != "element" else 60.0
    assert drift_in_floors(drift, [normal((512, 1152), 2)]).value > 2.5
    assert rms(drift) < 1.2  # what a plain root mean square would have seen


def test_drift_without_a_floor_is_infinite_and_no_drift_is_zero():
    zero = torch.zeros(4, dtype=torch.float64)
    assert drift_in_floors(torch.ones(4, dtype=torch.float64), [zero]).value == float("inf")
    assert drift_in_floors(zero, [zero]).value == 0.0
    assert drift_in_floors(torch.zeros(0, dtype=torch.float64), []).value == 0.0


@given(st.floats(1e-30, 1e30), st.integers(0, 50))
@settings(max_examples=40)
def test_rho_does_not_depend_on_the_unit(scale, seed):
    drift, noise = normal((6, 7), seed), normal((6, 7), seed + 1)
    plain = drift_in_floors(drift, [noise]).value
    assert drift_in_floors(drift * scale, [noise * scale]).value == pytest.approx(plain, rel=1e-9)


def test_floors_of_two_sides_add_in_squares():
    drift, n = normal((64, 64), 1), normal((64, 64), 2)
    one, two = drift_in_floors(drift, [n]), drift_in_floors(drift, [n, n])
    assert two.whole == pytest.approx(one.whole / 2**0.5)


def test_lifted_drift_finds_one_wrong_channel():
    a = normal((256, 32), 1)
    b = a.clone()
    b[:, 5] *= 1 + 1e-9
    found = lifted_drift(a, b, None, relative=1e-11, multiple=100.0)
    assert found.value > found.limit
    assert found.place == "axis 1, index 5"


@pytest.mark.parametrize("size", [1e-200, 1e200, 1e300])
def test_numbers_whose_squares_leave_float64_are_measured_all_the_same(size):
    a = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64) * size
    assert lifted_drift(a, a.clone(), None, relative=1e-13, multiple=100.0).value == 0.0
    found = lifted_drift(a, a * 1.25, None, relative=1e-13, multiple=100.0)
    assert found.value == pytest.approx(0.25)
    noise = 2.0**-20 * a
    assert drift_in_floors(noise, [noise]).whole == pytest.approx(1.0)
    assert rms(a) == pytest.approx(size * math.sqrt((1 + 0.25 + 0.0625) / 3))


def test_lifted_drift_of_float64_rounding_is_within_its_limit():
    a = normal((256, 32), 1)
    b = a * (1 + 2.0**-52 * normal((256, 32), 2))
    found = lifted_drift(a, b, None, relative=1e-11, multiple=100.0)
    assert 0 < found.value <= found.limit == 1e-11


def test_a_graph_with_a_large_float64_floor_gets_a_wider_limit():
    a = normal((256, 32), 1)
    noise = normal((256, 32), 3, 1e-10)
    found = lifted_drift(a, a + normal((256, 32), 4, 1e-10), noise, relative=1e-11, multiple=100.0)
    assert found.value <= found.limit
    assert found.limit > 1e-9


def test_a_channel_that_cancels_to_zero_is_judged_on_the_tensors_scale():
    a = normal((256, 32), 1)
    a[:, 3] = 1e-17
    b = a.clone()
    b[:, 3] = -2e-17
    found = lifted_drift(a, b, None, relative=1e-11, multiple=100.0)
    assert found.value <= found.limit


def test_shared_sentinels_do_not_drown_the_rest():
    a = normal((4, 4), 1)
    a[0, 0], a[1, 1], a[2, 2] = float("-inf"), torch.finfo(torch.float32).min, torch.finfo(torch.float16).min
    b = a.clone()
    b[3, 3] += 1e-6
    assert int(shared_sentinels(a, b).sum()) == 3
    found = lifted_drift(a, b, None, relative=1e-11, multiple=100.0)
    assert 1e-8 < found.value < 1e-5
    # The twin: a sentinel on one side only is a drift.
    b[1, 1] = 0.0
    assert lifted_drift(a, b, None, relative=1e-11, multiple=100.0).value > 0.5


def parallel(axis, seed, scale=1.0):
    """Noise of a table divided by one number per slice: all elements of a slice are off by the same factor."""
    shape = [1, 1, 1]
    shape[axis] = 40
    return normal((40, 40, 40), 7) * normal(shape, seed, scale)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sides", [1, 2])
def test_an_error_that_a_slice_shares_is_one_number_and_may_be_anything(axis, sides):
    ratios = [
        drift_in_floors(parallel(axis, s), [parallel(axis, s + 99 + 50 * k) for k in range(sides)]).value
        for s in range(20)
    ]
    assert max(ratios) <= 1.5


def test_a_slice_far_outside_what_its_neighbours_share_is_seen():
    drift = parallel(1, 1)
    drift[:, 7] += 40.0 * normal((40, 40, 40), 7)[:, 7]
    assert drift_in_floors(drift, [parallel(1, 2)]).value > 2.5


def test_elements_with_errors_of_their_own_keep_a_slice_as_sharp_as_before():
    drift = normal((400, 64), 1)
    drift[:, 5] *= 4.0
    assert drift_in_floors(drift, [normal((400, 64), 2)]).value > 2.5
    twice = drift[:, 5].clone()
    drift[:, 5] = normal((400,), 3) + 4.0 * twice / rms(twice)
    assert drift_in_floors(drift, [normal((400, 64), 2)]).value > 2.5


def test_a_softmax_along_a_long_first_axis_is_one_program_in_any_order_of_its_sums():
    x = normal((4000, 64), 3).float()

    def plain(v):
        return torch.softmax(v, 0)

    def running(v):
        e = torch.exp(v)
        return e / e.cumsum(0)[-1:]

    for pair in ((plain, running), (running, plain)):
        found = ds.compare(*pair, x, explain=False)
        assert found.verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING), found.reason


@pytest.mark.parametrize("strange", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_on_one_side_is_infinitely_far_whichever_side_it_is(strange: float):
    plain = torch.ones(3, 4, dtype=torch.float64)
    other = plain.clone()
    other[1, 2] = strange
    for pair in ((plain, other), (other, plain)):
        found = lifted_drift(*pair, None, relative=1e-13, multiple=100.0)
        assert found.value == math.inf
        assert found.limit == 1e-13
    assert lifted_drift(other, other.clone(), None, relative=1e-13, multiple=100.0).value == 0.0


@pytest.mark.parametrize(("column", "wrong"), [(1e-2, 1.0), (1.0, 1e-3)])
def test_a_slice_of_small_numbers_decides_and_the_size_told_is_that_of_the_whole(column: float, wrong: float):
    """One column is wrong: of small numbers, where the worst slice is not the size of the outputs, or like others."""
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))
    sizes = torch.tensor([1.0, 1.0, column, 1.0, 1.0])
    edit = torch.tensor([1.0, 1.0, 1.0 + wrong, 1.0, 1.0])
    c = ds.compare(lambda v: v * sizes, lambda v: v * sizes * edit, x, isolate=False)
    a, b = (x * sizes).double(), (x * sizes * edit).double()
    whole = float((b - a).square().mean().sqrt() / a.square().mean().sqrt())
    output = c.outputs[0]
    assert c.verdict == "DIFFERENT"
    assert output.lifted == pytest.approx(wrong, rel=1e-3)
    assert output.lifted_size == pytest.approx(whole, rel=1e-3)
    assert share(output.lifted_size, "their") in str(c)
    assert share(wrong, "their") not in str(c)
    # A table and what a finding has measured say the number that the sentence says.
    pytest.importorskip("pandas", exc_type=ImportError)  # which refuses an older numpy
    assert list(c.to_pandas()["lifted"]) == [output.lifted_size]
    assert {f.evidence.get("lifted", output.lifted_size) for f in c.findings if not f.note} == {output.lifted_size}


@given(st.lists(st.integers(1, 5), max_size=4), st.booleans())
@settings(deadline=None, max_examples=60)
def test_slices_along_every_axis_have_their_own_mean(shape, turned):
    square = normal(shape, 1).square()
    square = square.mT if turned and len(shape) > 1 else square
    for axis, found in enumerate(_slice_means(square)):
        rest = [k for k in range(square.ndim) if k != axis]
        size = square.shape[axis]
        wanted = square.sum(rest) * size / square.numel() if rest else square
        torch.testing.assert_close(found, wanted if 1 < size < square.numel() else torch.empty(0), rtol=1e-13, atol=0)
