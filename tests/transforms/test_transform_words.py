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
