"""Backward passes in a fixed order: the signatures of torch's own operators, the formulas of its documentation.

A gradient is computed in float64 from the same products, sums and exponentials as the forward pass and rounded once;
products of matrices are the chains of the forward pass. Sums over a batch, as in the gradient of a weight, go through
the batch in its order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from driftscope.accumulation.exact import layers, pools, reductions
from driftscope.accumulation.exact.fixed import gathering, kernels, losses, recurrence, resizing
from driftscope.accumulation.exact.layer_norm import rounded_once
from driftscope.accumulation.exact.softmax import exponential
from driftscope.errors import InputError

Sizes = Sequence[int]
Three = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]

#: Gradients of functions of single elements: no sum, but torch's kernels round the end of a row otherwise.
OF_ELEMENTS = frozenset(
    f"{name}_backward"
    for name in (
        "gelu", "silu", "mish", "elu", "softplus", "sigmoid", "tanh", "log_sigmoid", "glu", "hardswish", "hardsigmoid",
        "hardtanh", "leaky_relu", "logit", "mse_loss", "smooth_l1_loss", "huber_loss", "softshrink", "hardshrink",
        "binary_cross_entropy", "soft_margin_loss",
    )
)  # fmt: skip


def _sum(x: torch.Tensor, dims: Any, keepdim: bool = False) -> torch.Tensor:
    found: torch.Tensor = reductions.sum(x.double(), dims, keepdim)
    return found


def _mean(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = reductions.mean(x.double(), -1, True)
    return found


def softmax(grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """``y * (g - sum(g * y))``."""
    g, y = grad.double(), output.double()
    return rounded_once(y * (g - _sum(g * y, dim, True)), dtype)


def log_softmax(grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """``g - exp(y) * sum(g)``."""
    g = grad.double()
    return rounded_once(g - exponential(output.double()) * _sum(g, dim, True), dtype)


def _normalised(g: torch.Tensor, x: torch.Tensor, statistics: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The gradient of rows that were normalised by their mean and scale; g is that of the normalised rows."""
    mean, scale = statistics
    away = (x - mean) * scale
    return scale * (g - _mean(g) - away * _mean(g * away))


def layer_norm(
    grad: torch.Tensor, x: torch.Tensor, shape: Sizes, mean: torch.Tensor, spread: torch.Tensor,
    weight: torch.Tensor | None, bias: torch.Tensor | None, wanted: Sequence[bool],
) -> Three:  # fmt: skip
    """Gradients of the input, the weight and the bias; mean and scale are those that the forward pass returned."""
    n = math.prod(shape)
    g, rows = grad.double().reshape(-1, n), x.double().reshape(-1, n)
    middle, scale = mean.double().reshape(-1, 1), spread.double().reshape(-1, 1)
    inner = g if weight is None else g * weight.double().reshape(n)
    of_x = rounded_once(_normalised(inner, rows, (middle, scale)), x.dtype).reshape(x.shape) if wanted[0] else None
    of_weight = of_bias = None
    if weight is not None and wanted[1]:
        of_weight = rounded_once(_sum(g * ((rows - middle) * scale), 0), weight.dtype).reshape(weight.shape)
    if bias is not None and wanted[2]:
        of_bias = rounded_once(_sum(g, 0), bias.dtype).reshape(bias.shape)
    return of_x, of_weight, of_bias


def group_norm(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor, weight: torch.Tensor | None,
    rows: int, channels: int, places: int, groups: int, wanted: Sequence[bool],
) -> Three:  # fmt: skip
    """Gradients of the input, the weight and the bias of each channel."""
    g, wide = grad.double().reshape(rows, channels, -1), x.double().reshape(rows, channels, -1)
    inner = g if weight is None else g * weight.double()[:, None]
    middle, scale = mean.double().reshape(-1, 1), spread.double().reshape(-1, 1)
    grouped = (inner.reshape(rows * groups, -1), wide.reshape(rows * groups, -1))
    of_x = rounded_once(_normalised(*grouped, (middle, scale)), x.dtype).reshape(x.shape) if wanted[0] else None
    away = ((grouped[1] - middle) * scale).reshape(g.shape)
    of_weight = rounded_once(_sum(g * away, (0, 2)), x.dtype) if wanted[1] else None
    return of_x, of_weight, rounded_once(_sum(g, (0, 2)), x.dtype) if wanted[2] else None


