"""Casts: floats keep their precision and change the format remembered; integers, bools and float8 really round."""

from __future__ import annotations

from typing import Any

import torch

from driftscope.lift.formulas.terms import EXACT, NARROWS, ROUND
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call, TensorArgument
from driftscope.lift.torch.entries import FLOAT8, lifted_dtype
from driftscope.lift.torch.ops.registry import Outputs, rule
from driftscope.numerics.groupings import ROUNDING_RMS


def cast(operand: TensorArgument, format: torch.dtype) -> tuple[torch.Tensor, Rounding]:
    """Cast a value to a native format, in the lifted sense.

    Parameters
    ----------
    operand : TensorArgument
    format : torch.dtype

    Returns
    -------
    tuple of torch.Tensor and Rounding
    """
    if format in FLOAT8:
        return operand.native().to(format).to(torch.float64), ROUND
    inexact = format.is_floating_point or format.is_complex
    if not inexact:
        return operand.native().to(format), EXACT
    value = operand.lifted()
    if value.is_complex() and not format.is_complex:
        value = value.real
    return value.to(lifted_dtype(format)), NARROWS if _narrows(operand.format, format) else EXACT


def _narrows(source: torch.dtype, target: torch.dtype) -> bool:
    if source == target or source == torch.bool or target.is_complex:
        return False
    if not source.is_floating_point:
        return torch.iinfo(source).bits > 8
    a, b = torch.finfo(source), torch.finfo(target)
    return b.eps > a.eps or b.max < a.max


@rule("_to_copy", "to", "_autocast_to_reduced_precision", "_autocast_to_full_precision", "type_as")
def _to_copy(call: Call) -> tuple[Outputs, Rounding]:
    operand = call.raw("self")
    if not isinstance(operand, TensorArgument):  # score functions of attention are called with plain numbers
        number = torch.tensor(operand)
        operand = TensorArgument("", number.dtype, number, None)
    value, rounding = cast(operand, call.formats[0] or operand.format)
    device: Any = call.raw("device")
    return [value.to(device) if device is not None else value], rounding


@rule("convert_element_type")
def _convert(call: Call) -> tuple[Outputs, Rounding]:
    value, rounding = cast(call.raw("a"), call.formats[0] or torch.float32)
    return [value], rounding


@rule("copy", "copy_")
def _copy(call: Call) -> tuple[Outputs, Rounding]:
    target, source = call.raw("self"), call.raw("src")
    value, rounding = cast(source, target.format)
    shape = (target.stored if target.value is None else target.value).shape
    return [value.to((target.stored if target.value is None else target.value).device).expand(shape)], rounding


# Relative error up to which edited bits are a float rounded to fewer of them: bfloat16, cut, is off by 2**-7.
_ROUNDED = 2.0**-7


@rule("view_dtype")
def _reinterpret(call: Call) -> tuple[Outputs, Rounding]:
    """Read the native bits; where a program rounded a float by its bits, that is a cast to a narrower format."""
    read = call.native("self").view(call.formats[0])
    bits, source = read.to(lifted_dtype(read.dtype)), call.edited()
    if source is None or source.format != read.dtype or not read.is_floating_point():
        return [bits], EXACT
    value, native = source.lifted(), source.native().to(torch.float64)
    gap = (bits - native).abs()
    if value.shape != bits.shape or bool((gap > _ROUNDED * native.abs() + torch.finfo(read.dtype).tiny).any()):
        return [bits], EXACT
    # The noise that this error is: in the unit in which parts are measured.
    unit = 0.5 * torch.finfo(read.dtype).eps * ROUNDING_RMS
    return [value], Rounding(Kind.ROUND, parts=lambda: gap / unit, bits=bits)
