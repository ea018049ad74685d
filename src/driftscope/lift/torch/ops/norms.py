"""Normalisations and softmaxes."""

from __future__ import annotations

from typing import Any

import torch

from driftscope.lift.formulas.normalisations import (
    RENORM_EPSILON,
    affine,
    by_statistics,
    inverse_deviation,
    moments,
    normalised,
    per_channel,
)
from driftscope.lift.formulas.softmaxes import softmax_or_zero
from driftscope.lift.formulas.terms import length_of, normed, softened, summed
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.ops.registry import Outputs, rule

_ROUND = Rounding(Kind.ROUND)


@rule("native_layer_norm", "layer_norm")
def _layer_norm(call: Call) -> tuple[Outputs, Rounding]:
    x, axes = call.value("input"), _last_axes(call)
    done = normalised(x, axes, call.value("eps"))
    y = affine(done.value, call.value("weight"), call.value("bias"))
    return [y, done.mean, done.inverse_deviation], normed(length_of(x.shape, axes))


def _last_axes(call: Call) -> list[int]:
    rank = call.value("input").dim()
    return list(range(rank - len(call.raw("normalized_shape")), rank))


@rule("_fused_rms_norm", "rms_norm")
def _rms_norm(call: Call) -> tuple[Outputs, Rounding]:
    x, axes, eps = call.value("input"), _last_axes(call), call.value("eps")
    if eps is None:
        # The kernel's default is the machine epsilon of the native format.
        eps = torch.finfo(call.format("input") or torch.float32).eps
    done = normalised(x, axes, eps, centred=False)
    y = affine(done.value, call.value("weight"), None)
    return [y, done.inverse_deviation], normed(length_of(x.shape, axes))


@rule("renorm")
def _renorm(call: Call) -> tuple[Outputs, Rounding]:
    """Slices longer than the limit are made as long; what the kernel adds to a length, exporters store."""
    x, limit = call.value("self"), call.value("maxnorm")
    axes = [axis for axis in range(x.dim()) if axis != int(call.raw("dim")) % x.dim()]
    norms = torch.linalg.vector_norm(x, float(call.raw("p")), axes, keepdim=True)
    shorter = limit / (norms + call.hidden("epsilon", RENORM_EPSILON))
    return [x * torch.where(norms > limit, shorter, 1.0)], summed(length_of(x.shape, axes))


@rule("native_group_norm", "group_norm")
def _group_norm(call: Call) -> tuple[Outputs, Rounding]:
    x = call.value("input")
    groups = int(call.raw("group") or call.raw("num_groups") or 1)
    grouped = x.reshape(x.shape[0], groups, -1)
    done = normalised(grouped, [-1], call.value("eps"))
    weight, bias = (per_channel(call.value(n), x) for n in ("weight", "bias"))
    y = affine(done.value.reshape(x.shape), weight, bias)
    statistics = (s if s is None else s.squeeze(-1) for s in (done.mean, done.inverse_deviation))
    return [y, *statistics], normed(grouped.shape[-1])


_BATCH = ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
          "miopen_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update", "batch_norm",
          "_batch_norm_impl_index", "_native_batch_norm_legit_functional",
          "_batch_norm_with_update_functional")  # fmt: skip


@rule(*_BATCH)
def _batch_norm(call: Call) -> tuple[Outputs, Rounding]:
    types = call.facts.types
    x = call.value("input")
    training = bool(call.raw("training")) if "training" in types else "with_update" in call.facts.name
    eps = call.value("eps" if "eps" in types else "epsilon")
    running = [call.value(n) if n in types else None for n in ("running_mean", "running_var")]
    batch = training or running[0] is None
    mean: Any
    variance: Any
    if batch:
        mean, variance = moments(x, [d for d in range(x.dim()) if d != 1], keep=False)
    else:
        mean, variance = running
    rstd = inverse_deviation(variance, eps)
    y = by_statistics(x, (mean, rstd), call.value("weight"), call.value("bias"))
    outputs = _statistics(call, y, mean, rstd, batch)
    if training and running[0] is not None:
        outputs += _updated(call, x, running, mean, variance)
    terms = x.numel() // max(1, x.shape[1]) if batch else 1
    return outputs, normed(terms) if batch else Rounding(Kind.ROUND)


def _statistics(call: Call, y: torch.Tensor, mean: Any, rstd: Any, batch: bool) -> Outputs:
    """Give the saved statistics in the shapes that the kernel gives them: empty in evaluation on some devices."""
    outputs: Outputs = [y]
    values = call.replay.tape.values
    for number, statistic in zip(call.entry.outputs[1:3], (mean, rstd), strict=False):
        empty = number is not None and 0 in values[number].shape
        outputs.append(y.new_empty(values[number].shape) if empty and number is not None else statistic)
    for number in call.entry.outputs[3 : _returns(call)]:
        outputs.append(None if number is None else torch.empty(values[number].shape, dtype=values[number].format))
    return outputs


def _returns(call: Call) -> int:
    return len(call.function._schema.returns)


def _updated(call: Call, x: torch.Tensor, running: list[Any], mean: torch.Tensor, variance: torch.Tensor) -> Outputs:
    types = call.facts.types
    momentum = call.value("momentum" if "momentum" in types else "exponential_average_factor")
    count = x.numel() // max(1, x.shape[1])
    unbiased = variance * (count / max(1, count - 1))
    pairs = zip(running, (mean, unbiased), strict=True)
    return [old * (1.0 - momentum) + new * momentum for old, new in pairs]


@rule("_softmax", "_safe_softmax", "_log_softmax", "softmax", "log_softmax", "logsumexp", "special_logsumexp")
def _softmax(call: Call) -> tuple[Outputs, Rounding]:
    x, dim = call.value("self"), call.raw("dim")
    dims = list(dim) if isinstance(dim, (list, tuple)) else [int(dim)]
    rounding = softened(length_of(x.shape, dims) if x.dim() else 1)
    name = call.facts.name
    if name.endswith("logsumexp"):
        return [torch.logsumexp(x, dims, bool(call.raw("keepdim")))], rounding
    if "log_softmax" in name:
        return [torch.log_softmax(x, dims[0])], rounding
    return [softmax_or_zero(x, dims[0]) if name == "_safe_softmax" else torch.softmax(x, dims[0])], rounding


@rule("_weight_norm_interface", "_weight_norm")
def _weight_norm(call: Call) -> tuple[Outputs, Rounding]:
    """A weight of given length ``g`` along one axis (torch.nn.utils.parametrizations.weight_norm).

    Along the last axis the kernel adds a column's squares in one running sum, which for the 36,864 of a wav2vec2
    loses five bits (aten/native/cpu/WeightNormKernel.cpp).
    """
    v, g, kept = call.value("v"), call.value("g"), int(call.raw("dim") or 0)
    rest = [k for k in range(v.dim()) if k != kept]
    squares = v.square()
    total = squares.sum(rest, keepdim=True)
    terms = Rounding(
        Kind.SUM, v.numel() // max(1, total.numel()), lambda: squares.square().sum(rest, keepdim=True),
        running=kept == v.dim() - 1,
    )  # fmt: skip
    norm = call.show("norm", call.show("squares", total, terms, (v,), stored=False).sqrt(), _ROUND, stored=False)
    scale = call.show("scale", g / norm, _ROUND, (g, norm), stored=False)
    outputs: Outputs = [v * scale, norm.reshape(g.shape)]
    return outputs[: len(call.entry.outputs)], _ROUND
