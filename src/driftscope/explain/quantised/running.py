"""What a quantised graph natively gives, beside what its integers promise: kernels whose sums saturate are found.

Only a replay says so: the graph is evaluated again with sums of two 8-bit products held to 16 bits, and has to give
what the runtime gave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from driftscope.comparison.measuring.spread import rms
from driftscope.explain.locate.targets import finite
from driftscope.explain.quantised.undoing import Quantisation
from driftscope.lift.evidence import Evidence
from driftscope.lift.formulas.quantisation import sums_of_two_saturate
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.answer import share

# Of the error that the integers make, what a kernel must add before anybody asks why; and of that, what a replay
# may leave.
_MATERIAL, _LEFT = 0.1, 0.1


@dataclass(frozen=True, slots=True)
class AsRun:
    """One output of a quantised side as the runtime computed it.

    Parameters
    ----------
    words : str
        By how much it is off, and what of that the integers themselves make.
    saturation : Finding or None
        Where a replay with saturating sums gives what the runtime gave.
    """

    words: str
    saturation: Finding | None = None


def as_run(found: Quantisation, evidence: Evidence, pair: int, native: tuple[torch.Tensor, torch.Tensor]) -> AsRun:
    """Measure one output of the quantised side against the other side, natively and with exact integers.

    Parameters
    ----------
    found : Quantisation
    evidence : Evidence
    pair : int
        Index into ``evidence.pairs``.
    native : pair of torch.Tensor
        What A and B natively gave.
    """
    k = "AB".index(found.side)
    sides, places = (evidence.a, evidence.b), evidence.pairs[pair]
    exact, other = (sides[i].clean[places[i]].value for i in (k, 1 - k))
    if exact is None or other is None:
        return AsRun("with everything quantised the output is off")
    size = rms(finite(other)) or math.inf
    ran = native[k].to(exact)
    promised = rms(finite(exact - other)) / size
    off = rms(finite(ran - other)) / size
    added = rms(finite(ran - exact)) / size
    words = f"with everything quantised the output is off by {share(off)}"
    graph = sides[k].graph
    if graph is None or added <= _MATERIAL * promised:
        return AsRun(words)
    words += f", {share(promised)} if its integers were multiplied exactly"
    with sums_of_two_saturate():
        again = graph.run()[places[k]].value
    left = math.inf if again is None else rms(finite(ran - again)) / size
    if left > _LEFT * added:
        return AsRun(words)
    return AsRun(words, _saturates(found.side, off, promised, left))


def _saturates(side: str, off: float, promised: float, left: float) -> Finding:
    return Finding(
        "N025",
        f"integer products of {side} saturate on this processor: its output is off by {share(off)}, and by "
        f"{share(promised)} with exact integers",
        "Without an 8-bit dot product (VNNI) a processor adds two products of uint8 and int8 in 16 bits, and what is "
        "larger than 32767 is cut off. Evaluated in that way, the graph gives what the runtime gave.",
        "Quantise with reduce_range=True or with unsigned weights (weight_type=QuantType.QUInt8).",
        Where(operator="MatMulInteger"),
        {"side": side, "off": off, "exact": promised, "replay": {"way": "sums of two saturate", "rest": left}},
    )
