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


def _binary_losses(x):
    target, weight = drawn(4, 11, seed=1).sigmoid(), drawn(11, seed=2).exp()
    scores = F.binary_cross_entropy_with_logits(x, target, weight, pos_weight=weight)
    soft = F.soft_margin_loss(x, target.sub(0.5).sign(), reduction="sum")
    return scores + F.binary_cross_entropy(x.sigmoid(), target, weight, reduction="sum") + soft


LAYERS = {
    "conv1d": (lambda x: F.conv1d(x, drawn(6, 4, 3, seed=1), drawn(6, seed=2)), STEPS),
    "conv2d": (lambda x: F.conv2d(x, drawn(6, 4, 3, 2, seed=1), stride=2, padding=(1, 2), dilation=2), IMAGES),
    "depthwise": (lambda x: F.conv2d(x, drawn(8, 1, 3, 3, seed=1), padding=1, groups=4), IMAGES),
    "groups": (lambda x: F.conv1d(x, drawn(6, 2, 3, seed=1), groups=2), STEPS),
    "conv3d": (lambda x: F.conv3d(x[:, :, None], drawn(3, 4, 1, 3, 3, seed=1)), IMAGES),
    "transposed": (lambda x: F.conv_transpose1d(x, drawn(4, 3, 4, seed=1), drawn(3, seed=2), 3, 1, 2), STEPS),
    "transposed 2d in groups": (
        lambda x: F.conv_transpose2d(x, drawn(4, 3, 3, 2, seed=1), stride=2, padding=1, groups=2, dilation=2),
        IMAGES,
    ),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x.flip(-1), x), HEADS),
    "causal attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), HEADS),
    "masked attention": (lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=MASK[: len(x)], scale=0.3), HEADS),
    "added mask": (lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=MASK[:1].float() * -3), HEADS),
    "log_softmax": (lambda x: x.log_softmax(-1), STEPS),
    "cumsum": (lambda x: x.cumsum(-1), STEPS),
    "batch norm": (nn.BatchNorm2d(4).eval(), IMAGES),
    "average 1d": (lambda x: F.avg_pool1d(x, 3, 2, 1, ceil_mode=True), STEPS),
    "average 2d": (lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True, count_include_pad=False), IMAGES),
    "average of padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGES),
    "sum pool": (lambda x: F.avg_pool2d(x, 2, divisor_override=1), IMAGES),
    "average 3d": (lambda x: F.avg_pool3d(x[:, None], 2, 1), IMAGES),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), IMAGES),
    "adaptive 1d": (lambda x: F.adaptive_avg_pool1d(x, 3), STEPS),
    "power pool": (lambda x: F.lp_pool2d(x.abs(), 2, 2), IMAGES),
    "group norm": (lambda x: F.group_norm(x, 2, drawn(4, seed=1), drawn(4, seed=2)), IMAGES),
    "instance norm": (lambda x: F.instance_norm(x, None, None, drawn(4, seed=1), drawn(4, seed=2)), IMAGES),
    "norms": (lambda x: torch.stack([x.norm(dim=-1), x.norm(1, -1), x.norm(torch.inf, -1)]).movedim(0, 1), STEPS),
    "logsumexp": (lambda x: x.logsumexp((1, 2), keepdim=True), STEPS),
    "std": (lambda x: x.std(-1), STEPS),
    "linear": (lambda x: F.interpolate(x, scale_factor=1.7, mode="linear"), STEPS),
    "bilinear": (lambda x: F.interpolate(x, size=(4, 11), mode="bilinear", align_corners=True), IMAGES),
    "trilinear": (lambda x: F.interpolate(x[:, None], scale_factor=0.7, mode="trilinear"), IMAGES),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=(2.0, 0.5), mode="bicubic"), IMAGES),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), IMAGES),
    "distances": (lambda x: torch.cdist(x, drawn(7, 11, seed=1)), STEPS),
    "distances of order 1": (lambda x: torch.cdist(x, x.flip(1), p=1.0), STEPS),
    "largest distances": (lambda x: torch.cdist(x, x.flip(1), p=torch.inf), STEPS),
    "smooth losses": (
        lambda x: torch.stack([F.smooth_l1_loss(r, r * 0, beta=0.3) + F.huber_loss(r, r * 0, delta=0.3) for r in x]),
        STEPS,
    ),
    "binary losses": (lambda x: torch.stack([_binary_losses(r) for r in x]), STEPS),
    "trace and numbers": (lambda x: torch.stack([r.trace() + r.log().nansum() for r in x]), STEPS),
    "losses": (lambda x: torch.stack([F.mse_loss(r, drawn(4, 11, seed=1)) for r in x]), STEPS),
    "cross entropy": (
        lambda x: F.cross_entropy(x, torch.arange(11).remainder(4).expand(len(x), 11), reduction="none"),
        STEPS,
    ),
}
POINTWISE = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp, "gelu": F.gelu, "silu": F.silu, "mish": F.mish,
    "gelu of tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus, "elu": F.elu, "glu": F.glu,
    "atan2": lambda x: torch.atan2(x, x.roll(1, -1)), "logaddexp": lambda x: torch.logaddexp(x, x * 2),
    "atanh": lambda x: (x / 5).atanh(), "ldexp": lambda x: torch.ldexp(x, x), "hardswish": F.hardswish,
    "softshrink": F.softshrink, "scaled sum": lambda x: torch.add(x, x.roll(1, -1), alpha=0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x.roll(1, -1), value=0.7), "lerp": lambda x: x.lerp(x * x, 0.3),
    "in place, mixed": lambda x: x.clone().addcdiv_(x, x.abs().half().float() + 1), "tanhshrink": F.tanhshrink,
    "pow": lambda x: x.abs() ** 2.5, "log sigmoid": F.logsigmoid, "in place": lambda x: x.clone().sigmoid_(),
}  # fmt: skip
LAYERS |= {name: (function, drawn(7, 13, 18)) for name, function in POINTWISE.items()}
RECURRENT = {
    "lstm": nn.LSTM(11, 5, num_layers=2, bidirectional=True, batch_first=True),
    "lstm without bias": nn.LSTM(11, 7, bias=False, batch_first=True),
    "gru": nn.GRU(11, 5, batch_first=True),
    "rnn": nn.RNN(11, 5, batch_first=True),
}
LAYERS |= {name: (lambda x, layer=layer: layer(x)[0], STEPS) for name, layer in RECURRENT.items()}  # fmt: skip


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


