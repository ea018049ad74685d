"""What a derivative of a function that is zero loses is rounding, however many steps it takes; what stays is wrong."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds
from driftscope.transforms.examination import Examination, subject_of
from driftscope.transforms.naming import levels_of
from driftscope.transforms.outcomes import _float_pairs, _meet_in_float64

X = torch.randn(6, 3, 3, generator=torch.Generator().manual_seed(1))


def vanishing(a):
    return torch.det(a @ a.T) - torch.det(a) ** 2


class _TooSteep(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        return slope

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * (1 + 1e-3)


def met(function, name="hessian"):
    examination = Examination(subject_of(function, (X,), 0, "error"))
    examination.begin()
    question = examination.question(name, levels_of(name))
    apart = _float_pairs(question.plain.result, question.lifted.result)
    return _meet_in_float64(question, examination, apart)


def test_both_meet_in_float64_and_what_is_off_does_not():
    assert met(vanishing)
    assert not met(lambda a: vanishing(a) + _TooSteep.apply(a).sum() ** 2)
    assert not met(lambda a: _TooSteep.apply(a.float()).square().sum(), "jacfwd")


@pytest.mark.slow
def test_a_hessian_of_more_steps_than_are_lifted_is_rounding():
    assert ds.check_transforms(vanishing, X, transforms=("hessian",)).outcomes == {"hessian": "rounding"}


def test_a_function_that_raises_by_itself_is_told_once():
    report = ds.check_transforms(lambda x, w: x @ w, torch.randn(4, 3), torch.randn(4, 5, 2))
    assert set(report.outcomes.values()) == {"plain-refuses"}
    assert [finding.cause for finding in report.findings] == ["T031"]
    assert set(report.findings[0].transforms) == set(report.outcomes)
