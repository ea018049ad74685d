"""Layers inside ds.reproducible(): torch's values up to rounding, and bits that no batch or layout changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import driftscope as ds
from accumulation.exact_truth import bits
from accumulation.exact_ways import need_compiled


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


IMAGES, STEPS, HEADS = drawn(5, 4, 9, 8), drawn(5, 4, 11), drawn(5, 2, 6, 8)
MASK = drawn(5, 1, 6, 6, seed=3) > -1

LAYERS = {
    "conv1d": (lambda x: F.conv1d(x, drawn(6, 4, 3, seed=1), drawn(6, seed=2)), STEPS),
    "conv2d": (lambda x: F.conv2d(x, drawn(6, 4, 3, 2, seed=1), stride=2, padding=(1, 2), dilation=2), IMAGES),
    "depthwise": (lambda x: F.conv2d(x, drawn(8, 1, 3, 3, seed=1), padding=1, groups=4), IMAGES),
    "groups": (lambda x: F.conv1d(x, drawn(6, 2, 3, seed=1), groups=2), STEPS),
    "conv3d": (lambda x: F.conv3d(x[:, :, None], drawn(3, 4, 1, 3, 3, seed=1)), IMAGES),
    "transposed": (lambda x: F.conv_transpose1d(x, drawn(4, 3, 4, seed=1), drawn(3, seed=2), 3, 1, 2), STEPS),
    "transposed 2d in groups": (
        lambda x: F.conv_transpose2d(x, drawn(4, 3, 3, 2, seed=1), stride=2, padding=1, groups=2, dilation=2), IMAGES),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x.flip(-1), x), HEADS),
    "causal attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), HEADS),
    "masked attention": (lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=MASK[: len(x)], scale=0.3), HEADS),
    "added mask": (lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=MASK[:1].float() * -3), HEADS),
    "log_softmax": (lambda x: x.log_softmax(-1), STEPS),
    "cumsum": (lambda x: x.cumsum(-1), STEPS),
    "batch norm": (nn.BatchNorm2d(4).eval(), IMAGES),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_torchs_up_to_rounding_and_the_same_bits_for_any_batch_and_layout(name):
    need_compiled()
    layer, x = LAYERS[name]
    with torch.no_grad():
        native = layer(x)
        with ds.reproducible():
            whole = layer(x)
            alone = layer(x[:1])
            strided = layer(x.transpose(-1, -2).contiguous().transpose(-1, -2))
    torch.testing.assert_close(whole, native, rtol=1e-5, atol=1e-5)
    assert bits(alone) == bits(whole[:1])
    assert bits(strided) == bits(whole)


def test_rows_that_attend_to_nothing_are_zero_as_torch_has_them():
    mask = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    with torch.no_grad(), ds.reproducible():
        assert not F.scaled_dot_product_attention(HEADS, HEADS, HEADS, attn_mask=mask).any()


def test_a_backward_pass_outside_gives_torchs_gradients():
    x = HEADS.clone().requires_grad_()
    with ds.reproducible():
        loss = F.scaled_dot_product_attention(x, x, x).square().sum()
    loss.backward()
    y = HEADS.clone().requires_grad_()
    F.scaled_dot_product_attention(y, y, y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


def test_a_norm_over_the_batch_is_refused():
    layer = nn.BatchNorm1d(4)
    with torch.no_grad(), ds.reproducible(), pytest.raises(ds.InputError, match=r"call \.eval"):
        layer(STEPS)
