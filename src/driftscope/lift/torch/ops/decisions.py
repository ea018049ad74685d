"""Decisions: comparisons, indices and rounding see values in their native formats, so that the lift takes the
branch, the element and the integer that the program takes. Floats are then taken at the chosen places."""

from __future__ import annotations

import torch

from driftscope.lift.choices import choices_are_exact, exact_choices
from driftscope.lift.formulas.terms import EXACT, FUNCTION, ROUND, summed
from driftscope.lift.steps import Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.entries import lifted_dtype
from driftscope.lift.torch.ops.registry import Outputs, rule

_NATIVE = """
eq ne lt le gt ge not_equal less greater isnan isinf isposinf isneginf isfinite isreal logical_and logical_or
logical_not logical_xor signbit isclose heaviside any all argmax argmin argsort
searchsorted bucketize nonzero nonzero_static histc count_nonzero isin bitwise_and bitwise_or bitwise_not
bitwise_xor _is_all_true _is_any_true unique_dim _unique _unique2 unique_consecutive unique_dim_consecutive
nextafter histogram quantize_per_tensor_dynamic quantize_per_channel_group
one_hot choose_qparams choose_qparams_optimized _choose_qparams_per_tensor int_repr nms combinations
"""


@rule(*_NATIVE.split())
def natively(call: Call) -> tuple[Outputs, Rounding]:
    """Evaluate in native formats; whatever floats come out are exact in them."""
    outputs = [None if t is None else _up(t) for t in call.natively()]
    return outputs, EXACT


