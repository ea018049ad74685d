"""Sums of products: matmuls and convolutions, with the squares of their terms for the rounding model."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from driftscope.errors import CannotLift
from driftscope.lift.formulas.activations import gelu, gelu_rounding
from driftscope.lift.formulas.convolutions import convolution_squares, convolve
from driftscope.lift.formulas.sampling import relative_places
from driftscope.lift.formulas.terms import ProductSquares, dot, product
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.ops.registry import Outputs, rule


@rule("mm", "bmm", "matmul", "_int_mm")
def _mm(call: Call) -> tuple[Outputs, Rounding]:
    names = ("self", "other") if call.facts.name == "matmul" else ("self", "mat2")
    a, b = (call.value(n) for n in names)
    if not a.is_floating_point() and not a.is_complex():
        return call.natively(), Rounding()
    return [torch.matmul(a, b)], dot(a.shape[-1]) if a.is_complex() else product(a, b)


@rule("mv", "dot", "vdot", "inner")
def _mv(call: Call) -> tuple[Outputs, Rounding]:
    args, kwargs = call.lifted()
    a, b = args[0], args[1]
    if a.is_complex():
        return [call.function(*args, **kwargs)], dot(a.shape[-1])
    return [call.function(*args, **kwargs)], dot(a.shape[-1], lambda: torch.matmul(a.square(), b.square()))


@rule("addmm", "addbmm", "baddbmm", "addmv", "addr")
def _addmm(call: Call) -> tuple[Outputs, Rounding]:
    first = {"addmv": ("mat", "vec"), "addr": ("vec1", "vec2"), "addmm": ("mat1", "mat2")}
    left, right = first.get(call.facts.name, ("batch1", "batch2"))
    bias, a, b = call.value("self"), call.value(left), call.value(right)
    beta, alpha = call.value("beta"), call.value("alpha")
    if call.facts.name == "addmm" and not isinstance(beta, torch.Tensor) and not isinstance(alpha, torch.Tensor):
        return [torch.addmm(bias, a, b, beta=beta, alpha=alpha)], dot(a.shape[-1] + 1, ProductSquares(a, b))
    out = torch.outer(a, b) if call.facts.name == "addr" else torch.matmul(a, b)
    if call.facts.name == "addbmm":
        out = out.sum(0)
    out = out if _is_one(alpha) else out * alpha
    out = out if _is_zero(beta) else out + (bias if _is_one(beta) else bias * beta)
    matrices = call.facts.name in ("addmm", "baddbmm")
    return [out], dot(a.shape[-1] + 1, ProductSquares(a, b) if matrices else None)


def _is_one(x: Any) -> bool:
    return not isinstance(x, torch.Tensor) and x == 1


def _is_zero(x: Any) -> bool:
    return not isinstance(x, torch.Tensor) and x == 0


@rule("linear")
def _linear(call: Call) -> tuple[Outputs, Rounding]:
    x, w, bias = call.value("input"), call.value("weight"), call.value("bias")
    return [F.linear(x, w, bias)], dot(w.shape[-1], ProductSquares(x, w.mT) if w.dim() == 2 else None)


@rule("_addmm_activation")
def _addmm_activation(call: Call) -> tuple[Outputs, Rounding]:
    aten = torch.ops.aten
    inner = call.step("addmm", aten.addmm.default, call.raw("self"), call.raw("mat1"), call.raw("mat2"))
    if call.raw("use_gelu"):
        out = gelu(inner)
        return [out], gelu_rounding(inner, out)
    return [F.relu(inner)], Rounding()


@rule("_weight_int8pack_mm")
def _int8(call: Call) -> tuple[Outputs, Rounding]:
    x, scales = call.value("self"), call.value("scales")
    w = call.native("mat2").to(torch.float64).mT
    return [(x @ w) * scales], dot(x.shape[-1])


_CONVOLUTION = torch.ops.aten.convolution.default


@rule("convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution", "convolution_overrideable",
      "conv_depthwise3d", "_slow_conv2d_forward", "thnn_conv2d", "slow_conv3d", "_conv_depthwise2d",
      "cudnn_convolution_transpose", "miopen_convolution", "conv2d", "conv1d", "conv3d")  # fmt: skip
def _convolution(call: Call) -> tuple[Outputs, Rounding]:
    types = call.facts.types
    x, w = call.value("input" if "input" in types else "self"), call.value("weight")
    bias = call.value("bias") if "bias" in types else None
    transposed = bool(call.raw("transposed")) or "transpose" in call.facts.name
    spatial = w.dim() - 2
    groups = int(call.raw("groups") or 1)
    stride, padding, dilation = (
        _spread(call.raw(n), spatial, d) for n, d in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    geometry = stride, padding, dilation
    extra = _spread(call.raw("output_padding"), spatial, 0)
    if transposed or any(extra):
        out = _CONVOLUTION(x, w, bias, *geometry, transposed, extra, groups)
    else:
        out = convolve(x, w, bias, geometry, groups)
    taps = w[0, 0].numel() if w.numel() else 1
    channels = w.shape[0] if transposed else w.shape[1] * groups
    length = taps * channels // groups
    plain = not transposed and not w.is_complex()
    return [out], dot(length, (lambda: convolution_squares(x, w, geometry, groups)) if plain else None)


def _spread(value: Any, spatial: int, default: int) -> list[int]:
    if value is None:
        return [default] * spatial
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    return listed * spatial if len(listed) == 1 else listed


@rule("_grouped_mm", "grouped_mm_fallback")
def _grouped(call: Call) -> tuple[Outputs, Rounding]:
    """Multiply groups of rows (ends of groups in `offs`) with one matrix each, as mixtures of experts do."""
    names = ("self", "mat2", "offs") if "self" in call.facts.types else ("input", "weight", "offs")
    (a, b, ends), bias = (call.value(n) for n in names), call.raw("bias") if "bias" in call.facts.types else None
    if a.dim() != 2 or b.dim() != 3 or ends is None or bias is not None:
        raise CannotLift(f"{call.entry.where}: only rows in groups times one matrix per group are lifted.")
    out = a.new_zeros(a.shape[0], b.shape[-1])
    start = 0
    for group, end in enumerate(ends.tolist()):
        out[start:end] = a[start:end] @ b[group]
        start = end
    return [out], dot(a.shape[-1])


@rule("_trilinear")
def _trilinear(call: Call) -> tuple[Outputs, Rounding]:
    args, kwargs = call.lifted()
    return [call.function(*args, **kwargs)], dot(args[0].shape[-1] * args[2].shape[-1])


@rule("_euclidean_dist")
def _distance_by_products(call: Call) -> tuple[Outputs, Rounding]:
    """``sqrt(|x|^2 + |y|^2 - 2 x y)``, which cancels where points are nearer to each other than to zero."""
    x, y = call.value("x1"), call.value("x2")
    exact = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    unit = torch.finfo(call.formats[0] or torch.float32).eps / 2

    def parts() -> torch.Tensor:
        # What the squares, sums of so many products each, are off by moves the root by half of it over the root.
        squares = x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2)
        off = squares * math.sqrt(x.shape[-1])
        size: torch.Tensor = off / (2.0 * torch.maximum(exact, (unit * off).sqrt())).clamp(min=1e-300)
        return size

    return [exact], Rounding(Kind.ROUND, parts=parts)


@rule("_cdist_forward", "cdist", "_pdist_forward")
def _distance(call: Call) -> tuple[Outputs, Rounding]:
    args, kwargs = call.lifted()
    if call.facts.name == "_cdist_forward":
        # Mode 2 never takes the matmul shortcut, which cancels; the definition is what a lift is of.
        args = [*args[:3], 2]
    return [call.function(*args, **kwargs)], dot(args[0].shape[-1])


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def _fft(call: Call) -> tuple[Outputs, Rounding]:
    args, kwargs = call.lifted()
    out = call.function(*args, **kwargs)
    length = 1
    for d in call.raw("dim"):
        length *= max(out.shape[d], args[0].shape[d])
    return [out], Rounding(Kind.SUM, max(1, int(length).bit_length()))


@rule("grid_sampler_2d", "grid_sampler_3d", "grid_sampler", "upsample_linear1d", "upsample_bilinear2d",
      "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
      "cudnn_grid_sampler", "_grid_sampler_2d_cpu_fallback")  # fmt: skip
def _interpolated(call: Call) -> tuple[Outputs, Rounding]:
    args, kwargs = call.lifted()
    taps = 16 if "cubic" in call.facts.name else 8 if "3d" in call.facts.name else 4
    if call.facts.name.startswith("grid") and call.raw("interpolation_mode") == 1:
        return call_nearest(call), Rounding()
    if "grid_sampler" in call.facts.name:
        x, grid = args[0], args[1]
        args = [x, relative_places(grid, x.shape[2:], bool(call.raw("align_corners")), call.show), *args[2:]]
    return [call.function(*args, **kwargs)], dot(taps)


def call_nearest(call: Call) -> Outputs:
    """Sample the nearest pixel that the native grid chooses: the positions are gathered, then the values."""
    x, grid = call.value("input"), call.native("grid")
    spatial = x.shape[2:]
    places = torch.arange(x[0, 0].numel(), dtype=torch.float64, device=x.device).add_(1).reshape(1, 1, *spatial)
    chosen = call.function(places.expand(x.shape[0], 1, *spatial), grid.to(torch.float64), *call.args[2:])
    index = chosen.flatten(2).round().to(torch.int64)
    padded = F.pad(x.flatten(2), (1, 0))
    return [padded.gather(2, index.expand(-1, x.shape[1], -1)).reshape(*x.shape[:2], *chosen.shape[2:])]


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
      "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")  # fmt: skip
def _nearest(call: Call) -> tuple[Outputs, Rounding]:
    """Let the native kernel move numbered pixels, in float32: index arithmetic differs in float64 for some sizes."""
    x = call.value("self")
    spatial = x.shape[2:]
    count = x[0, 0].numel() if x.numel() else 0
    args = [v.native() if hasattr(v, "native") else v for v in call.args]
    # Numbers up to 2**24 are exact in float32, which is the kernel's index arithmetic for float32 inputs.
    if count >= 1 << 24:
        return [call.function(x, *args[1:], **call.kwargs)], Rounding()
    places = torch.arange(count, dtype=torch.float32, device=x.device).reshape(1, 1, *spatial)
    chosen = call.function(places, *args[1:], **call.kwargs).flatten().to(torch.int64)
    number = call.entry.outputs[0]
    shape = call.replay.tape.values[number].shape if number is not None else ()
    return [x.flatten(2).index_select(2, chosen).reshape(shape)], Rounding()
