"""What a finding of a transform says of the tensor and of why it is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import driftscope as ds


def chosen(x):
    return x[x > 0].sum()


def first(x):
    if x[0] > 0:
        return x
    return -x


def through_numpy(x):
    return torch.from_numpy(x.detach().numpy() * 2)


def through_a_number(x):
    return x * x.norm().item()


def found(function: Callable[..., torch.Tensor], transform: str) -> tuple[str, str]:
    report = ds.check_transforms(function, torch.randn(4, 5), transforms=(transform,))
    one = next(f for f in report.findings if f.transform == transform and f.code in ("T009", "T010", "T011"))
    return one.what, one.why


@pytest.mark.parametrize(("function", "transform", "what", "why"), [
    (chosen, "vmap", "`x[x > 0]`: `x` is mapped over 3 examples, each of shape (5,)", "The size of the result"),
    (first, "vmap", "`x[0] > 0`: `x[0] > 0` is mapped over 3 examples: ", "Python must choose one way"),
    (through_numpy, "vmap", "`x.detach().numpy()`: `x.detach()` is mapped", "What numpy computes is outside of torch"),
    (through_numpy, "grad", "grad refuses `x.detach().numpy()`", "What numpy computes is outside of torch"),
    (through_a_number, "vmap", "`x.norm()` is mapped over 3 examples: ", "A Python number is one value"),
])  # fmt: skip
def test_the_tensor_that_is_mapped_and_the_reason_are_those_of_the_place(function, transform, what, why) -> None:
    said = found(function, transform)
    assert what in said[0]
    assert said[1].startswith(why)


KEPT = torch.zeros(5)


def writes_outside(x):
    KEPT.add_(x)
    return x * 2


def writes_its_argument(x):
    x.add_(1)
    return x * 2


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda y: y.sin() * y, x, use_reentrant=False)


def past_data(x):
    return (x.data * x).sum()


def norm_of_nothing(x):
    return (x * 0).norm()


@pytest.mark.parametrize(("function", "transform", "why", "fix"), [
    (writes_outside, "vmap", "is shared by all examples: the loop writes to it in turn", "return the new value"),
    (writes_outside, "grad", "exists outside the function, and grad does not follow", "return the new value"),
    (writes_its_argument, "grad", "`x` is what is differentiated, and autograd", "clone `x` first"),
    (checkpointed, "grad", "Hooks on saved tensors", "call the function directly"),
    (past_data, "hessian", "Under hessian the derivative flows through `.data` as well", ".detach()"),
    (norm_of_nothing, "hessian", "Forward and reverse mode each have a rule", "use an equivalent operator"),
])  # fmt: skip
def test_what_speaks_of_examples_is_said_of_vmap_alone(function, transform, why, fix) -> None:
    report = ds.check_transforms(function, torch.randn(3, 5), transforms=(transform,))
    one = next(f for f in report.findings if f.transform == transform and f.code not in ("T020", "T035"))
    assert why in one.why
    assert fix in one.fix


def test_the_side_that_has_no_finite_derivative_is_named() -> None:
    """Plain autograd gives NaN at the norm of zeros, forward over reverse does not: torch's rule there is not wrong."""
    report = ds.check_transforms(norm_of_nothing, torch.randn(3, 5), transforms=("hessian",))
    assert report.first is not None
    assert report.first.what == "plain autograd gives NaN or infinity where hessian gives finite values"


def takes_from_its_argument(x, values):
    values.pop()
    return x.sum(0)


def takes_from_outside(x):
    OUTSIDE.pop()
    return x.sum(0)


OUTSIDE = [1, 2, 3, 4]


def test_an_argument_that_is_changed_is_called_by_its_name_and_is_not_to_become_one() -> None:
    report = ds.check_transforms(takes_from_its_argument, torch.randn(3, 1), [0, 1, 2, 3], in_dims=(0, None),
                                 transforms=("vmap",))  # fmt: skip
    first = report.first
    assert first is not None
    assert (first.code, first.where.expression) == ("T002", "values.pop()")
    assert first.what == "the length of `values` is 4 after vmap, 1 after the loop"
    assert first.fix.startswith("change a copy of `values` and return it")
    # Twin: what lives outside is to be given as an argument.
    outside = ds.check_transforms(takes_from_outside, torch.randn(3, 1), transforms=("vmap",)).first
    assert outside is not None
    assert outside.fix.startswith("pass `OUTSIDE` as an argument")


def test_zeros_of_another_sign_are_no_distance() -> None:
    report = ds.check_transforms(lambda x: -(x * 0.0), torch.randn(3, 2), transforms=("vmap", "jacfwd"))
    assert all("at most 0 apart" not in run.reason for run in report.runs)


# fmt: off
FIRST = lambda v: 1.0 if v[0] > 0 else 0.5; SECOND = lambda v: v.detach().numpy() * 2; OUTER = lambda v: (lambda w: float(w.exp().sum()))(v)  # noqa: E501, E702, E731
# fmt: on


@pytest.mark.parametrize(
    ("function", "expression"),
    [
        (FIRST, "1.0 if v[0] > 0 else 0.5"),
        (SECOND, "v.detach().numpy()"),
        (OUTER, "(lambda w: float(w.exp().sum()))(v)"),
    ],
)
def test_of_several_lambdas_of_a_line_the_right_one_is_quoted(function, expression) -> None:
    report = ds.check_transforms(function, torch.randn(5, 4, dtype=torch.float64), transforms=("jacrev",))
    (finding,) = report.findings
    assert f"`{expression}`" in finding.what


@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian"])
def test_complex_numbers_are_refused_as_such_and_not_for_an_operation(transform) -> None:
    def energy(z):
        return (z * z).real.sum()

    def of_pairs(pairs):
        return energy(torch.view_as_complex(pairs))

    z = torch.randn(3, 4, dtype=torch.complex64)
    report = ds.check_transforms(energy, z, transforms=(transform,))
    assert report.findings[0].why.endswith("takes real arguments alone, and one is complex.")
    assert "torch.view_as_real(z)" in report.findings[0].fix
    followed = ds.check_transforms(of_pairs, torch.view_as_real(z), transforms=(transform,))
    assert followed.outcomes[transform] in ("same", "rounding")


def test_an_operation_without_a_rule_is_still_said_to_have_none() -> None:
    def sparse(x):
        return x.to_sparse().to_dense()

    report = ds.check_transforms(sparse, torch.randn(3, 4), transforms=("vmap",))
    assert "has no rule for vmap" in report.findings[0].why
