"""Operators that the first set of the sweep left out: losses, choices, integers, windows, cells, ends of domains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Shapes = tuple[tuple[int, ...], ...]
Operator = tuple[Callable[..., Any], Shapes]

_ROW: Shapes = ((4, 33),)
_IMAGE: Shapes = ((2, 4, 9, 10),)
_SOUND: Shapes = ((2, 4, 20),)
_WHOLE = 1e4


def _losses() -> dict[str, Operator]:
    return {
        "l1": (functional.l1_loss, _ROW * 2),
        "poisson": (lambda x, y: functional.poisson_nll_loss(x, y.abs()), _ROW * 2),
        "bce": (lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y.sigmoid()), _ROW * 2),
        "bce_logits": (lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid()), _ROW * 2),
        "soft_margin": (lambda x, y: functional.soft_margin_loss(x, y.sign()), _ROW * 2),
        "triplet": (functional.triplet_margin_loss, _ROW * 3), "pairwise": (functional.pairwise_distance, _ROW * 2),
        "gaussian": (lambda x, y, z: functional.gaussian_nll_loss(x, y, z.abs()), _ROW * 3),
    }  # fmt: skip


def _elementwise() -> dict[str, Operator]:
    return {
        "sgn": (torch.sgn, _ROW), "nan_to_num": (torch.nan_to_num, _ROW), "entr": (torch.special.entr, _ROW),
        "xlog1py": (torch.special.xlog1py, _ROW * 2), "copysign": (torch.copysign, _ROW * 2),
        "fmax": (torch.fmax, _ROW * 2), "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), _ROW * 2),
        "threshold": (lambda x: functional.threshold(x, 0.1, 20), _ROW), "rsub": (lambda x: 1 - x, _ROW),
        "softplus_beta": (lambda x: functional.softplus(x, beta=3, threshold=5), _ROW),
        "quantised": (lambda x: torch.round(x / 0.1).clamp(-128, 127) * 0.1, _ROW),
        "polar": (lambda x, y: torch.hypot(x, y) * torch.sin(torch.atan2(y, x)), _ROW * 2),
    }  # fmt: skip


def _at_ends() -> dict[str, Operator]:
    """Functions of what rounds to the ends of their domains."""
    return {
        "angle": (lambda x: torch.acos(functional.cosine_similarity(x, x * 1.0000001, dim=-1)), _ROW),
        "angles": (lambda x, y: torch.acos(functional.normalize(x) @ functional.normalize(y).T), _ROW * 2),
        "one_pass_deviation": (lambda x: torch.sqrt((x * x).mean(-1) - x.mean(-1) ** 2), _ROW),
        "log_complement": (lambda x: torch.log(1 - torch.sigmoid(x)), _ROW),
        "logit_of_sigmoid": (lambda x: torch.logit(torch.sigmoid(x)), _ROW),
        "atanh_of_tanh": (lambda x: torch.atanh(torch.tanh(x)), _ROW),
        "logit_eps": (lambda x: torch.logit(x, eps=1e-6), _ROW),
    }


def _choices() -> dict[str, Operator]:
    return {
        "cummax": (lambda x: torch.cummax(x, -1), _ROW), "topk_pairs": (lambda x: tuple(torch.topk(x, 5)), _ROW),
        "sort_stable": (lambda x: tuple(torch.sort(x, dim=-1, stable=True)), _ROW), "argsort": (torch.argsort, _ROW),
        "max_pairs": (lambda x: tuple(torch.max(x, -1)), _ROW), "any": (lambda x: (x > 0.5).any(-1), _ROW),
        "count_nonzero": (lambda x: torch.count_nonzero(x, -1), _ROW),
        "whole_division": (lambda x: _whole(10 * x) // 7, _ROW), "whole_rest": (lambda x: _whole(10 * x) % 7, _ROW),
        "bits": (lambda x: (_whole(x) & 7) | 8, _ROW),
    }  # fmt: skip


def _whole(x: torch.Tensor) -> torch.Tensor:
    return x.nan_to_num().clamp(-_WHOLE, _WHOLE).to(torch.int64)


def _reduced() -> dict[str, Operator]:
    norm = torch.linalg.vector_norm
    return {
        "logcumsumexp": (lambda x: torch.logcumsumexp(x, -1), _ROW),
        "std_mean": (lambda x: torch.std_mean(x, -1), _ROW),
        "prod_all": (lambda x: x.prod(), _ROW), "norm_largest": (lambda x: norm(x, float("inf"), -1), _ROW),
        "norm_1": (lambda x: norm(x, 1, -1), _ROW), "norm_3": (lambda x: norm(x, 3, -1), _ROW),
        "vecdot": (torch.linalg.vecdot, _ROW * 2), "kron": (torch.kron, ((3, 2), (2, 4))),
        "cross": (lambda x, y: torch.linalg.cross(x, y), ((4, 3),) * 2), "diff": (torch.diff, _ROW),
        "complex": (lambda x, y: torch.view_as_real(torch.complex(x, y) * torch.complex(y, x)), _ROW * 2),
    }  # fmt: skip


def _windows() -> dict[str, Operator]:
    return {
        "lp_pool1d": (lambda x: functional.lp_pool1d(x, 2, 3), _SOUND),
        "lp_pool2d": (lambda x: functional.lp_pool2d(x, 3, 2), _IMAGE),
        "max_pool_ceil": (lambda x: functional.max_pool1d(x, 3, 2, 1, ceil_mode=True), _SOUND),
        "max_pool_dilated": (lambda x: functional.max_pool2d(x, 2, 1, 0, 2), _IMAGE),
        "avg_pool_uncounted": (
            lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False, ceil_mode=True), _IMAGE),
        "dilated": (lambda x, w: functional.conv2d(x, w, dilation=2, padding="same"), (*_IMAGE, (6, 4, 3, 3))),
        "transposed_groups": (
            lambda x, w: functional.conv_transpose2d(x, w, stride=2, groups=2, padding=1, output_padding=1),
            (*_IMAGE, (4, 3, 3, 3))),
        "fold": (lambda x: functional.fold(x, (4, 5), (2, 2)), ((2, 12, 12),)),
        "aligned_corners": (
            lambda x: functional.interpolate(x, size=(13, 7), mode="bilinear", align_corners=True), _IMAGE),
        "nearest_exact": (lambda x: functional.interpolate(x, size=(7, 13), mode="nearest-exact"), _IMAGE),
        "trilinear": (lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"), ((1, 2, 3, 4, 5),)),
    }  # fmt: skip


def _modules() -> dict[str, Operator]:
    torch.manual_seed(0)
    return {
        "lstm_both_ways": (nn.LSTM(8, 6, 2, bidirectional=True), ((5, 2, 8),)),
        "gru_both_ways": (nn.GRU(8, 6, bidirectional=True), ((5, 2, 8),)), "lstm_cell": (nn.LSTMCell(8, 6), ((3, 8),)),
        "rnn_relu": (nn.RNN(8, 6, nonlinearity="relu"), ((5, 2, 8),)), "gru_cell": (nn.GRUCell(8, 6), ((3, 8),)),
        "group_norm_affine": (nn.GroupNorm(2, 4), _IMAGE), "batch_norm1d": (nn.BatchNorm1d(33), _ROW),
        "weight_norm": (nn.utils.parametrizations.weight_norm(nn.Linear(33, 7)), _ROW),
    }  # fmt: skip


def more_operators() -> dict[str, Operator]:
    """Every operator of the second set, by name."""
    tables = (_losses, _elementwise, _at_ends, _choices, _reduced, _windows, _modules)
    return {name: operator for table in tables for name, operator in table().items()}
