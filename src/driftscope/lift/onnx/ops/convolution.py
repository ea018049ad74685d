"""Convolutions: plain, transposed, deformable, and the folding of columns into images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from driftscope.lift.formulas import convolutions
from driftscope.lift.formulas.terms import dot
from driftscope.lift.onnx.registry import Node, Result, integers_of, operator

_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def window_pads(
    node: Node, lengths: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Padding before and after every spatial axis, from ``pads`` or ``auto_pad``."""
    rank = len(kernel)
    mode = node.text("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * rank, [0] * rank
    if mode == "NOTSET":
        pads = node.integers("pads", [0] * (2 * rank))
        return pads[:rank], pads[rank:]
    begins, ends = [], []
    for n, k, s, d in zip(lengths, kernel, strides, dilations, strict=True):
        total = max((math.ceil(n / s) - 1) * s + d * (k - 1) + 1 - n, 0)
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    return begins, ends


def padded(x: Tensor, begins: Sequence[int], ends: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad the spatial axes (all after the first two)."""
    if not any(begins) and not any(ends):
        return x
    flat = [n for pair in zip(reversed(begins), reversed(ends), strict=True) for n in pair]
    return F.pad(x, flat, value=value)


def convolve(node: Node, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Cross-correlate a padded input with the node's strides, dilations and groups.

    Parameters
    ----------
    x : torch.Tensor, (N, C, *spatial)
    w : torch.Tensor, (M, C / groups, *kernel)
    b : torch.Tensor, (M,), or None
    """
    x, geometry = _placed(node, x, w)
    return convolutions.convolve(x, w, b, geometry, node.integer("group", 1))


def convolution_squares(node: Node, x: Tensor, w: Tensor) -> Tensor:
    """Sum of squared products of a convolution (see :func:`driftscope.lift.formulas.convolutions`)."""
    x, geometry = _placed(node, x, w)
    return convolutions.convolution_squares(x, w, geometry, node.integer("group", 1))


def _placed(node: Node, x: Tensor, w: Tensor) -> tuple[Tensor, convolutions.Geometry]:
    """The input, padded where its sides differ, and the strides, the padding and the dilations."""
    rank = x.dim() - 2
    if rank not in _TRANSPOSE:
        raise node.refuse(f"convolution over {rank} spatial axes")
    strides = node.integers("strides", [1] * rank)
    dilations = node.integers("dilations", [1] * rank)
    begins, ends = window_pads(node, x.shape[2:], w.shape[2:], strides, dilations)
    if begins == ends:
        return x, (strides, begins, dilations)
    return padded(x, begins, ends), (strides, [0] * rank, dilations)


@operator("Conv")
def convolution(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Result:
    """Cross-correlation with bias."""
    length = math.prod(w.shape[1:])
    return Result(convolve(node, x, w, b), dot(length, lambda: convolution_squares(node, x, w)))


@operator("ConvTranspose")
def transposed_convolution(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Result:
    """The transpose of a convolution, cropped or padded to the output shape asked for."""
    rank = x.dim() - 2
    strides = node.integers("strides", [1] * rank)
    dilations = node.integers("dilations", [1] * rank)
    groups = node.integer("group", 1)
    extra = node.integers("output_padding", [0] * rank)
    full = [
        s * (n - 1) + d * (k - 1) + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
    ]
    begins, ends = _transposed_pads(node, x.shape[2:], full, strides, extra)

    def apply(x: Tensor, w: Tensor) -> Tensor:
        y = _TRANSPOSE[rank](x, w, None, strides, 0, 0, groups, dilations)
        sizes = [n + e - p - q for n, e, p, q in zip(full, extra, begins, ends, strict=True)]
        for axis, (begin, size) in enumerate(zip(begins, sizes, strict=True), start=2):
            missing = max(begin + size - y.shape[axis], 0)
            y = F.pad(y, [0] * (2 * (y.dim() - axis - 1)) + [max(-begin, 0), missing])
            y = y.narrow(axis, max(begin, 0), size)
        return y

    y = apply(x, w)
    if b is not None:
        y = y + b.reshape(1, -1, *[1] * rank)
    taps = math.prod(math.ceil(k / s) for k, s in zip(w.shape[2:], strides, strict=True))
    return Result(y, dot(taps * w.shape[0] // groups, lambda: apply(x.square(), w.square())))


def _transposed_pads(
    node: Node, lengths: Sequence[int], full: Sequence[int], strides: Sequence[int], extra: Sequence[int]
) -> tuple[list[int], list[int]]:
    rank = len(full)
    mode = node.text("auto_pad", "NOTSET")
    if node.has("output_shape"):
        wanted = node.integers("output_shape")[-rank:]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(lengths, strides, strict=True)]
    else:
        pads = node.integers("pads", [0] * (2 * rank)) if mode == "NOTSET" else [0] * (2 * rank)
        return pads[:rank], pads[rank:]
    begins, ends = [], []
    for n, e, target in zip(full, extra, wanted, strict=True):
        total = n + e - target
        first = total // 2 if mode == "SAME_UPPER" else total - total // 2
        begins.append(first)
        ends.append(total - first)
    return begins, ends


@operator("ConvInteger", since=10)
def integer_convolution(
    node: Node, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Result:
    """Convolution of integers less their zero points, exact in int32."""
    wide_x, wide_w = x.to(torch.float64), w.to(torch.float64)
    if x_zero is not None:
        wide_x = wide_x - x_zero.to(torch.float64)
    if w_zero is not None:
        wide_w = wide_w - w_zero.to(torch.float64).reshape(-1, *[1] * (w.dim() - 1) if w_zero.numel() > 1 else ())
    return Result(torch.round(convolve(node, wide_x, wide_w, None)).to(torch.int32), formats=[torch.int32])


@operator("Col2Im", host=(1, 2))
def columns_to_image(node: Node, x: Tensor, image: Tensor, block: Tensor) -> Result:
    """Add overlapping blocks into an image, any number of spatial axes."""
    shape, kernel = integers_of(image) or [], integers_of(block) or []
    rank = len(shape)
    strides, dilations = node.integers("strides", [1] * rank), node.integers("dilations", [1] * rank)
    pads = node.integers("pads", [0] * (2 * rank))
    channels = x.shape[1] // math.prod(kernel)
    outs = [
        (n + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i, n in enumerate(shape)
    ]
    blocks = x.reshape(x.shape[0], channels, *kernel, *outs)
    wide = [n + pads[i] + pads[i + rank] for i, n in enumerate(shape)]
    flat = torch.zeros(x.shape[0], channels, math.prod(wide), dtype=x.dtype, device=x.device)
    place = torch.zeros(1, dtype=torch.int64, device=x.device)
    for i in range(rank):
        taps = torch.arange(kernel[i], device=x.device) * dilations[i]
        steps = torch.arange(outs[i], device=x.device) * strides[i]
        view = [1] * (2 * rank)
        view[i], view[rank + i] = kernel[i], outs[i]
        place = place * wide[i] + (taps[:, None] + steps).reshape(view)
    flat = flat.index_add(2, place.reshape(-1), blocks.reshape(x.shape[0], channels, -1))
    result = flat.reshape(x.shape[0], channels, *wide)
    for i, n in enumerate(shape):
        result = result.narrow(2 + i, pads[i], n)
    return Result(result, dot(math.prod(kernel)))


@operator("DeformConv")
def deformable_convolution(
    node: Node, x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None
) -> Result:
    """Convolution that samples its input at offset places, bilinearly (Zhu et al., 2019)."""
    kh, kw = w.shape[2:]
    strides, dilations = node.integers("strides", [1, 1]), node.integers("dilations", [1, 1])
    pads, groups = node.integers("pads", [0] * 4), node.integer("group", 1)
    parts = node.integer("offset_group", 1)
    n, c = x.shape[:2]
    oh, ow = offset.shape[2:]
    shift = offset.reshape(n, parts, kh, kw, 2, oh, ow)
    down = torch.arange(kh, device=x.device)[:, None] * dilations[0] + torch.arange(oh, device=x.device) * strides[0]
    right = torch.arange(kw, device=x.device)[:, None] * dilations[1] + torch.arange(ow, device=x.device) * strides[1]
    rows = (down - pads[0]).reshape(1, 1, kh, 1, oh, 1) + shift[..., 0, :, :]
    columns = (right - pads[1]).reshape(1, 1, 1, kw, 1, ow) + shift[..., 1, :, :]
    sampled = _bilinear(x.reshape(n, parts, c // parts, *x.shape[2:]), rows, columns)
    if mask is not None:
        sampled = sampled * mask.reshape(n, parts, 1, kh, kw, oh, ow)
    sampled = sampled.reshape(n, groups, c // groups * kh * kw, oh * ow)
    filters = w.reshape(groups, w.shape[0] // groups, -1)
    y = torch.einsum("gok,ngkp->ngop", filters, sampled).reshape(n, w.shape[0], oh, ow)
    return Result(y if b is None else y + b.reshape(1, -1, 1, 1), dot(filters.shape[-1]))


def _bilinear(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sample (N, G, C, H, W) at (N, G, ...) places; outside is zero. Returns (N, G, C, ...)."""
    height, width = x.shape[-2:]
    flat = x.flatten(-2)
    top, left = rows.floor(), columns.floor()
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for dy in (0, 1):
        for dx in (0, 1):
            r, q = top + dy, left + dx
            weight = (1 - (rows - r).abs()) * (1 - (columns - q).abs())
            inside = (r >= 0) & (r < height) & (q >= 0) & (q < width)
            index = (r.clamp(0, height - 1) * width + q.clamp(0, width - 1)).long()
            picked = flat.gather(-1, index.flatten(2).unsqueeze(2).expand(-1, -1, x.shape[2], -1))
            picked = picked.reshape(*x.shape[:3], *rows.shape[2:])
            total = total + picked * (weight * inside).unsqueeze(2)
    return total