def _up(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_quantized else tensor.to(lifted_dtype(tensor.dtype))


@rule("floor", "ceil", "trunc", "fix")
def whole(call: Call) -> tuple[Outputs, Rounding]:
    """Round natively to whole numbers, but for what left the range of its format: that decided nothing."""
    (decided,), rounding = natively(call)
    x = call.value("self")
    if decided is None or not decided.is_floating_point() or bool(torch.isfinite(decided).all()):
        return [decided], rounding
    with exact_choices():
        exact = natively(call)[0][0]
    left = torch.isfinite(x) & ~torch.isfinite(decided)
    return [decided if exact is None else torch.where(left, exact, decided)], rounding


@rule("bincount")
def _bincount(call: Call) -> tuple[Outputs, Rounding]:
    """Where an element counts is an integer; what it counts with follows."""
    if call.raw("weights") is None:
        return natively(call)
    places, weights, size = call.native("self"), call.value("weights").to(torch.float64), call.raw("minlength") or 0

    def squares() -> torch.Tensor:
        return torch.bincount(places, weights.square(), size)

    return [torch.bincount(places, weights, size)], summed(places.numel(), squares)


@rule("round")
def _round(call: Call) -> tuple[Outputs, Rounding]:
    """Decide natively; decimals are then exact in float64, as integers over a power of ten, and rounded once."""
    (rounded,), rounding = whole(call)
    decimals = call.raw("decimals")
    if decimals and rounded is not None and rounded.is_floating_point():
        return [torch.round(rounded, decimals=decimals)], ROUND
    return [rounded], rounding


@rule("sign", "sgn")
def _sign(call: Call) -> tuple[Outputs, Rounding]:
    """The native sign, but of numbers too small for the format: it has lost them, and decided nothing."""
    (decided,), rounding = natively(call)
    x, fmt = call.value("self"), call.format("self")
    if decided is None or fmt is None or not fmt.is_floating_point:
        return [decided], rounding
    lost = (decided == 0) & (x.abs() < torch.finfo(fmt).smallest_normal * torch.finfo(fmt).eps)
    return [torch.where(lost, x.sign(), decided)], rounding


@rule("logit", "special_logit")
def _logit(call: Call) -> tuple[Outputs, Rounding]:
    """The native value chooses the side of each limit: rounded, ``1 - eps`` may be 1, which is not above it."""
    x, native, eps = call.value("self").to(torch.float64), call.native("self"), call.value("eps")
    native = native if native.is_floating_point() else x
    if eps is not None:
        low = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
        high = 1.0 - low
        x = torch.where(native < low.to(native.dtype), low, torch.where(native > high.to(native.dtype), high, x))
    return [torch.logit(x)], FUNCTION


@rule("floor_divide")
def _floor_divide(call: Call) -> tuple[Outputs, Rounding]:
    return natively(call)


@rule("div", "divide", "true_divide")
def _div(call: Call) -> tuple[Outputs, Rounding]:
    if call.raw("rounding_mode") is not None:
        return natively(call)
    return [torch.true_divide(call.value("self"), call.value("other"))], ROUND


@rule("remainder", "fmod")
def _remainder(call: Call) -> tuple[Outputs, Rounding]:
    """Take what the native program chose, and what rounding its operands left out of dividend and divisor."""
    decided = call.natively()[0]
    if decided is None or not decided.is_floating_point():
        return [decided], EXACT
    x, y = (_exact(call, n) for n in ("self", "other"))
    chosen, fmt = _up(decided), call.formats[0]
    near_x, near_y = (_rounded(call, n, fmt) for n in ("self", "other"))
    # No digit of a truncated remainder is rounded, however far out; the native quotient may be one more or less.
    truncated = torch.fmod(near_x, near_y)
    whole_x = truncated + torch.round((chosen - truncated) / near_y) * near_y
    moved = torch.round((near_x - chosen) / near_y) * (y - near_y)
    # Where that is more than the divisor, digits that the program does not have would choose the remainder.
    exact = whole_x + (x - near_x) - torch.where(moved.abs() <= y.abs(), moved, torch.zeros_like(moved))
    return [torch.where(torch.isfinite(exact), exact, chosen)], ROUND


def _exact(call: Call, name: str) -> torch.Tensor:
    return torch.as_tensor(call.value(name), dtype=torch.float64)


def _rounded(call: Call, name: str, fmt: torch.dtype | None) -> torch.Tensor:
    """An operand as the program reads it; a number is rounded to the format of the result."""
    native = torch.as_tensor(call.native(name), dtype=None if call.format(name) is not None else torch.float64)
    rounds = call.format(name) is None and fmt is not None and fmt.is_floating_point and not choices_are_exact()
    return (native.to(fmt) if rounds else native).to(torch.float64)


@rule("frac")
def _frac(call: Call) -> tuple[Outputs, Rounding]:
    return [call.value("self") - torch.trunc(call.native("self")).to(torch.float64)], EXACT


@rule("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin", "msort", "_cummax_helper")
def _chosen(call: Call) -> tuple[Outputs, Rounding]:
    """Take float64 values at the indices chosen natively."""
    outputs = call.natively()
    if len(outputs) < 2 or outputs[1] is None:
        x, decided = call.value("self").flatten(), call.native("self").flatten()
        where = torch.nonzero(decided == outputs[0])
        value = x[where[0, 0]] if where.numel() else _up(outputs[0])
        return [value], EXACT
    values = _taken(call, outputs[1])
    return [values, *outputs[1:]], EXACT


def _taken(call: Call, indices: torch.Tensor) -> torch.Tensor:
    x = call.value("self")
    if not x.is_floating_point() or x.dim() == 0:
        return x if x.dim() == 0 else _gathered(x, indices, _dimension(call))
    return _gathered(x, indices, _dimension(call))


def _dimension(call: Call) -> int:
    dim = call.raw("dim")
    return -1 if dim is None else int(dim)


def _gathered(x: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    if indices.dim() == x.dim():
        return x.gather(dim, indices)
    return x.gather(dim, indices.unsqueeze(dim)).squeeze(dim)


@rule("max", "min")
def _extreme(call: Call) -> tuple[Outputs, Rounding]:
    """The largest value is continuous, so it is float64's own; only its index is a native decision."""
    dim, other = call.raw("dim"), call.raw("other")
    largest = call.facts.name == "max"
    x = call.value("self")
    if other is not None:
        return [(torch.maximum if largest else torch.minimum)(x, call.value("other"))], EXACT
    if dim is None:
        return [x.max() if largest else x.min()], EXACT
    indices = call.natively()[1]
    keep = bool(call.raw("keepdim"))
    if not x.is_floating_point():
        return [(x.max(dim, keep) if largest else x.min(dim, keep))[0], indices], EXACT
    return [(x.amax(dim, keep) if largest else x.amin(dim, keep)), indices], EXACT
