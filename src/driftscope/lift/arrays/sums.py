"""How numpy adds up: in pairs along the innermost axis in memory, one after the other along every other.

Measured on 4096 float32 numbers of mean one, rms error in unit roundoffs: ``sum`` 0.7 along the innermost axis and
14 along the first, ``var`` 0.8 and 15, ``cumsum`` 11, ``prod`` 46, a norm 0.5 and 7, ``einsum`` of three factors 15.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.entries import Ref, TensorValue

_ACCUMULATING = ("cumsum", "cumprod", "logcumsumexp")


def numpy_rounding(call: Call, rounding: Rounding) -> Rounding:
    """Describe the rounding of a step that numpy computed, where its sums differ from torch's."""
    name = call.facts.name
    value = _first(call)
    if value is None or not value.shape:
        return rounding
    if name in _ACCUMULATING:
        dim = int(call.raw("dim"))
        return Rounding(Kind.SUM, value.shape[dim], _running_squares(call, dim), running=True, stored=True)
    if rounding.kind is Kind.DOT:
        return replace(rounding, running=call.entry.place.operator == "numpy.einsum")
    if rounding.kind is not Kind.SUM:
        return rounding
    running = name == "prod" or _outer(value, call.raw("dim"))
    # Means and variances of float16 are added up in float32, sums along outer axes in float16 itself.
    return replace(rounding, running=running, stored=running and name in ("sum", "prod"))


def _first(call: Call) -> TensorValue | None:
    ref = next((a for a in call.entry.args if isinstance(a, Ref)), None)
    return None if ref is None else call.replay.tape.values[ref.value]


def _running_squares(call: Call, dim: int) -> Any:
    if call.facts.name != "cumsum":
        return None
    return lambda: torch.cumsum(call.value("self").square(), dim)


def _outer(value: TensorValue, dims: Any) -> bool:
    """Whether a reduction leaves out the axis that lies innermost in memory."""
    if dims is None or not value.shape:
        return False
    reduced = {int(d) % len(value.shape) for d in ([dims] if isinstance(dims, int) else dims)}
    sized = [d for d, n in enumerate(value.shape) if n > 1 and value.strides[d] > 0]
    return bool(sized) and bool(reduced) and min(sized, key=lambda d: value.strides[d]) not in reduced
