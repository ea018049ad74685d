"""Casts: between float formats nothing is rounded, to everything else the native value decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from driftscope.lift.formulas.terms import EXACT, NARROWS
from driftscope.lift.onnx.element_types import (
    FORMAT_OF_ELEMENT,
    NARROW_INTEGERS,
    SMALL_FLOATS,
    STRING_ELEMENT,
    Format,
    round_to,
    storage,
)
from driftscope.lift.onnx.registry import Node, Result, Value, operator, strings


@operator("Cast", since=6)
def cast(node: Node, x: Any) -> Result:
    """Another element type."""
    element = node.integer("to")
    return cast_to(node, x, None if element == STRING_ELEMENT else FORMAT_OF_ELEMENT[element])


@operator("CastLike", values=True)
def cast_like(node: Node, x: Value, like: Value) -> list[Value]:
    """The element type of another value, whose numbers do not matter."""
    lifted = x if x.constant else node.lift(0, x)
    node.lifted = not x.constant
    result = cast_to(node, lifted.data, like.format)
    native = like.format
    data = result.outputs
    if isinstance(data, Tensor) and native is not None and x.constant:
        data = data.to(storage(native))
    return [Value(data, native, x.constant)]


def cast_to(node: Node, x: Any, target: Format) -> Result:
    """Cast strings, integers or floats to a format (None for strings)."""
    if isinstance(x, np.ndarray):
        return Result(x if target is None else _parse(x, target, node), formats=[target])
    if target is None:
        return Result(_print(node.rounded(x)))
    if target in SMALL_FLOATS:
        return _to_small_float(node, x, target)
    if target.is_floating_point:
        rounding = EXACT if _widens(node.format(0), target) else NARROWS
        return Result(_to_float(x, target, node), rounding, [target])
    if target == torch.bool:
        return Result(node.rounded(x) != 0, formats=[target])
    return Result(_to_integer(node.rounded(x), target), formats=[target])


def _widens(source: Format, target: torch.dtype) -> bool:
    """Whether every value of a format is a value of the other."""
    if source is None or source == target or source == torch.bool:
        return True
    if target == torch.float64:
        return source not in (torch.int64, torch.uint64)
    small = source in SMALL_FLOATS or source in (torch.int8, torch.uint8)
    return small or (target == torch.float32 and source in (torch.float16, torch.bfloat16))


def _to_float(x: Tensor, target: torch.dtype, node: Node) -> Tensor:
    # Lifted, a cast to a float format only renames the format: integers and floats keep their real value.
    if x.is_complex():
        x = x.real
    return x.to(torch.float64) if node.lifted else x.to(target)


def _to_small_float(node: Node, x: Tensor, target: torch.dtype) -> Result:
    wide = node.rounded(x).to(torch.float64)
    saturate = node.integer("saturate", 1) == 1
    if target == torch.float8_e8m0fnu:
        result = _power_of_two(wide, node.text("round_mode", "up"), saturate)
    else:
        result = round_to(wide, target, saturate=saturate)
    return Result(result, EXACT, [target])


def _power_of_two(x: Tensor, mode: str, saturate: bool) -> Tensor:
    """Round magnitudes to E8M0's powers of two (Open Compute microscaling formats)."""
    magnitude = x.abs()
    exponent = torch.frexp(magnitude).exponent - 1
    low = torch.ldexp(torch.ones_like(magnitude), exponent.clamp(-127, 127))
    if mode == "nearest":
        result = torch.where(magnitude >= 1.5 * low, 2 * low, low)
    else:
        result = torch.where((magnitude > low) & (mode == "up"), 2 * low, low)
    result = torch.where(magnitude == 0, 2.0**-127, result)
    over = result > 2.0**127
    result = torch.where(over, 2.0**127 if saturate else torch.nan, result)
    return torch.where(torch.isfinite(x), result, torch.nan)


def _to_integer(x: Tensor, target: torch.dtype) -> Tensor:
    dtype = storage(target)
    if x.is_floating_point():
        if target == torch.uint64:
            return _to_uint64(x)
        x = torch.trunc(x).to(torch.int64)
    if target in NARROW_INTEGERS:
        low, high = NARROW_INTEGERS[target]
        return (torch.remainder(x.to(torch.int64) - low, high - low + 1) + low).to(dtype)
    return x.to(dtype)


def _to_uint64(x: Tensor) -> Tensor:
    high = x >= 2.0**63
    return torch.where(high, x - 2.0**64, x).to(torch.int64)


def _parse(x: Any, target: torch.dtype, node: Node) -> Tensor:
    if target == torch.bool:
        flat = [text not in ("", "0", "False", "false") for text in x.reshape(-1)]
        return torch.tensor(flat, device=node.device).reshape(x.shape)
    if target.is_floating_point:
        numbers = torch.tensor([float(text) for text in x.reshape(-1)], dtype=torch.float64)
        # Text is read in the native format: a decimal string is stored rounded.
        return round_to(numbers, target).reshape(x.shape).to(node.device)
    whole = [int(float(text)) for text in x.reshape(-1)]
    return torch.tensor(whole, dtype=storage(target), device=node.device).reshape(x.shape)


def _print(x: Tensor) -> Any:
    if x.is_floating_point():
        texts = [np.format_float_positional(np.float32(v), trim="-", unique=True) for v in x.reshape(-1).tolist()]
        texts = [{"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(text, text) for text in texts]
    else:
        texts = [str(v) for v in x.reshape(-1).tolist()]
    result = np.empty(len(texts), dtype=object)
    result[:] = texts
    return strings(result.reshape(tuple(x.shape)))
