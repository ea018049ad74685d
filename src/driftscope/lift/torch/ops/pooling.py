"""Pooling and sums whose squares are known."""

from __future__ import annotations

from typing import Any

import torch

from driftscope.lift.formulas.terms import EXACT
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.entries import tensors_in
from driftscope.lift.torch.ops.registry import Outputs, rule


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
      "fractional_max_pool2d", "fractional_max_pool3d")  # fmt: skip
def _max_pool(call: Call) -> tuple[Outputs, Rounding]:
    """The largest value is float64's own; its index is decided natively."""
    args, kwargs = call.lifted()
    values = tensors_in(call.function(*args, **kwargs))[0]
    return [values, call.natively()[1]], EXACT


@rule("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(call: Call) -> tuple[Outputs, Rounding]:
    """Sum rows of a table; the integers beside the result are the native kernel's, whose shapes hang on the format."""
    args, kwargs = call.lifted()
    values = tensors_in(call.function(*args, **kwargs))[0]
    rows = max(1, args[1].numel() // max(1, values.shape[0] if values is not None else 1))
    return [values, *call.natively()[1:]], Rounding(Kind.SUM, rows)


@rule("sum", "mean", "nansum", "cumsum")
def _sum(call: Call) -> tuple[Outputs, Rounding]:
    args, kwargs = call.lifted()
    if call.formats[0] is not None and not (call.formats[0].is_floating_point or call.formats[0].is_complex):
        return call.natively(), EXACT
    x = args[0]
    out = call.function(*args, **kwargs)
    name = call.facts.name
    if name == "cumsum":
        if call.device == "cpu" and call.formats[0] is torch.float32:
            return [out], Rounding(Kind.SUM, 1)  # accumulated in float64 there, and rounded once
        return [out], Rounding(
            Kind.SUM, int(x.shape[int(args[1])]) if x.dim() else 1, _squares(call, x, args, kwargs, 1)
        )
    length = max(1, x.numel() // max(1, out.numel()))
    divisor = length if name == "mean" else 1
    return [out], Rounding(Kind.SUM, length, _squares(call, x, args, kwargs, divisor))


def _squares(call: Call, x: torch.Tensor, args: list[Any], kwargs: dict[str, Any], divisor: int) -> Any:
    if x.is_complex():
        return None
    return lambda: call.function(x.to(torch.float64).square(), *args[1:], **kwargs) / divisor
