"""Constants that are the same number, rounded, are matched; constants that are another number are not."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.lift.reconcile.matching import (  # fmt: skip
    Constant,
    WeightIndex,
    fingerprint,
    match_joined,
    match_weight,
    ulp,
)
from driftscope.lift.reconcile.scalars import Candidates, numbers, scalar_candidates, significant_bits
from driftscope.lift.steps import Origin
from driftscope.records.finding import Where

FORMATS = (torch.float32, torch.float16, torch.bfloat16)


def constant(value, name="c", origin=Origin.WEIGHT, dtype=None):
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype or torch.float64)
    return Constant(name, tensor, origin, Where())


def weights(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", FORMATS)
@given(number=st.floats(1e-4, 1e4))
@settings(max_examples=50)
def test_a_rounded_literal_is_traced_to_what_was_written(dtype, number):
    stored = constant(torch.tensor(number, dtype=torch.float64).to(dtype))
    found = scalar_candidates(stored, numbers([constant(number, "eps")]))
    if float(stored.value) == number:
        assert found == []  # stored exactly: nothing to repair
    else:
        assert [n.value for n in found] == [number]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("factor", [100.0, 1.1, 1.01])
def test_another_epsilon_is_not_matched(dtype, factor):
    stored = constant(torch.tensor(1e-5 * factor, dtype=torch.float64).to(dtype))
    assert not any(n.value == 1e-5 for n in scalar_candidates(stored, numbers([constant(1e-5)])))


def test_an_epsilon_rounded_to_zero_is_never_excused():
    stored = constant(torch.tensor(1e-12, dtype=torch.float64).to(torch.float16))
    assert float(stored.value) == 0.0
    assert scalar_candidates(stored, numbers([constant(1e-12)])) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_split_scale_of_an_attention_is_derived_from_its_width(dtype):
    exact = 32.0**-0.25
    found = scalar_candidates(
        constant(torch.tensor(exact, dtype=torch.float64).to(dtype)), numbers([constant(weights(32, 64))])
    )
    assert exact in [n.value for n in found]


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_a_fingerprint_ignores_order_and_nothing_else(seed):
    w = weights(6, 5, seed=seed)
    shuffled = w.reshape(-1)[torch.randperm(30, generator=torch.Generator().manual_seed(seed))]
    assert fingerprint(w) == fingerprint(w.T) == fingerprint(shuffled)
    changed = w.clone()
    changed[2, 3] = torch.nextafter(changed[2, 3], torch.tensor(math.inf))
    assert fingerprint(w) != fingerprint(changed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "arrange",
    [lambda w: w, lambda w: w.T, lambda w: w.reshape(1, *w.shape), lambda w: torch.cat(list(w.chunk(4))[::-1])],
    ids=["as is", "transposed", "with an axis", "gates in another order"],
)
def test_a_weight_stored_in_a_narrower_format_is_repaired_in_its_own_arrangement(dtype, arrange):
    w = weights(8, 6)
    found = match_weight(constant(arrange(w).to(dtype)), WeightIndex([constant(w, "w")]))
    assert found is not None
    assert torch.equal(found.value, arrange(w).to(torch.float64))


def test_a_weight_rounded_to_less_than_its_own_format_is_not_excused():
    w = weights(8, 6)
    index = WeightIndex([constant(w)])
    through_bfloat16 = w.to(torch.bfloat16).to(torch.float32)
    assert match_weight(constant(through_bfloat16), index) is None
    assert not index.holds(through_bfloat16)
    assert index.holds(w.T)


def test_joined_weights_are_found_piece_by_piece():
    q, k = weights(8, 6, seed=1), weights(8, 6, seed=2)
    index = WeightIndex([constant(q, "q"), constant(k, "k")])
    found = match_joined(constant(torch.cat([q, k]).half()), index)
    assert found is not None
    assert torch.equal(found.value, torch.cat([q, k]).double())
    assert match_joined(constant(torch.cat([q, k + 1e-2]).half()), index) is None


def test_joins_of_joins_are_found():
    parts = [constant(weights(12, seed=k), f"bias_{k}") for k in range(4)]
    stored = torch.stack([torch.cat([p.value for p in parts[:2]]), torch.cat([p.value for p in parts[2:]])]).half()
    found = match_joined(constant(stored), WeightIndex(parts))
    assert found is not None
    assert torch.equal(found.value[1, 12:], parts[3].value.double())


@pytest.mark.parametrize("low", [5.96e-8, 1e-7])
def test_a_converters_clamp_is_excused_element_by_element(low):
    w = weights(64, 8)
    w[3, 1], w[5, 2], w[7, 7] = 3e-9, -4e-8, 2e4
    index = WeightIndex([constant(w, "w")])
    clamped = torch.where(w.abs() < low, w.sign() * low, w).clamp(-1e4, 1e4).half()
    found = match_weight(constant(clamped.T), index)
    assert found is not None
    assert torch.equal(found.value, w.T.double())
    assert "elements of it clamped" in found.partner
    # The twins: another element of that size, another sign, an infinity.
    for place, value in (((0, 0), 1e-7), ((3, 1), -low), ((7, 7), math.inf)):
        other = clamped.clone()
        other[place] = value
        assert match_weight(constant(other.T), index) is None


def test_an_epsilon_that_a_converter_clamped_is_traced():
    pool = numbers([constant(1e-12, "eps"), constant(0.5, "half")])
    stored = constant(torch.tensor(1e-7, dtype=torch.float64).half())
    assert [n.value for n in scalar_candidates(stored, pool)] == [1e-12]
    assert scalar_candidates(constant(torch.tensor(3e-7).half()), pool) == []


@pytest.mark.parametrize("dtype", FORMATS)
def test_half_an_ulp_is_the_limit(dtype):
    for exact in (0.1, 3.3, 1e-3):
        stored = torch.tensor(exact, dtype=torch.float64).to(dtype)
        pool = numbers([constant(exact)])
        assert exact in [n.value for n in scalar_candidates(constant(stored), pool)]
        off = (stored.double() + ulp(stored.double(), dtype)).to(dtype)
        assert exact not in [n.value for n in scalar_candidates(constant(off), pool)]
        assert scalar_candidates(constant(torch.zeros((), dtype=dtype)), pool) == []


def test_a_scale_put_together_from_its_roots_is_known_though_another_number_has_its_value():
    scale = 8**-0.5
    root = torch.tensor(scale**0.5, dtype=torch.float32)
    stored = constant(root * root, "alpha")
    assert float(stored.value) != float(torch.tensor(scale, dtype=torch.float32))
    other, own = constant(scale, "mul_1.other"), constant(scale, "attention.scale")
    for written in ([other, own], [own, other]):
        assert [n.value for n in scalar_candidates(stored, numbers(written))] == [scale]
    assert scalar_candidates(stored, numbers([other])) == []


@pytest.mark.parametrize("factor", [3.87, 0.7, 1.3])
def test_a_scale_put_together_with_a_factor_of_the_query_is_known(factor):
    scale = 128**-0.5
    root = np.sqrt(np.float32(scale))
    made = np.float32(np.float32(factor) * root) * root
    pool = numbers([constant(factor, "mul.other"), constant(scale, "attention.scale")])
    found = scalar_candidates(constant(torch.tensor(float(made), dtype=torch.float32)), pool)
    assert [n.value for n in found] == [pytest.approx(factor * scale, rel=1e-15)]
    off = np.float32(factor * scale * (1 + 1e-6))
    assert scalar_candidates(constant(torch.tensor(float(off), dtype=torch.float32)), pool) == []


@pytest.mark.parametrize("width", [6, 76, 80, 96, 120])
def test_a_scale_that_was_rounded_before_its_root_was_taken(width):
    """Exporters split the scale of attention over query and key: for these widths in float32, one ulp off."""
    scale = width**-0.5
    stored = torch.tensor(float(np.sqrt(np.float32(scale))), dtype=torch.float32)
    assert float(stored) != float(torch.tensor(math.sqrt(scale), dtype=torch.float32))
    step = 2 * (stored.double() - math.sqrt(scale)).sign().float() * 2.0**-25
    for written, meant in (
        (constant(scale, "attention.scale"), math.sqrt(scale)),
        (constant(math.sqrt(scale), "mul.other"), math.sqrt(scale)),
    ):
        found = [n.value for n in scalar_candidates(constant(stored), numbers([written]))]
        assert found == [pytest.approx(meant, rel=1e-15)]
        assert scalar_candidates(constant(stored + step), numbers([written])) == []
    # The twin: another number is no root of a scale, and one ulp is one ulp.
    off = torch.tensor(0.3, dtype=torch.float32)
    off += ulp(off.double(), torch.float32).float()
    assert scalar_candidates(constant(off), numbers([constant(0.3, "mul.other")])) == []


@pytest.mark.parametrize("dtype", [*FORMATS, torch.float64])
@given(number=st.floats(-1e5, 1e5), off=st.sampled_from([1.0, 1.0 + 2.0**-8, 1.03]))
@settings(max_examples=100)
def test_what_cannot_be_written_is_told_without_looking_for_it(dtype, number, off):
    written = Candidates([constant(number), constant(1e-12)], single=True)
    stored = torch.tensor(number * off, dtype=torch.float64).to(torch.float32 if dtype is torch.float64 else dtype)
    found = any(written.of(constant(sign * stored.to(dtype)), derived=False) for sign in (1, -1))
    assert written.may_be_written(float(stored), dtype) or not found
    if off == 1.03 and dtype is not torch.bfloat16 and abs(number) > 1e-3:
        assert not written.may_be_written(float(stored), dtype) or dtype is torch.float16  # one that it clamps to


@pytest.mark.parametrize(("number", "bits"), [(0.0, 0), (0.5, 1), (3.0, 2), (0.1, 52), (math.inf, 0), (-math.inf, 0)])
def test_bits_of_a_significand(number, bits):
    assert significant_bits(number) == bits
