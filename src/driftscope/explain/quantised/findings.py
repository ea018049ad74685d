"""What is said of quantised numbers that are wrong: integers, scales, zero points, ranges."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx
import torch

from driftscope.explain.quantised.activations import Swallowed
from driftscope.explain.quantised.weights import IntegerGrid
from driftscope.records.finding import Finding, Where
from driftscope.records.first_line import share
from driftscope.records.words import counted

# Values named in a finding.
_SHOWN = 3
#: Why a range with an infinity in it keeps nothing.
INFINITE = "The range of a tensor sets its scale, and infinity leaves none"


def counted_steps(steps: float) -> str:
    """Write a distance in steps of a grid: ``"1 step"``, ``"0.5 steps"``."""
    text = f"{steps:.3g}"
    return f"{text} step" + ("" if text == "1" else "s")


def wrong_weight(weight: IntegerGrid, name: str, exact: torch.Tensor, where: Where) -> Finding:
    """Say that integers are not those of the weight that they should stand for."""
    off = (weight.value - exact).abs() / weight.step
    if not bool(torch.isfinite(off).all()):
        return _infinite(weight, name, exact, where)
    why = weight.instead(exact)
    cause = why or f"its integers are up to {counted_steps(float(off.max()))} from that weight, divided by the scale"
    return Finding(
        "W012",
        f"{weight.name} is not {name} quantised: {cause}",
        "Rounding to nearest is at most half a step off.",
        f"Quantise {name} again and store integers, scale and zero point together.",
        where,
        {"weight": weight.name, "reference": name, "steps": float(off.max()), "cause": cause},
    )


def _infinite(weight: IntegerGrid, name: str, exact: torch.Tensor, where: Where) -> Finding:
    """Say that a tensor with infinities, as a mask has, was quantised, or that a scale or an integer became none."""
    lost = int((~torch.isfinite(exact)).sum())
    infinities = counted(lost, "infinity", "infinities")
    cause = f"{name} holds {infinities}, which no integer stands for" if lost else "its scale is not a finite number"
    return Finding(
        "W012",
        f"{weight.name} is not {name} quantised: {cause}",
        f"{INFINITE}.",
        f"Leave the node that reads {name} out of the quantisation (nodes_to_exclude).",
        where,
        {"weight": weight.name, "reference": name, "cause": cause},
    )


def endless_finding(nodes: Sequence[onnx.NodeProto]) -> Finding:
    """Say that activations have an infinite scale: ``nodes`` quantise them, in the order in which they run."""
    values = list(dict.fromkeys(n.input[0].removesuffix(".floats").removesuffix("_quantized") for n in nodes))
    made, more = values[0], f" and {len(values) - 1} more" if len(values) > 1 else ""
    several = len(values) > 1
    cause = f"{'their scales are' if several else 'its scale is'} infinite, and every number becomes one integer"
    return Finding(
        "W012",
        f"the quantisation of {made}{more} keeps nothing: {cause}",
        f"{INFINITE}: calibration met one there, as a mask has.",
        f"Leave the node{'s that compute' if several else ' that computes'} {' and '.join(values[:_SHOWN])} out of the"
        " quantisation (nodes_to_exclude), or mask with a finite number.",
        Where(node=nodes[0].name or nodes[0].output[0], operator=nodes[0].op_type),
        {"values": values, "cause": cause},
    )


def tried(wrong: Sequence[Finding], same: bool) -> list[Finding]:
    """Findings about wrong numbers, as verified where everything else is the other side's function."""
    return [dataclasses.replace(f, verified=True) for f in wrong] if same else list(wrong)


def swallowed_finding(lost: Swallowed, cost: float) -> Finding:
    """Say that a quantisation keeps nothing of a value; ``cost`` is what it alone does to the output, relative."""
    made = lost.value.removesuffix(".floats").removesuffix("_quantized")
    return Finding(
        "W012",
        f"the quantisation of {made} keeps nothing of it but its outliers: {lost.words}",
        f"This one quantisation, with everything else in floats, puts the output off by {share(cost)}.",
        f"Leave the node that computes {made} out of the quantisation (nodes_to_exclude).",
        Where(node=lost.node.name or lost.node.output[0], operator=lost.node.op_type),
        {"value": made, "scale": lost.scale, "farthest": lost.far, "rest": lost.rest, "output": cost,
         "cause": lost.words},
    )  # fmt: skip
