"""The judge is a table: evidence in, verdict and finding code out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.comparison.judge import OutputEvidence, judge, told_floors
from driftscope.comparison.measuring.spread import Ratio
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.records.verdict import FailOn, Verdict, worst

SAME = Ratio(1e-15, limit=1e-11)
OTHER = Ratio(3e-5, limit=1e-11)
CHAOS = Ratio(1e-7, limit=1e-3)


def evidence(**known):
    return OutputEvidence(**{"kind": "value", "delta": SAME, "rho": Ratio(0.6), **known})


CASES = [
    ("same bits", {"same_bits": True, "kind": "same"}, "IDENTICAL", ""),
    ("same bits, other function", {"same_bits": True, "kind": "same", "delta": OTHER}, "IDENTICAL", "N016"),
    ("ordinary rounding", {}, "ROUNDING", ""),
    ("just ordinary", {"rho": Ratio(1.5)}, "ROUNDING", ""),
    ("unusually large", {"rho": Ratio(1.6)}, "ROUNDING", "N013"),
    ("just large", {"rho": Ratio(2.5)}, "ROUNDING", "N013"),
    ("cheaper arithmetic named", {"rho": Ratio(2.6), "cheaper": "TF32 multiplication in B"}, "PRECISION", "N003"),
    ("kernels within their own", {"rho": Ratio(2.6), "within": True, "beside": "the norm"}, "ROUNDING", "N013"),
    ("nothing explains it", {"rho": Ratio(2.6)}, "DIFFERENT", "R003"),
    ("ill-conditioned: only the lift decides", {"rho": Ratio(2.6), "ill": 0.2}, "ROUNDING", "N012"),
    ("other function", {"delta": OTHER}, "DIFFERENT", "N001"),
    ("other function, hidden by rounding", {"delta": OTHER, "rho": Ratio(0.1)}, "DIFFERENT", "N001"),
    ("lift is NaN", {"delta": Ratio(math.nan, limit=1e-11)}, "DIFFERENT", "N001"),
    ("chaotic", {"delta": CHAOS}, "INCONCLUSIVE", "N012"),
    ("chaotic but the same bits", {"delta": CHAOS, "same_bits": True, "kind": "same"}, "IDENTICAL", ""),
    ("missing output", {"kind": "structure", "detail": "missing"}, "DIFFERENT", "N007"),
    ("shape", {"kind": "shape", "detail": "(3,) against (1,)"}, "DIFFERENT", "N008"),
    ("all NaN", {"kind": "same", "same_bits": True, "all_nan": True}, "INCONCLUSIVE", "N005"),
    ("NaN on one side", {"kind": "nan", "detail": "7 NaN in B only"}, "DIFFERENT", "N006"),
    ("overflow", {"kind": "nan", "overflow": "1.2e5 exceeds float16"}, "PRECISION", "N004"),
    ("overflow of another function", {"kind": "nan", "overflow": "1.2e5", "delta": OTHER}, "DIFFERENT", "N006"),
    ("equal integers", {"floating": False, "same_bits": True, "kind": "same"}, "IDENTICAL", ""),
    ("integers differ", {"floating": False, "detail": "3 of 8 differ"}, "DIFFERENT", "N010"),
    ("tie within noise", {"floating": False, "detail": "1 of 8 differs", "tie": True}, "ROUNDING", "N011"),
    ("int64 against int32", {"floating": False, "kind": "dtype", "detail": "int64, int32"}, "DIFFERENT", "N009"),
    (
        "the same integers, another width",
        {"floating": False, "kind": "width", "detail": "int64, int32"},
        "IDENTICAL",
        "N009",
    ),
    ("B not lifted, ordinary", {"delta": None, "cannot_b": "Op X"}, "ROUNDING", "R005"),
    ("B not lifted, too large", {"delta": None, "cannot_b": "Op X", "rho": Ratio(40.0)}, "DIFFERENT", "R003"),
    ("B not lifted, explained", {"delta": None, "rho": Ratio(40.0), "cheaper": "TF32"}, "PRECISION", "N003"),
    ("A not lifted", {"delta": None, "rho": None, "cannot_a": "Op X"}, "INCONCLUSIVE", "R004"),
    ("A run in float64", {"cannot_a": "X"}, "ROUNDING", ""),
    ("A run in float64, another function", {"cannot_a": "X", "delta": Ratio(1e-3, limit=1e-13)}, "DIFFERENT", "N001"),
    ("amplifies float64 rounding, the same bits", {"delta": Ratio(0.0, limit=1e-2)}, "ROUNDING", ""),
    ("A not lifted but the same bits", {"delta": None, "cannot_a": "X", "same_bits": True}, "IDENTICAL", ""),
    ("random", {"random": "A does not repeat itself"}, "INCONCLUSIVE", "N014"),
    ("nothing known", {"delta": None, "rho": None}, "INCONCLUSIVE", "R005"),
]


@pytest.mark.parametrize(("known", "verdict", "code"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_verdict_table(known, verdict, code):
    found = judge(evidence(**known))
    assert (found.verdict, found.code) == (verdict, code)
    assert found.reason


def test_a_reason_names_the_numbers_it_decided_by():
    assert "3.0e-05" in judge(evidence(delta=OTHER)).reason
    assert "0.6 floors" in judge(evidence(rho=Ratio(0.55, whole=0.6))).reason
    assert "axis 1, index 7" in judge(evidence(rho=Ratio(9.0, "axis 1, index 7"))).reason


def test_a_comparison_is_as_bad_as_its_worst_output():
    assert worst([Verdict.ROUNDING, Verdict.INCONCLUSIVE, Verdict.PRECISION]) is Verdict.INCONCLUSIVE
    assert worst([]) is Verdict.IDENTICAL


@pytest.mark.parametrize(
    ("fail_on", "failing"),
    [
        ("different", {"DIFFERENT"}),
        ("precision", {"PRECISION", "INCONCLUSIVE", "DIFFERENT"}),
        ("rounding", {"ROUNDING", "PRECISION", "INCONCLUSIVE", "DIFFERENT"}),
        ("never", set()),
    ],
)
def test_fail_on_table(fail_on, failing):
    assert {v.value for v in Verdict if FailOn(fail_on).fails(v)} == failing


def test_thresholds_are_printed_in_full():
    assert set(THRESHOLDS.to_dict()) == set(THRESHOLDS.__slots__)


@pytest.mark.parametrize(
    ("replay", "words"),
    [
        ({"correlation": 0.97, "rest": 0.8}, "explained by"),
        ({"correlation": 0.97, "rest": 1.8}, "consistent with"),
        ({"correlation": 0.85, "rest": 0.8}, "consistent with"),
        ({}, "consistent with"),
    ],
)
def test_a_cause_is_a_fact_only_with_its_replay(replay, words):
    """The law behind every sentence: the judge alone writes "explained by", and asks for the replay first."""
    evidence = OutputEvidence(
        "value", delta=Ratio(0.0, limit=1e-11), rho=Ratio(40.0), cheaper="TF32 in B", replay=replay
    )
    assert words in judge(evidence).reason


@given(value=st.floats(0.0, 10.0), more=st.floats(1.0, 5.0))
def test_the_floors_that_are_told_do_not_contradict_the_verdict(value: float, more: float) -> None:
    rho = Ratio(value, whole=value * more)
    told = told_floors(rho)
    assert [told <= t for t in (THRESHOLDS.rounding, THRESHOLDS.large)] == [
        value <= t for t in (THRESHOLDS.rounding, THRESHOLDS.large)
    ]
    reason = judge(OutputEvidence("value", delta=SAME, rho=rho, within=True)).reason
    assert ("chance" in reason) == (told != rho.whole)
