"""Backward passes inside ds.reproducible(): torch's gradients up to rounding, in bits that no batch changes."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import driftscope as ds
from accumulation.exact_truth import bits
from accumulation.exact_ways import need_compiled, only_integers


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


IMAGES, STEPS, HEADS = drawn(4, 4, 9, 8), drawn(4, 4, 11), drawn(4, 2, 6, 8)
IDS = torch.tensor([0, 5, 1, 5, 5, 3, 2, 0])

#: A function of the input and its weights, the input, and the shapes of the weights.
LAYERS = {
    "matmul": (lambda x, w: x @ w, STEPS, [(11, 5)]),
    "linear": (lambda x, w, b: F.linear(x, w, b), STEPS, [(5, 11), (5,)]),
    "bmm": (lambda x, w: torch.bmm(x, w.expand(len(x), 11, 3)), STEPS, [(1, 11, 3)]),
    "softmax": (lambda x: x.softmax(-1), STEPS, []),
    "softmax along another axis": (lambda x: x.softmax(1), STEPS, []),
    "log_softmax": (lambda x: x.log_softmax(-1), STEPS, []),
    "attention": (lambda x, w: F.scaled_dot_product_attention(x, x @ w, x), HEADS, [(8, 8)]),
    "causal": (lambda x: F.scaled_dot_product_attention(x, x.flip(2), x, is_causal=True), HEADS, []),
    "masked": (lambda x, w: F.scaled_dot_product_attention(x, w.expand(x.shape), x, MASK, scale=0.3), HEADS, [(6, 8)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (11,), w, b), STEPS, [(11,), (11,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (11,), w), STEPS, [(11,)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), IMAGES, [(4,), (4,)]),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), IMAGES, [(4,), (4,)]),
    "batch norm": (lambda x, w, b: F.batch_norm(x, drawn(4).to(x), drawn(4).exp().to(x), w, b), IMAGES, [(4,), (4,)]),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), STEPS, [(6, 4, 3), (6,)]),
    "conv2d": (lambda x, w: F.conv2d(x, w, None, 2, (1, 2), (1, 2), groups=2), IMAGES, [(6, 2, 3, 2)]),
    "transposed": (lambda x, w, b: F.conv_transpose1d(x, w, b, 3, 1, 2), STEPS, [(4, 3, 4), (3,)]),
    "transposed 2d": (lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, groups=2), IMAGES, [(4, 3, 3, 2)]),
    "sum and mean": (lambda x: x.sum(-1) * x.mean(-1), STEPS, []),
    "cumsum": (lambda x: x.cumsum(-1), STEPS, []),
    "var": (lambda x: x.var(-1) + x.std(-1), STEPS, []),
    "logsumexp": (lambda x: x.logsumexp(-1), STEPS, []),
    "average": (lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 0), True, False), IMAGES, []),
    "average 1d": (lambda x: F.avg_pool1d(x, 3, 1), STEPS, []),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), IMAGES, []),
    "largest": (lambda x: F.max_pool2d(x, 3, 1), IMAGES, []),
    "unfold": (lambda x: x.unfold(-1, 4, 2), STEPS, []),
    "gather": (lambda x: x[:, [0, 2, 2, 2]], STEPS, []),
    "norm": (lambda x: x.norm(dim=-1), STEPS, []),
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), STEPS, []),
    "silu": (lambda x: F.silu(x) + x.tanh() * x.sigmoid(), STEPS, []),
    "losses": (lambda x: F.cross_entropy(x, TARGETS[: len(x)], reduction="none"), drawn(4, 3, 4), []),
    "mse": (lambda x: F.mse_loss(x, x.detach() * 0, reduction="none"), STEPS, []),
    "glu": (lambda x: F.glu(x, 1), STEPS, []),
    "linear resize": (lambda x: F.interpolate(x, scale_factor=1.7, mode="linear"), STEPS, []),
    "bilinear": (lambda x: F.interpolate(x, size=(4, 11), mode="bilinear", align_corners=True), IMAGES, []),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=(2.0, 0.5), mode="bicubic"), IMAGES, []),
    "distances": (lambda x, w: torch.cdist(x, w.expand(len(x), 3, 11)), STEPS, [(1, 3, 11)]),
    "distances of order 1": (lambda x, w: torch.cdist(x, w.expand(len(x), 3, 11), p=1.0), STEPS, [(1, 3, 11)]),
    "huber": (lambda x: F.huber_loss(x, x.detach() * 0, "none", 0.3) + F.smooth_l1_loss(x, x.detach() * 0, None, None,
              "none", 0.3), STEPS, []),
    "binary": (lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid(), reduction="none")
               + F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid() * 0.5, reduction="none"), STEPS, []),
    "lstm": (lambda x, *w: torch.lstm(x, (x.new_zeros(1, len(x), 5),) * 2, list(w), True, 1, 0.0, True, False, True)[0],
             STEPS, [(20, 11), (20, 5), (20,), (20,)]),
    "lstm both ways": (
        lambda x, *w: torch.lstm(x, (x.new_ones(2, len(x), 5),) * 2, list(w), False, 1, 0.0, True, True, True)[0],
        STEPS, [(20, 11), (20, 5), (20, 11), (20, 5)]),
    "gru": (lambda x, *w: torch.gru(x, x.new_zeros(1, len(x), 5), list(w), True, 1, 0.0, False, False, True)[0],
            STEPS, [(15, 11), (15, 5), (15,), (15,)]),
}  # fmt: skip
TARGETS = torch.tensor([0, 2, 1, 1]).expand(4, 4)
MASK = drawn(6, 6, seed=3) > -1


def gradients(layer, x, weights, *, fixed):
    leaves = [t.clone().requires_grad_() if i else t.detach().requires_grad_() for i, t in enumerate((x, *weights))]
    if not fixed:
        result = layer(*leaves)
        return torch.autograd.grad((result * ramp(result)).sum(), leaves)
    with ds.reproducible():
        result = layer(*leaves)
        return torch.autograd.grad((result * ramp(result)).sum(), leaves)


def ramp(result):
    """Another factor for each element of a row, the same for each row."""
    row = (0.5 + torch.arange(result[0].numel()).double() / result[0].numel()).to(result.dtype)
    return row.reshape(result.shape[1:])


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_right_and_those_of_a_row_are_its_own(name):
    need_compiled()
    layer, x, shapes = LAYERS[name]
    weights = [drawn(*s, seed=5 + i) * 0.5 for i, s in enumerate(shapes)]
    exact = gradients(layer, x.double(), [w.double() for w in weights], fixed=False)
    found = gradients(layer, x, weights, fixed=True)
    for mine, true in zip(found, exact, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=2e-5, atol=2e-5)
    alone = gradients(layer, x[1:2], weights, fixed=True)
    assert bits(alone[0]) == bits(found[0][1:2])
    loud = torch.cat([x[:1] * 1e3, x[1:2], x[2:].flip(0)])
    assert bits(gradients(layer, loud, weights, fixed=True)[0][1:2]) == bits(found[0][1:2])
    strided = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        again = gradients(layer, strided, weights, fixed=True)
    finally:
        torch.set_num_threads(before)
    assert [bits(g) for g in again] == [bits(g) for g in found]


@pytest.mark.parametrize("name", ["linear", "attention", "layer_norm", "conv1d", "average"])
def test_without_a_compiler_gradients_have_the_same_bits(name, monkeypatch):
    layer, x, shapes = LAYERS[name]
    weights = [drawn(*s, seed=5 + i) for i, s in enumerate(shapes)]
    compiled = gradients(layer, x[:1], weights, fixed=True)
    with only_integers(monkeypatch):
        assert [bits(g) for g in gradients(layer, x[:1], weights, fixed=True)] == [bits(g) for g in compiled]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 5])
def test_gradients_of_tables(mode, padding):
    need_compiled()
    starts = torch.tensor([0, 3, 3])
    given = drawn(8, seed=2) if mode == "sum" else None

    def bag(table, weights=given):
        return F.embedding_bag(IDS, table, starts, mode=mode, padding_idx=padding, per_sample_weights=weights)

    plain = functools.partial(bag, weights=None if given is None else given.double())
    (found,), (exact,) = (
        gradients(bag, drawn(6, 4), [], fixed=True),
        gradients(plain, drawn(6, 4).double(), [], fixed=False),
    )
    torch.testing.assert_close(found.double(), exact, rtol=2e-5, atol=2e-5)

    def embedding(table):
        return F.embedding(IDS.reshape(2, 4), table, padding_idx=padding, scale_grad_by_freq=mode == "mean")

    (found,), (exact,) = (
        gradients(embedding, drawn(6, 4).to(d), [], fixed=d is torch.float32) for d in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(found.double(), exact, rtol=2e-5, atol=2e-5)


def test_gradients_of_the_weights_of_a_bag():
    with ds.reproducible():
        weights = drawn(8, seed=2).requires_grad_()
        F.embedding_bag(IDS, drawn(6, 4), torch.tensor([0, 3]), mode="sum", per_sample_weights=weights).sum().backward()
    torch.testing.assert_close(weights.grad, drawn(6, 4)[IDS].sum(1))


def test_what_falls_on_one_place_is_added_in_its_order():
    terms, at = drawn(300) * 2.0 ** torch.arange(300).remainder(40), torch.zeros(300, dtype=torch.int64)
    one = terms.double().cumsum(0)[-1].float()
    with ds.reproducible():
        for found in (
            torch.zeros(2).index_add(0, at, terms), torch.zeros(2).scatter_add(0, at, terms),
            torch.zeros(2).index_put((at,), terms, accumulate=True), torch.zeros(2).index_put_((at,), terms, True),
            torch.zeros(2).scatter_add_(0, at, terms),
        ):  # fmt: skip
            assert bits(found) == bits(torch.stack([one, torch.zeros(())]))
        assert torch.zeros(3).index_put((torch.tensor([1]),), torch.ones(1)).tolist() == [0, 1, 0]


def test_a_model_is_trained_to_the_same_bits_with_any_threads_and_layout():
    need_compiled()

    def trained(x, threads):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, activation="gelu")
        descent, before = torch.optim.AdamW(layer.parameters(), foreach=False), torch.get_num_threads()
        try:
            torch.set_num_threads(threads)
            for _ in range(3):
                with ds.reproducible():
                    layer(x).square().mean().backward()
                    descent.step()
                descent.zero_grad()
        finally:
            torch.set_num_threads(before)
        return [bits(p) for p in layer.parameters()]

    x = drawn(3, 7, 8)
    assert trained(x, 1) == trained(x.transpose(0, 1).contiguous().transpose(0, 1), 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: torch.cdist(x, x.detach() + 1, p=torch.inf), "gradient of distances of order inf"),
        (lambda x: F.embedding_bag(IDS, x[0].t(), torch.tensor([0]), sparse=True), "sparse=False"),
    ],
)
def test_a_backward_pass_without_a_fixed_order_is_refused(call, words):
    x = STEPS.clone().requires_grad_()
    with ds.reproducible(), pytest.raises(ds.InputError, match=words):
        call(x).sum().backward()