def batch_norm(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, mean: torch.Tensor | None,
    var: torch.Tensor | None, saved_mean: torch.Tensor | None, saved_spread: torch.Tensor | None, train: bool,
    eps: float, wanted: Sequence[bool],
) -> Three:  # fmt: skip
    """Gradients in evaluation mode, or of InstanceNorm, which arrives as one row.

    Raises
    ------
    InputError
        In train mode, in which rows are normalised together.
    """
    channels = x.shape[1]
    if train and x.shape[0] == 1 and saved_mean is not None and saved_spread is not None and x.dim() > 2:
        return group_norm(grad, x, saved_mean, saved_spread, weight, 1, channels, x[0, 0].numel(), channels, wanted)
    if train or mean is None or var is None:
        raise InputError(
            "ds.reproducible() cannot make BatchNorm in train mode independent of its batch: call .eval()."
        )
    shape, others = (1, -1, *[1] * (x.dim() - 2)), [d for d in range(x.dim()) if d != 1]
    g, spread = grad.double(), (1.0 / (var.double() + eps).sqrt()).reshape(shape)
    factor = spread if weight is None else spread * weight.double().reshape(shape)
    of_weight = _sum(g * ((x.double() - mean.double().reshape(shape)) * spread), others) if wanted[1] else None
    return (
        rounded_once(g * factor, x.dtype) if wanted[0] else None,
        None if of_weight is None else rounded_once(of_weight, x.dtype),
        rounded_once(_sum(g, others), x.dtype) if wanted[2] else None,
    )


