"""torch operators, one to a program, with the shapes of their inputs: what torch.onnx can export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.verdicts.more_operators import more_operators

Shapes = tuple[tuple[int, ...], ...]
Operator = tuple[Callable[..., Any], Shapes]

_ROW: Shapes = ((4, 33),)
_IMAGE: Shapes = ((2, 4, 9, 10),)
_SOUND: Shapes = ((2, 4, 20),)

_UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor frac log log10 log1p "
    "log2 logit neg rad2deg reciprocal relu round rsqrt sigmoid sign sin sinc sinh sqrt square tan tanh trunc xlogy1"
)
_ACTIVATIONS = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus "
    "softshrink softsign tanhshrink"
)
_BINARY = "add sub mul div pow fmod remainder atan2 maximum minimum hypot logaddexp floor_divide xlogy heaviside"
_REDUCTIONS = "sum mean amax amin prod logsumexp var std norm"


def _unary() -> dict[str, Operator]:
    return {name: (getattr(torch, name), _ROW) for name in _UNARY.split() if hasattr(torch, name)}


def _activations() -> dict[str, Operator]:
    return {f"F.{name}": (getattr(functional, name), _ROW) for name in _ACTIVATIONS.split()}


def _binary() -> dict[str, Operator]:
    return {name: (getattr(torch, name), _ROW * 2) for name in _BINARY.split()}


def _along(name: str, axis: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: getattr(torch, name)(x, dim=axis)


def _reductions() -> dict[str, Operator]:
    found: dict[str, Operator] = {
        f"{name}{axis}": (_along(name, axis), _ROW) for name in _REDUCTIONS.split() for axis in (0, -1)
    }
    found |= {
        name: (_along(name, -1), _ROW) for name in ("softmax", "log_softmax", "cumsum", "argmax", "argmin", "cumprod")
    }
    return found


def _products() -> dict[str, Operator]:
    square: Shapes = ((17, 24), (24, 19))
    stack: Shapes = ((3, 9, 16), (3, 16, 11))
    heads: Shapes = ((2, 3, 9, 8),) * 3
    return {
        "matmul": (torch.matmul, square), "bmm": (torch.bmm, stack),
        "einsum": (lambda x, y: torch.einsum("bij,bjk->bki", x, y), stack),
        "linear": (functional.linear, ((5, 24), (11, 24), (11,))),
        "addmm": (torch.addmm, ((17, 19), *square)),
        "baddbmm": (torch.baddbmm, ((3, 9, 11), *stack)),
        "attention": (functional.scaled_dot_product_attention, heads),
        "causal": (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), heads),
        "conv1d": (lambda x, w: functional.conv1d(x, w, padding=1), (*_SOUND, (6, 4, 3))),
        "conv2d": (lambda x, w: functional.conv2d(x, w, padding=1, stride=2), (*_IMAGE, (6, 4, 3, 3))),
        "depthwise": (lambda x, w: functional.conv2d(x, w, groups=4), (*_IMAGE, (4, 1, 3, 3))),
        "transposed": (lambda x, w: functional.conv_transpose2d(x, w, stride=2), (*_IMAGE, (4, 5, 3, 3))),
        "cosine": (lambda x, y: functional.cosine_similarity(x, y, dim=-1), _ROW * 2),
        "cdist": (torch.cdist, ((5, 24), (7, 24))),
        "outer": (torch.outer, ((7,), (9,))),
    }  # fmt: skip


def _norms() -> dict[str, Operator]:
    return {
        "layer_norm": (lambda x: functional.layer_norm(x, (33,)), _ROW),
        "layer_norm_affine": (lambda x, w, b: functional.layer_norm(x, (33,), w, b), ((4, 33), (33,), (33,))),
        "rms_norm": (lambda x: functional.rms_norm(x, (33,)), _ROW),
        "group_norm": (lambda x: functional.group_norm(x, 2), _IMAGE),
        "instance_norm": (functional.instance_norm, _IMAGE),
        "normalize": (functional.normalize, _ROW),
        "batch_norm": (
            lambda x, m, v: functional.batch_norm(x, m, v.abs()), ((2, 4, 9, 10), (4,), (4,))),
        "lrn": (lambda x: functional.local_response_norm(x, 3), _IMAGE),
    }  # fmt: skip


def _layers() -> dict[str, Operator]:
    torch.manual_seed(0)
    return {
        "lstm": (nn.LSTM(8, 6), ((5, 2, 8),)), "gru": (nn.GRU(8, 6), ((5, 2, 8),)), "rnn": (nn.RNN(8, 6), ((5, 2, 8),)),
        "mha": (_SelfAttention(), ((5, 2, 8),)), "encoder": (nn.TransformerEncoderLayer(8, 2, 16).eval(), ((5, 2, 8),)),
        "prelu": (nn.PReLU(4), _IMAGE), "bilinear": (nn.Bilinear(6, 5, 4), ((3, 6), (3, 5))),
        "embed": (_Looked(), _ROW),
    }  # fmt: skip


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class _Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x.abs().clamp(0, 6).nan_to_num().long())


def _pools() -> dict[str, Operator]:
    return {
        "avg_pool2d": (lambda x: functional.avg_pool2d(x, 3, 2, 1), _IMAGE),
        "avg_pool1d": (lambda x: functional.avg_pool1d(x, 3), _SOUND),
        "max_pool2d": (lambda x: functional.max_pool2d(x, 3, 2, 1), _IMAGE),
        "adaptive_avg": (lambda x: functional.adaptive_avg_pool2d(x, 1), _IMAGE),
        "bilinear2d": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), _IMAGE),
        "bicubic2d": (lambda x: functional.interpolate(x, size=(7, 13), mode="bicubic"), _IMAGE),
        "nearest2d": (lambda x: functional.interpolate(x, size=(7, 13), mode="nearest"), _IMAGE),
        "pixel_shuffle": (lambda x: functional.pixel_shuffle(x, 2), _IMAGE),
        "unfold": (lambda x: functional.unfold(x, 3), _IMAGE),
        "pad_reflect": (lambda x: functional.pad(x, (1, 2, 2, 1), mode="reflect"), _IMAGE),
        "grid_sample": (functional.grid_sample, ((2, 3, 5, 6), (2, 4, 4, 2))),
    }


def _others() -> dict[str, Operator]:
    return {
        "where": (lambda x, y: torch.where(x > y, x, y), _ROW * 2),
        "clamp": (lambda x: x.clamp(-1.5, 2.5), _ROW), "lerp": (lambda x, y: torch.lerp(x, y, 0.3), _ROW * 2),
        "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.7), _ROW * 3),
        "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.7), _ROW * 3),
        "mse": (functional.mse_loss, _ROW * 2), "smooth_l1": (functional.smooth_l1_loss, _ROW * 2),
        "kl_div": (functional.kl_div, _ROW * 2), "huber": (functional.huber_loss, _ROW * 2),
        "topk": (lambda x: torch.topk(x, 5).values, _ROW), "sort": (lambda x: torch.sort(x).values, _ROW),
        "greater": (torch.gt, _ROW * 2), "equal": (torch.eq, _ROW * 2), "isnan": (torch.isnan, _ROW),
        "gather": (lambda x: x.gather(1, torch.arange(33).flip(0).expand(4, 33)), _ROW),
        "roll": (lambda x: torch.roll(x, 3, -1), _ROW), "tril": (torch.tril, _ROW),
        "glu": (functional.glu, ((4, 34),)), "gelu_tanh": (lambda x: functional.gelu(x, approximate="tanh"), _ROW),
        "to_int": (lambda x: x.to(torch.int32), ((4, 33),)), "to_half_and_back": (lambda x: x.half().float(), _ROW),
        "meshgrid": (lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij")), ((5,), (6,))),
        "det": (torch.det, ((3, 3),)), "floordiv_two": (lambda x: torch.div(x, 0.1, rounding_mode="floor"), _ROW),
        "pow2": (lambda x: x**2, _ROW), "pow_half": (lambda x: x.abs() ** 0.5, _ROW), "pow3": (lambda x: x**3, _ROW),
        "bucketize": (lambda x: torch.bucketize(x, torch.linspace(-2, 2, 9).to(x.dtype)), _ROW),
    }  # fmt: skip


def _with_tables() -> dict[str, Operator]:
    """Operators with tables inside, rewritten tails, and pieces of networks: a set that found mistakes."""
    frames: Shapes = ((2, 4, 20),)
    maps: Shapes = ((2, 2, 3), (2, 4, 9, 10))
    return {
        "linear1d": (lambda x: functional.interpolate(x, size=31, mode="linear"), frames),
        "linear1d_factor": (lambda x: functional.interpolate(x, scale_factor=1.3, mode="linear"), frames),
        "area": (lambda x: functional.interpolate(x, size=(4, 5), mode="area"), _IMAGE),
        "affine": (lambda t, x: functional.grid_sample(
            x, functional.affine_grid(t, list(x.shape), False), align_corners=False), maps),
        "expm1_quotient": (lambda x: torch.expm1(x) / x, _ROW), "root_difference": (
            lambda x: torch.sqrt(x * x + 1) - x.abs(), _ROW),
        "softcap": (lambda x: 30.0 * torch.tanh(x / 30.0), _ROW),
        "cumsum_back": (lambda x: x.flip(-1).cumsum(-1).flip(-1), _ROW),
        "response_norm": (lambda x: x * x.norm(dim=(2, 3), keepdim=True)
                          / (x.norm(dim=(2, 3), keepdim=True).mean(1, keepdim=True) + 1e-6), _IMAGE),
        "grouped_queries": (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                            ((2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8))),
        "entropy": (lambda x: -(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1), _ROW),
        "masked_softmax": (lambda x: torch.softmax(x + torch.full((33, 33), -torch.inf).triu(1)[:4].to(x), -1), _ROW),
    }  # fmt: skip


def operators() -> dict[str, Operator]:
    """Every operator of the sweep, by name."""
    tables = (_unary, _activations, _binary, _reductions, _products, _norms, _layers, _pools, _others, _with_tables)
    return {name: operator for table in tables for name, operator in table().items()} | more_operators()
