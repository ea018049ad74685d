"""Constants that a runtime computed from stored ones: believed where the computation gives the very bits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper

from driftscope.lift.onnx import stored
from driftscope.lift.onnx.contrib.nchwc import blocked_filter
from driftscope.lift.reconcile.arrangements import arranged
from driftscope.lift.reconcile.matching import WeightIndex, as_stored
from driftscope.lift.reconcile.scalars import numbers, scalar_candidates
from driftscope.lift.steps import Constant, Origin
from driftscope.records.finding import Where

HALF, FLOAT = torch.float16, torch.float32


def constant(
    value: float | torch.Tensor, fmt: torch.dtype, origin: Origin = Origin.WEIGHT, name: str = "c"
) -> Constant:
    return Constant(name, torch.as_tensor(value, dtype=torch.float64).to(fmt), origin, Where())


def literal(value: float) -> Constant:
    return Constant("literal", torch.tensor(value, dtype=torch.float64), Origin.LITERAL, Where())


def candidates(stored: float, fmt: torch.dtype, *literals: float) -> list[float]:
    return [n.value for n in scalar_candidates(constant(stored, fmt), numbers(map(literal, literals)))]


def test_reciprocal_of_a_rounded_number_is_that_reciprocal():
    native = float(1 / torch.tensor(0.7, dtype=HALF).double())
    assert abs(native - 1 / 0.7) > 2.0**-12
    assert candidates(native, HALF, 0.7) == [pytest.approx(1 / 0.7, rel=1e-15)]


def test_product_of_two_rounded_scales_is_the_product():
    root = 8**-0.25
    native = float(torch.tensor(root, dtype=FLOAT) ** 2)
    assert candidates(native, FLOAT, root, 0.3) == [pytest.approx(8**-0.5, rel=1e-15)]


def test_two_ways_of_writing_one_number_are_not_ambiguous():
    # 1 / sqrt(8) and 64 ** -0.25 differ in the last bit of float64.
    native = float(1 / torch.tensor(8**0.5, dtype=FLOAT).double())
    assert candidates(native, FLOAT, 8**0.5, 64.0) == [pytest.approx(8**-0.5, rel=1e-15)]


@pytest.mark.parametrize("ulps", [2, 3, -2])
def test_a_number_two_ulps_off_is_another_number(ulps: int):
    native = float(1 / torch.tensor(0.7, dtype=HALF).double())
    assert candidates(native + ulps * 2.0**-10, HALF, 0.7) == []


def test_a_cast_constant_has_the_format_it_is_stored_in():
    stored = constant(torch.tensor([0.1, 0.7]), HALF, name="stored")
    widened = Constant("cast", stored.value.float(), Origin.COMPUTED, Where())
    assert as_stored([stored, widened])[1].value.dtype is HALF


def test_a_constant_with_other_bits_keeps_its_format():
    stored = constant(torch.tensor([0.1, 0.7]), HALF, name="stored")
    computed = constant(torch.tensor([0.1, 0.7]), FLOAT, Origin.COMPUTED, "computed")
    weight = constant(stored.value, FLOAT, name="weight")
    assert [c.value.dtype for c in as_stored([stored, computed, weight])] == [HALF, FLOAT, FLOAT]


def test_index_holds_the_same_numbers_in_another_format():
    weight = torch.tensor([0.1, 0.7]).half()
    assert WeightIndex([constant(weight, FLOAT)]).holds(weight)
    assert WeightIndex([constant(weight, HALF)]).holds(weight.float().flip(0))
    assert not WeightIndex([constant(torch.tensor([0.1, 0.7]), FLOAT)]).holds(weight)


@pytest.mark.parametrize(("channels", "paired"), [(3, False), (16, True)])
def test_a_folded_filter_is_recognised_in_blocks_with_padded_channels(channels: int, paired: bool):
    weight = torch.randn(8, channels, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stored = blocked_filter(F.pad(weight, (0, 0, 0, 0, 0, 0, 0, 8)), 16, paired)
    assert any(torch.equal(a, stored) for a in arranged(weight, stored.shape))
    assert not any(torch.equal(a, stored) for a in arranged(weight.flip(0), stored.shape))


@pytest.mark.parametrize("left", [0, 1 << 30], ids=["no room", "room"])
def test_a_constant_that_somebody_holds_is_not_decoded_again(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    real = stored.decode
    monkeypatch.setattr(stored, "decode", lambda proto, name, *a: decoded.append(name) or real(proto, name, *a))
    weight = torch.arange(1 << 15, dtype=FLOAT)
    constant = stored.Stored("w", numpy_helper.from_array(weight.numpy(), "w"), room=stored.Room(left))
    held = constant.load().data
    assert constant.load().data is held
    assert decoded == ["w"]
    del held
    assert torch.equal(constant.load().data, weight)
    assert decoded == ["w"] * (1 if left else 2)  # where there is no room nothing is kept
