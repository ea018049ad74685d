"""Elementwise operators whose numbers can be replaced, and those whose meaning hangs on a format or on a place."""

from __future__ import annotations

from typing import Any

import torch

from driftscope.lift.formulas.terms import EXACT, ROUND, multiplied
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call, accumulator
from driftscope.lift.torch.ops.registry import Outputs, formula, rule
from driftscope.numerics.error_model import part_error

_aten = torch.ops.aten


@formula("add", "sub", "subtract", "rsub", "mul", "multiply", "_foreach_add")
def _arithmetic(call: Call) -> torch.Tensor:
    x, other = call.value("self"), call.value("other")
    name = call.facts.name
    alpha: Any = call.value("alpha") if "alpha" in call.facts.types else 1
    if name in ("mul", "multiply"):
        return torch.mul(x, other)
    if name == "add":
        return torch.add(x, other * alpha)
    result: torch.Tensor = other - x * alpha if name == "rsub" else x - other * alpha
    return result


def _tensor(value: Any, like: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    device = like.device if isinstance(like, torch.Tensor) else None
    return torch.tensor(value, dtype=torch.float64, device=device)


@rule("pow")
def _power(call: Call) -> tuple[Outputs, Rounding]:
    """A number in the exponent is rounded to the format it is computed in, and far from 1 that is more than one ulp."""
    x, exponent, kept = call.value("self"), call.value("exponent"), accumulator(call.formats[0])
    result = torch.pow(_tensor(x, exponent), _tensor(exponent, x))
    rounded = isinstance(exponent, float) and kept is not None and kept.is_floating_point
    off = abs(float(torch.tensor(exponent, dtype=kept)) - exponent) / torch.finfo(kept).eps * 2 if rounded else 0.0
    if not off or not isinstance(x, torch.Tensor):
        return [result], Rounding(Kind.FUNCTION) if result.is_floating_point() else EXACT

    def parts() -> torch.Tensor:
        moved = result.abs() * x.abs().log().abs() * (off / part_error(functions=True))
        return torch.where(torch.isfinite(moved), moved, torch.zeros_like(moved))

    return [result], Rounding(Kind.FUNCTION, parts=parts)


@rule("polygamma")
def _polygamma(call: Call) -> tuple[Outputs, Rounding]:
    """By Hurwitz's zeta function: torch's own first derivative of digamma has ten digits in float64."""
    order, x = call.value("n"), call.value("self")
    if order != 1 or not isinstance(x, torch.Tensor):
        return [torch.polygamma(int(order), x)], Rounding(Kind.FUNCTION)
    return [torch.special.zeta(torch.full_like(x, 2.0), x)], Rounding(Kind.FUNCTION)


@rule("addcmul", "addcdiv")
def _combined(call: Call) -> tuple[Outputs, Rounding]:
    """What is added is rounded on the way, and may be a subnormal number there."""
    kept = accumulator(call.formats[0])
    a, b, number = call.value("tensor1"), call.value("tensor2"), call.value("value")
    scaled = a if number == 1 else call.step("scaled", _aten.mul.Tensor, a, number, format=kept)
    combine = _aten.mul.Tensor if call.facts.name == "addcmul" else _aten.div.Tensor
    added = call.step("added", combine, scaled, b, format=kept)
    return [torch.add(call.value("self"), added)], ROUND


@rule("prod", "cumprod")
def _multiplied(call: Call) -> tuple[Outputs, Rounding]:
    args, kwargs = call.lifted()
    x, found = call.value("self"), call.function(*args, **kwargs)
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return [found], EXACT
    if call.facts.name == "prod":
        return [found], multiplied(x.numel() // max(found.numel(), 1), found, stored=True)
    axis = int(call.value("dim")) % max(x.dim(), 1)
    length = x.shape[axis] if x.dim() else 1
    shape = [length if k == axis else 1 for k in range(x.dim())]
    return [found], multiplied(torch.arange(1, length + 1, device=x.device).reshape(shape), found)


@formula("masked_fill", "fill")
def _filled(call: Call) -> torch.Tensor:
    x = call.value("self")
    mask = call.value("mask") if call.facts.name == "masked_fill" else torch.ones_like(x, dtype=torch.bool)
    return torch.where(mask, _tensor(call.value("value"), x).to(x.dtype), x)


@formula("where")
def _where(call: Call) -> torch.Tensor:
    a, b = call.value("self"), call.value("other")
    return torch.where(call.value("condition"), _tensor(a, b), _tensor(b, a))


@formula("lerp")
def _lerp(call: Call) -> torch.Tensor:
    a = call.value("self")
    return torch.add(a, (call.value("end") - a) * call.value("weight"))


@rule("nan_to_num")
def _nan_to_num(call: Call) -> tuple[Outputs, Rounding]:
    """The largest finite number is the native format's, not float64's."""
    x, native = call.value("self"), call.format("self")
    if native is None or not native.is_floating_point:
        return [x], EXACT
    limits = torch.finfo(native)
    high, low = call.value("posinf"), call.value("neginf")
    return [
        torch.nan_to_num(
            x,
            call.value("nan") or 0.0,
            limits.max if high is None else float(high),
            limits.min if low is None else float(low),
        )
    ], EXACT


@rule("embedding", "index_select", "gather", "index", "take", "_unsafe_index")
def _looked_up(call: Call) -> tuple[Outputs, Rounding]:
    """Look up natively in a stored table: up-casting the whole of it would cost memory for nothing."""
    table = call.raw("weight" if call.facts.name == "embedding" else "self")
    if table.value is None and table.stored is not None:
        looked = call.natively()[0]
        if looked is not None:
            dtype = torch.float64 if looked.is_floating_point() else looked.dtype
            return [looked.to(torch.complex128 if looked.is_complex() else dtype)], EXACT
    args, kwargs = call.lifted()
    return [call.function(*args, **kwargs)], EXACT


@rule("as_strided")
def _as_strided(call: Call) -> tuple[Outputs, Rounding]:
    """The offset counts from the start of native memory, which may lie before the input that is lifted."""
    x, size, stride, offset = (call.value(n) for n in ("self", "size", "stride", "storage_offset"))
    reference = call.entry.args[0]
    shift = 0 if offset is None else offset - call.replay.tape.values[reference.value].offset
    return [x.as_strided(size, stride, x.storage_offset() + shift)], EXACT
