"""Verdicts are ordered by severity, also against their names."""

from __future__ import annotations

import itertools

import pytest

import driftscope as ds

ORDER = ["IDENTICAL", "ROUNDING", "PRECISION", "INCONCLUSIVE", "DIFFERENT"]


@pytest.mark.parametrize(("milder", "graver"), itertools.combinations(ORDER, 2))
def test_verdicts_are_ordered_by_severity_and_not_by_the_alphabet(milder, graver):
    one, other = ds.Verdict(milder), ds.Verdict(graver)
    for x, y in ((one, other), (one, graver)):
        assert x < y
        assert x <= y
        assert not x > y
        assert not x >= y
    assert one <= milder
    assert one >= milder
    assert max(one, other) is other
    assert sorted([other, one]) == [one, other]


def test_what_is_no_verdict_has_no_place_in_the_order():
    with pytest.raises(ValueError, match="MAYBE"):
        assert ds.Verdict.ROUNDING < "MAYBE"
