"""What is said of quantised numbers that are wrong: integers, scales, zero points, ranges."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from driftscope.explain.quantised.activations import Swallowed
from driftscope.explain.quantised.weights import IntegerGrid
from driftscope.records.finding import Finding, Where
from driftscope.records.first_line import share
from driftscope.records.words import counted


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
        "The range of a tensor sets its scale, and infinity leaves none.",
        f"Leave the node that reads {name} out of the quantisation (nodes_to_exclude).",
        where,
        {"weight": weight.name, "reference": name, "cause": cause},
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
