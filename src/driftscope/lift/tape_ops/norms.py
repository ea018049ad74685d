"""Normalisations and softmaxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.tape_ops.registry import Outputs, rule

if TYPE_CHECKING:
    from driftscope.lift.tape_call import Call


def _moments(x: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(dims, keepdim=True)
    return mean, (x - mean).square().mean(dims, keepdim=True)


def _scaled(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    y = x if weight is None else x * weight
    return y if bias is None else y + bias


@rule("native_layer_norm", "layer_norm")
def _layer_norm(call: Call) -> tuple[Outputs, Rounding]:
    x = call.value("input")
    shape = list(call.raw("normalized_shape"))
    dims = list(range(x.dim() - len(shape), x.dim()))
    weight, bias, eps = (call.value(n) for n in ("weight", "bias", "eps"))
    if not isinstance(eps, torch.Tensor):
        return list(torch.native_layer_norm(x, shape, weight, bias, eps)), Rounding(Kind.NORM, _size(shape))
    mean, variance = _moments(x, dims)
    rstd = 1.0 / torch.sqrt(variance + eps)
    y = _scaled((x - mean) * rstd, weight, bias)
    return [y, mean, rstd], Rounding(Kind.NORM, _size(shape))


def _size(shape: Any) -> int:
    size = 1
    for n in shape:
        size *= int(n)
    return max(1, size)


@rule("_fused_rms_norm", "rms_norm")
def _rms_norm(call: Call) -> tuple[Outputs, Rounding]:
    x = call.value("input")
    shape = list(call.raw("normalized_shape"))
    dims = list(range(x.dim() - len(shape), x.dim()))
    eps = call.value("eps")
    if eps is None:
        # The kernel's default is the machine epsilon of the native format.
        eps = torch.finfo(call.format("input") or torch.float32).eps
    rstd = 1.0 / torch.sqrt(x.square().mean(dims, keepdim=True) + eps)
    return [_scaled(x * rstd, call.value("weight"), None), rstd], Rounding(Kind.NORM, _size(shape))


@rule("native_group_norm", "group_norm")
def _group_norm(call: Call) -> tuple[Outputs, Rounding]:
    x = call.value("input")
    groups = int(call.raw("group") or call.raw("num_groups") or 1)
    grouped = x.reshape(x.shape[0], groups, -1)
    mean, variance = _moments(grouped, [-1])
    rstd = 1.0 / torch.sqrt(variance + call.value("eps"))
    normal = ((grouped - mean) * rstd).reshape(x.shape)
    weight, bias = (_per_channel(call.value(n), x) for n in ("weight", "bias"))
    y = _scaled(normal, weight, bias)
    return [y, mean.squeeze(-1), rstd.squeeze(-1)], Rounding(Kind.NORM, grouped.shape[-1])


def _per_channel(value: Any, x: torch.Tensor) -> Any:
    return None if value is None else value.reshape(1, -1, *([1] * (x.dim() - 2)))


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
        dims = [d for d in range(x.dim()) if d != 1]
        mean, variance = (m.flatten() for m in _moments(x, dims))
    else:
        mean, variance = running
    rstd = 1.0 / torch.sqrt(variance + eps)
    shaped = [_per_channel(v, x) for v in (mean, rstd, call.value("weight"), call.value("bias"))]
    y = _scaled((x - shaped[0]) * shaped[1], shaped[2], shaped[3])
    outputs = _statistics(call, y, mean, rstd, batch)
    if training and running[0] is not None:
        outputs += _updated(call, x, running, mean, variance)
    terms = x.numel() // max(1, x.shape[1]) if batch else 1
    return outputs, Rounding(Kind.NORM, max(1, terms)) if batch else Rounding(Kind.ROUND)


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
    length = _size([x.shape[d] for d in dims]) if x.dim() else 1
    name = call.facts.name
    if name.endswith("logsumexp"):
        return [torch.logsumexp(x, dims, bool(call.raw("keepdim")))], Rounding(Kind.SOFTMAX, length)
    if "log_softmax" in name:
        return [torch.log_softmax(x, dims[0])], Rounding(Kind.SOFTMAX, length)
    y = torch.softmax(x, dims[0])
    if name == "_safe_softmax":
        # A row of nothing but -inf is zero, not NaN.
        y = torch.where((x == float("-inf")).all(dims[0], keepdim=True), torch.zeros_like(y), y)
    return [y], Rounding(Kind.SOFTMAX, length)
