"""Activations whose scale keeps nothing of them: a mask or another outlier sets the range, and all else is one level.

Calibration takes the range from the largest number it meets. A mask of -3.4e38 added to attention scores before they
are quantised makes one step 1.3e36 wide: every score becomes 0. Such a scale is looked for in one float run of the
graph, and blamed after it alone, put back, cost the output more than any weight does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import torch

from driftscope.comparison.measuring.spread import rms
from driftscope.explain.quantised.weights import LARGEST, Graph
from driftscope.lift.steps import Lifted, Step

#: Of the numbers that are left when those at the level farthest out are set aside: what a quantisation that keeps
#: nothing of them is off by, relative, and how many there must be, of all.
_LOST, _MANY = 0.5, 0.05
#: Times the number farthest out, beyond which a range was not made for it: softmax is given 0 to 1.
_UNFILLED = 2.0


@dataclass(frozen=True, slots=True)
class Swallowed:
    """A quantised activation of which only its outliers are left.

    Parameters
    ----------
    node : onnx.NodeProto
        The QuantizeLinear.
    value : str
        What it quantises.
    scale, far, rest : float
        Its scale, the number that is farthest out, and the root-mean-square of the numbers it turns into one.
    end : float
        The end of the range that its integers span, on the side of the farthest number.
    lost, count : int
        How many numbers become one, and how many there are.
    """

    node: onnx.NodeProto
    value: str
    scale: float
    far: float
    rest: float
    end: float
    lost: int
    count: int

    @property
    def words(self) -> str:
        """What it does, in one clause."""
        wide = abs(self.end) > _UNFILLED * abs(self.far)
        because = f"for a range to {self.end:.3g}, and its numbers go to {self.far:.3g}"
        because = because if wide else f"because its range goes to {self.far:.3g}"
        return (
            f"its scale is {self.scale:.3g}, {because}; the other {self.lost:,} of its {self.count:,} numbers, "
            f"about {self.rest:.2g} in size, all become one integer"
        )


def swallowed(floats: Lifted, quantisers: Mapping[str, onnx.NodeProto], graph: Graph) -> list[Swallowed]:
    """Find the activations of which a quantisation keeps nothing but outliers.

    Parameters
    ----------
    floats : Lifted
        The graph with its quantisation undone; it is run once.
    quantisers : mapping of str to onnx.NodeProto
        By the name of its result, each QuantizeLinear of an activation.
    graph : Graph
        The quantised graph, which knows scales and zero points.
    """
    found = []

    def see(step: Step) -> None:
        node = quantisers.get(step.output_names[0]) if step.output_names else None
        value = step.inputs[0] if node is not None and step.inputs else None
        if node is not None and value is not None and value.is_floating_point():
            lost = _keeps_nothing(node, value, graph)
            if lost is not None:
                found.append(lost)

    floats.run(observe=see)
    return found


def _keeps_nothing(node: onnx.NodeProto, value: torch.Tensor, graph: Graph) -> Swallowed | None:
    scale = graph.array(node.input[1])
    zero = graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros((), np.uint8)
    if scale is None or scale.size != 1 or zero is None or not np.issubdtype(zero.dtype, np.integer):
        return None
    step, offset, ends = float(scale.reshape(-1)[0]), float(zero.reshape(-1)[0]), np.iinfo(zero.dtype)
    # A mask may have become infinite on its way through the integers.
    numbers = torch.nan_to_num(value, nan=0.0, posinf=LARGEST, neginf=-LARGEST).flatten()
    if numbers.numel() < 2 or not math.isfinite(step) or step == 0:
        return None
    levels = (torch.round(numbers / step) + offset).clamp(float(ends.min), float(ends.max))
    far = levels[numbers.abs().argmax()]
    rest, kept = numbers[levels != far], levels[levels != far]
    if rest.numel() < _MANY * numbers.numel() or rest.numel() < 2 or bool((kept != kept[0]).any()):
        return None
    size = rms(rest)
    if size == 0 or rms(rest - (kept - offset) * step) < _LOST * size or bool((rest == rest[0]).all()):
        return None
    outlier = float(numbers[numbers.abs().argmax()])
    end = step * (float(ends.max if outlier > 0 else ends.min) - offset)
    return Swallowed(node, node.input[0], step, outlier, size, end, rest.numel(), numbers.numel())
