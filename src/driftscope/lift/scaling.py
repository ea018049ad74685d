"""Weights with a number multiplied in: the scale of an attention folded into its query weights.

``(x * s) @ w`` and ``x @ (w * s)`` are one function. An exporter or optimiser that multiplies ``s`` into the weights
computes the product in the model's dtype. The factor must be a number that the other program holds (or one derived
from it); a weight that is scaled by anything else stays what it is, and a factor that is not taken out elsewhere leaves
the whole program another function, whatever is matched here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.lift.matching import Number, Repair, WeightIndex, rearrangements, ulp
from driftscope.lift.steps import Constant

# Agreement of two norms that do not depend on the order of the elements, before any order is tried.
_ALIKE = 1e-3


def match_scaled(constant: Constant, index: WeightIndex, pool: Sequence[Number], ulps: float) -> Repair | None:
    """Find the weight and the number whose product ``constant`` stores, within ``ulps`` of its format.

    Parameters
    ----------
    constant : Constant
    index : WeightIndex
        The other program's weights.
    pool : sequence of Number
        Its numbers and those derived from them.
    ulps : float
    """
    stored = constant.value.to(torch.float64)
    own = constant.value.dtype
    for partner in index.alike(constant.value):
        if partner.value.dtype != own:
            continue
        exact = partner.value.to(torch.float64)
        factor = _factor(stored, exact)
        if factor is None:
            continue
        spacing = torch.finfo(own).eps
        numbers = [n for n in pool if n.value > 0 and abs(n.value - factor) <= spacing * factor and n.value != 1.0]
        for arranged in rearrangements(exact, constant.value.shape) if numbers else ():
            for number in numbers:
                value = arranged * number.value
                if bool(((stored - value).abs() <= ulps * ulp(value, own)).all()):
                    words = f"{partner.name} times {number.words}"
                    return Repair(constant.name, value, "fold", words, constant, (partner.name,))
    return None


def _factor(stored: torch.Tensor, exact: torch.Tensor) -> float | None:
    """The ratio of two tensors' norms when two different norms agree on it, in whatever order their elements are."""
    ratios = []
    for order in (1.0, 2.0):
        size = float(torch.linalg.vector_norm(exact, order))
        if not 0.0 < size < float("inf"):
            return None
        ratios.append(float(torch.linalg.vector_norm(stored, order)) / size)
    one, two = ratios
    return two if two > 0.0 and abs(one - two) <= _ALIKE * two else None
