"""ONNX's own node test cases through the lifted evaluator: the ground truth of its operators."""

from __future__ import annotations

import pytest
import torch
from onnx_coverage import as_constants, can_be_constant, cases, is_floating, measure, reason, verdict

SAMPLE = 7  # every seventh case in the default run


@pytest.mark.parametrize("start", range(0, 1900, 475))
@pytest.mark.sampled(1)
def test_a_sample_of_the_cases_passes(start: int) -> None:
    torch.set_num_threads(1)
    names = list(cases())[start : start + 475 : SAMPLE]
    failures = {name: why for name in names if not reason(name) and (why := verdict(cases()[name]))}
    assert failures == {}


def test_a_sample_of_the_cases_passes_when_folded_natively() -> None:
    names = [n for n in list(cases())[3 :: 3 * SAMPLE] if can_be_constant(cases()[n]) and "fp16" not in n]
    failures = {name: why for name in names if not reason(name) and (why := verdict(as_constants(cases()[name])))}
    assert failures == {}
    assert len(names) > 50


def test_a_wrong_expectation_is_noticed() -> None:
    case = cases()["test_gelu_default_1"]
    assert verdict(case) == ""
    inputs, outputs = case.data_sets[0]
    wrong = case.__class__(**{**case.__dict__, "data_sets": [(inputs, [1.01 * y for y in outputs])]})
    assert verdict(wrong) != ""


@pytest.mark.slow
def test_every_case_passes_but_the_known_ones_and_all_that_onnxruntime_passes() -> None:
    outcomes = measure()
    unexpected = {o.name: o.ours for o in outcomes if o.ours and not reason(o.name)}
    assert unexpected == {}
    floating = [o for o in outcomes if is_floating(cases()[o.name])]
    passed = sum(not o.ours for o in floating)
    assert passed >= 0.98 * len(floating)
    assert [o.name for o in floating if o.ours and not o.runtime] == []
