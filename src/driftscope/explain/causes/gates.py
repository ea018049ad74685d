"""Gate blocks of a recurrent layer that stand in another order than ONNX reads them in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.explain.causes.rewiring import Reason, Trials
from driftscope.explain.locate.divergence import Parting
from driftscope.explain.locate.fingerprints import Visited
from driftscope.lift.steps import Constant

# torch's gates by letter, and ONNX's order of them: https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html
_TORCH = {"LSTM": "ifco", "GRU": "rzh"}
_ONNX = {"LSTM": "iofc", "GRU": "zrh"}


def gate_order(
    parting: Parting, constants: tuple[Sequence[Constant], Sequence[Constant]], trials: Trials
) -> Reason | None:
    """The stored tensors of an ONNX LSTM or GRU whose gate blocks, put in ONNX's order, give A's value.

    Parameters
    ----------
    parting : Parting
        Its counterpart is torch's layer, or a part of it.
    constants : pair of sequences of Constant
        A's and B's.
    trials : Trials
    """
    step = next((s for s in (parting.step, *parting.piece) if s.operator in _TORCH), None)
    if step is None or parting.counterpart is None or not parting.counterpart.operator.startswith("aten."):
        return None
    sources = [c.value for c in constants[0] if c.value.dtype.is_floating_point and c.value.numel() > 1]
    repaired, words = {}, ""
    for constant in _read(step, constants[1]):
        value, order = _in_order(constant.value, sources, step.operator)
        if value is not None and order != _ONNX[step.operator]:
            repaired[constant.name] = value.to(torch.float64)
            words = words or ", ".join(order)
    if not repaired or not (trials.constants(repaired) or trials.whole(repaired)):
        return None
    names, wanted = ", ".join(repaired), ", ".join(_ONNX[step.operator])
    return Reason(
        f"the gate blocks of {names} stand in the order {words}, and ONNX's {step.operator} reads {wanted}",
        f"Store the gate blocks of {names} in the order {wanted}.",
        True,
        None if step is parting.step else step,
    )


def _read(step: Visited, own: Sequence[Constant]) -> list[Constant]:
    return [c for c in own if c.name in (*step.inputs, *step.stored) and c.value.ndim in (2, 3)]


def _in_order(value: torch.Tensor, sources: Sequence[torch.Tensor], operator: str) -> tuple[torch.Tensor | None, str]:
    """Lay A's elements out as ONNX wants them; tell the order in which ``value`` holds them. None: they are not A's.

    ``value`` is (directions, gates * hidden, ...), or (directions, 2 * gates * hidden) for the two biases.
    """
    parts, order = [], _ONNX[operator]
    for direction in value:
        for half in direction.chunk(2, 0) if direction.ndim == 1 else (direction,):
            found = _source(half, sources)
            if found is None or found.shape[0] % len(order):
                return None, ""
            blocks = dict(zip(_TORCH[operator], found.chunk(len(order), 0), strict=True))
            mine = half.chunk(len(order), 0)
            held = "".join(next((g for g, b in blocks.items() if torch.equal(b, m)), "?") for m in mine)
            if held != _ONNX[operator] or order == _ONNX[operator]:
                order = held
            parts.append(torch.cat([blocks[g] for g in _ONNX[operator]], 0))
    return torch.cat(parts, 0).reshape(value.shape), order


def _source(part: torch.Tensor, sources: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A's tensor that holds the same numbers."""
    wanted = part.flatten().sort().values
    for source in sources:
        if source.numel() == part.numel():
            rounded = source.to(part)
            if torch.equal(rounded.flatten().sort().values, wanted):
                return rounded.reshape(part.shape)
    return None
