"""Convolutions in float64: depthwise ones by sums of shifted images, all others by torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from driftscope.lift.formulas import convolutions
from driftscope.lift.formulas.convolutions import convolution_squares, convolve

# Channels, what each is multiplied to, kernel, stride, padding, dilation; of one to three spatial axes.
DEPTHWISE = {
    "scale": (6, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    "usual": (6, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    "strided": (6, 1, (5, 3), (2, 3), (2, 1), (1, 1)),
    "dilated": (6, 1, (3, 3), (1, 2), (2, 0), (2, 1)),
    "one axis": (4, 1, (4,), (1,), (3,), (1,)),
    "three axes": (3, 1, (2, 3, 1), (1, 1, 2), (1, 1, 0), (1, 1, 1)),
    "multiplied, left to torch": (4, 3, (3, 3), (1, 1), (1, 1), (1, 1)),
}


def drawn(channels: int, times: int, kernel: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, channels, *[9] * len(kernel)), (channels * times, 1, *kernel), (channels * times,)
    x, w, b = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return x, w, b


@pytest.mark.parametrize("case", DEPTHWISE.values(), ids=DEPTHWISE)
def test_a_depthwise_convolution_is_torchs(case: tuple, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[type-arg]
    channels, times, kernel, stride, padding, dilation = case
    x, w, b = drawn(channels, times, kernel)
    with monkeypatch.context() as patched:
        patched.setattr(convolutions, "_SMALL", 0)
        expected = convolve(x, w, b, (stride, padding, dilation), channels)
    for bias in (b, None):
        got = convolve(x, w, bias, (stride, padding, dilation), channels)
        wanted = expected if bias is not None else expected - b.reshape(-1, *[1] * len(kernel))
        assert got.shape == expected.shape
        assert torch.allclose(got, wanted, rtol=1e-13, atol=1e-13)


AXIS = st.tuples(*(st.integers(least, most) for least, most in ((1, 8), (1, 4), (1, 3), (0, 2), (1, 2))))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 2), st.lists(AXIS, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_any_depthwise_convolution_is_torchs(batch: int, axes: list[tuple[int, ...]], biased: bool, last: bool) -> None:
    sizes, kernel, stride, padding, dilation = (list(each) for each in zip(*axes, strict=True))
    assume(all(n + 2 * p >= d * (k - 1) + 1 for n, k, _, p, d in axes))
    generator = torch.Generator().manual_seed(len(axes))
    shapes = (batch, 3, *sizes), (3, 1, *kernel), (3,)
    x, w, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    if last and len(axes) == 2:
        x = x.to(memory_format=torch.channels_last)
    bias = b if biased else None
    wanted = torch.ops.aten.convolution.default(x, w, bias, stride, padding, dilation, False, [0] * len(axes), 3)
    got = convolve(x, w, bias, (stride, padding, dilation), 3)
    assert got.is_contiguous()
    assert torch.allclose(got, wanted, rtol=1e-13, atol=1e-13)


def test_a_gradient_goes_through_a_depthwise_convolution() -> None:
    x, w, b = drawn(6, 1, (3, 3))
    place = (2, 1), (1, 1), (1, 1)
    for value in (x, w, b):
        value.requires_grad_()
    wanted = torch.autograd.grad(torch.conv2d(x, w, b, *place, 6).square().sum(), (x, w, b))
    got = torch.autograd.grad(convolve(x, w, b, place, 6).square().sum(), (x, w, b))
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_squares_of_a_convolution_are_those_of_its_products_on_average(groups: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 6, 12, 12, generator=generator, dtype=torch.float64)
    w = torch.randn(12, 6 // groups, 3, 3, generator=generator, dtype=torch.float64)
    place = (1, 1), (1, 1), (1, 1)
    exact = torch.conv2d(x.square(), w.square(), None, 1, 1, 1, groups)
    told = convolution_squares(x, w, place, groups)
    assert told.shape == exact.shape
    assert 0.9 < float(told.sum() / exact.sum()) < 1.1
    assert torch.allclose(convolution_squares(x[0], w, place, groups), told[0], rtol=1e-13)


def test_what_does_not_fit_is_refused_as_torch_refuses_it() -> None:
    x, w, b = drawn(6, 1, (3, 3))
    with pytest.raises(RuntimeError, match="expected input"):
        convolve(x[:, :4], w, b, ((1, 1), (0, 0), (1, 1)), 6)
    with pytest.raises(RuntimeError, match="Kernel size"):
        convolve(x[..., :1], w, b, ((1, 1), (0, 0), (1, 1)), 6)