def convolution(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, _bias_sizes: Sizes | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int, wanted: Sequence[bool],
) -> Three:  # fmt: skip
    """Gradients of the input, the weight and the bias: convolutions and one product again."""
    axes = x.dim() - 2
    stride, padding, dilation = (tuple(s) * (axes // len(s)) for s in (stride, padding, dilation))
    of_x = of_weight = of_bias = None
    if wanted[0]:
        left = [0] * axes
        if not transposed:
            spans = [
                (n - 1) * s - 2 * p + d * (k - 1) + 1
                for n, s, p, d, k in zip(grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True)
            ]
            left = [n - r for n, r in zip(x.shape[2:], spans, strict=True)]
        of_x = layers.convolution(grad, weight, None, stride, padding, dilation, not transposed, left, groups)
        inside: tuple[Any, ...] = (..., *(slice(n) for n in x.shape[2:]))
        of_x = of_x[inside].contiguous()
    if wanted[1]:
        # A transposed convolution is the other way round: its input takes the place of the output.
        inner, outer = (grad, x) if transposed else (x, grad)
        padded = torch.nn.functional.pad(inner, [p for side in reversed(padding) for p in (side, side)])
        found = layers.patches(padded, weight.shape[2:], stride, dilation, groups)
        reached: tuple[Any, ...] = (..., *(slice(n) for n in outer.shape[2:]))
        found = found[reached].flatten(3)
        parts = outer.reshape(len(outer), groups, -1, found.shape[-1])
        products = [
            kernels.product(parts[:, g].transpose(0, 1).flatten(1), found[:, g].transpose(1, 2).flatten(0, 1))
            for g in range(groups)
        ]
        of_weight = torch.cat(products).reshape(weight.shape)
    if wanted[2]:
        of_bias = rounded_once(_sum(grad, [d for d in range(grad.dim()) if d != 1]), grad.dtype)
    return of_x, of_weight, of_bias


def scale_of(scale: float | None, query: torch.Tensor) -> float:
    """What scores are multiplied by: ``1 / sqrt(E)`` unless it was given."""
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def mask_of(mask: torch.Tensor | None, causal: bool, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """Return what is added to the scores, in their dtype; None for nothing."""
    if causal:
        hidden = torch.full((query.shape[-2], key.shape[-2]), -math.inf, dtype=query.dtype, device=query.device)
        return hidden.triu(1)
    if mask is None:
        return None
    return torch.where(mask, 0.0, -math.inf).to(query.dtype) if mask.dtype is torch.bool else mask.to(query.dtype)


def attention(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _output: torch.Tensor,
    _sums: torch.Tensor, _dropout: float, causal: bool, *, attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of query, key and value; the weights of attention are computed again."""
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    whole = scale_of(scale, query)
    root, sign = math.sqrt(abs(whole)), math.copysign(1.0, whole)
    mask = mask_of(attn_mask, causal, query.to(wide), key)
    q, k = query.to(wide) * (root * sign), key.to(wide) * root
    shape = (*query.shape[:2], query.shape[2], key.shape[2])
    q, k, v, g = (t.to(wide).reshape(-1, *t.shape[2:]) for t in (q, k, value, grad))
    scores = kernels.product(q, k.transpose(1, 2))
    scores = scores if mask is None else scores + mask.expand(shape).reshape(scores.shape)
    weights = kernels.softmax(scores, -1, masked_rows_are_zero=True)
    of_weights = kernels.product(g, v.transpose(1, 2))
    of_scores = softmax(of_weights, weights, -1, wide)
    found = (
        kernels.product(of_scores, k) * (root * sign),
        kernels.product(of_scores.transpose(1, 2), q) * root,
        kernels.product(weights.transpose(1, 2), g),
    )
    q, k, v = (f.reshape(t.shape).to(t.dtype) for f, t in zip(found, (query, key, value), strict=True))
    return q, k, v


def bag_weights(
    grad: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, _bags: torch.Tensor,
    mode: int, padding_idx: int = -1,
) -> torch.Tensor:  # fmt: skip
    """The gradient of the weights of an embedding bag's samples."""
    bag = torch.searchsorted(offsets, torch.arange(len(indices), device=offsets.device), right=True) - 1
    found = _sum(grad[bag].double() * weight[indices].double(), -1)
    return rounded_once(torch.where(indices == padding_idx, 0.0, found), grad.dtype)


FIXED: dict[str, Callable[..., Any]] = {
    "_softmax_backward_data": softmax,
    "_log_softmax_backward_data": log_softmax,
    "native_layer_norm_backward": layer_norm,
    "native_group_norm_backward": group_norm,
    "native_batch_norm_backward": batch_norm,
    "convolution_backward": convolution,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention,
    "embedding_dense_backward": gathering.embedding,
    "_embedding_bag_backward": gathering.embedding_bag,
    "_embedding_bag_per_sample_weights_backward": bag_weights,
    "index_put": gathering.put,
    "index_put_": gathering.put_in_place,
    "scatter_add": gathering.scatter_add,
    "scatter_add_": gathering.scatter_add_in_place,
    "index_add": gathering.index_add,
    "unfold_backward": gathering.windows,
    "_cdist_backward": losses.distances_backward,
    "upsample_linear1d_backward": resizing.linear_backward,
    "upsample_bilinear2d_backward": resizing.linear_backward,
    "upsample_trilinear3d_backward": resizing.linear_backward,
    "upsample_bicubic2d_backward": resizing.cubic_backward,
    "mkldnn_rnn_layer_backward": recurrence.lstm_backward,
    "max_pool2d_with_indices_backward": gathering.max_pool,
    "max_pool3d_with_indices_backward": gathering.max_pool,
    "avg_pool2d_backward": pools.average_pool_backward,
    "avg_pool3d_backward": pools.average_pool_backward,
    "_adaptive_avg_pool2d_backward": pools.adaptive_average_pool_backward,
    "_adaptive_avg_pool3d_backward": pools.adaptive_average_pool_backward,
}