@pytest.mark.parametrize(
    "name", ["lstm", "gru", "average 2d", "adaptive", "group norm", "instance norm", "std", "logsumexp"]
)
def test_what_was_computed_inside_can_be_differentiated_outside(name):
    layer, x = LAYERS[name]
    inside, outside = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(outside).square().sum().backward()
    with ds.reproducible():
        loss = layer(inside).square().sum()
    loss.backward()
    torch.testing.assert_close(inside.grad, outside.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_a_bag_has_torchs_values_and_the_same_bits_whatever_other_bags_there_are(mode, padding):
    need_compiled()
    table, ids = drawn(9, 6), torch.arange(20).remainder(9)
    starts = torch.tensor([0, 3, 3, 12])
    weights = drawn(20, seed=1) if mode == "sum" else None

    def bag(ids, starts, weights):
        return F.embedding_bag(ids, table, starts, mode=mode, per_sample_weights=weights, padding_idx=padding)

    native = bag(ids, starts, weights)
    with torch.no_grad(), ds.reproducible():
        together = bag(ids, starts, weights)
        alone = bag(ids[3:12], torch.tensor([0]), None if weights is None else weights[3:12])
    torch.testing.assert_close(together, native)
    assert bits(alone[0]) == bits(together[2])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_loss_is_torchs_up_to_rounding(reduction):
    need_compiled()
    x, target = drawn(6, 5), torch.tensor([0, 4, -100, 2, 2, 1])
    given = {"weight": drawn(5, seed=1).abs(), "reduction": reduction}
    native = F.cross_entropy(x, target, **given)
    with torch.no_grad(), ds.reproducible():
        torch.testing.assert_close(F.cross_entropy(x, target, **given), native)
        torch.testing.assert_close(
            F.cross_entropy(x[0], target[0], **given), F.nll_loss(x[0].log_softmax(-1), target[0], **given)
        )


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
