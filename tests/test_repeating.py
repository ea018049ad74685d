"""Each side is run twice: a side that does not repeat itself is not called another function."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds

X = torch.randn(4, 1000, generator=torch.Generator().manual_seed(3))


class Drawing:
    """Adds new random numbers at every call."""

    def __call__(self, x):
        return x.sin() + torch.rand(())


class Unsteady:
    """Adds its terms in another order at every second call, as atomic additions on a GPU do."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x.exp().sum(1) if self.calls % 2 else x.exp().flip(1).cumsum(1)[:, -1]


class Growing:
    """Returns one more output at every call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return [x.sin()] * self.calls


def test_b_that_draws_is_inconclusive_and_named():
    record = ds.compare(lambda x: x.sin(), Drawing(), X)
    assert record.verdict == "INCONCLUSIVE"
    assert record.reason.startswith("B does not repeat itself")
    assert "N014" in [f.code for f in record.findings]


def test_a_that_draws_is_named_when_the_sides_are_exchanged():
    record = ds.compare(Drawing(), lambda x: x.sin(), X)
    assert record.verdict == "INCONCLUSIVE"
    assert record.reason.startswith("A does not repeat itself")


def test_another_function_that_repeats_itself_is_still_different():
    assert ds.compare(lambda x: x.sin(), lambda x: x.sin() + 0.25, X).verdict == "DIFFERENT"


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_changing_order_of_sums_widens_the_floor_and_is_said(exchanged):
    sides = [lambda x: x.exp().sum(1), Unsteady()]
    record = ds.compare(*(reversed(sides) if exchanged else sides), X)
    assert record.verdict in ("IDENTICAL", "ROUNDING")
    notes = [f for f in record.findings if f.code == "N015"]
    assert [f.evidence["side"] for f in notes] == ["A" if exchanged else "B"]


def test_integers_that_change_are_inconclusive_too():
    record = ds.compare(lambda x: x.argmax(1), lambda x: torch.randint(0, 10**9, (4,)), X)
    assert record.verdict == "INCONCLUSIVE"
    assert "B does not repeat itself" in record.reason


def test_integers_that_stay_are_different():
    assert ds.compare(lambda x: x.argmax(1), lambda x: x.argmin(1), X).verdict == "DIFFERENT"


def test_a_number_of_outputs_that_changes_is_no_crash():
    for pair, side in (((Growing(), lambda x: [x.sin()]), "A"), ((lambda x: [x.sin()], Growing()), "B")):
        record = ds.compare(*pair, X)
        assert record.verdict == "INCONCLUSIVE"
        assert f"{side} does not repeat itself: two runs on the same inputs differ (1 output, then 2)" in record.reason
