"""What a quantised graph natively gives, beside what its integers promise: kernels whose sums saturate are found.

Only a replay says so: the graph is evaluated again with sums of two 8-bit products held to 16 bits, and has to give
what the runtime gave.
"""

from __future__ import annotations

import functools
import math

import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.lift.evidence import Evidence
from driftscope.lift.formulas.quantisation import sums_of_two_saturate
from driftscope.lift.steps import LiftedOutput
from driftscope.records.finding import Finding, Where
from driftscope.records.first_line import share

# Of the error that the integers make, what a kernel must add before anybody asks why; and of that, what a replay
# may leave.
_MATERIAL, _LEFT = 0.1, 0.1


class QuantisedRun:
    """The outputs of a quantised side as its runtime computed them.

    Parameters
    ----------
    side : str
        ``"A"`` or ``"B"``, the quantised one.
    evidence : Evidence
    """

    def __init__(self, side: str, evidence: Evidence):
        self.side, self.evidence = side, evidence
        self._seen: list[Finding] = []

    def words(self, pair: int, native: tuple[torch.Tensor, torch.Tensor]) -> str:
        """Say by how much an output is off, and, where a replay shows it, what of that saturating sums make.

        Parameters
        ----------
        pair : int
            Index into ``evidence.pairs``.
        native : pair of torch.Tensor
            What A and B natively gave.
        """
        k = "AB".index(self.side)
        sides, places = (self.evidence.a, self.evidence.b), self.evidence.pairs[pair]
        exact, other = (sides[i].clean[places[i]].value for i in (k, 1 - k))
        if exact is None or other is None:
            return "the error of all of them could not be measured"
        size = rms(finite(other)) or math.inf
        ran = native[k].to(exact)
        promised, off, added = (rms(finite(d)) / size for d in (exact - other, ran - other, ran - exact))
        words = f"with all of them the output is off by {share(off)}"
        if added <= _MATERIAL * promised or share(off) == share(promised):
            return words
        again = self._saturating[places[k]].value
        left = math.inf if again is None else rms(finite(ran - again)) / size
        if left > _LEFT * added:
            return f"{words}, {share(promised)} where its graph is evaluated in float64"
        self._seen.append(_saturates(self.side, off, promised, left))
        return f"{words}, {share(promised)} if its integers were multiplied exactly"

    def findings(self) -> list[Finding]:
        """The output that saturating sums moved most; none where no replay showed it."""
        return sorted(self._seen, key=lambda f: -float(f.evidence["off"]))[:1]

    @functools.cached_property
    def _saturating(self) -> list[LiftedOutput]:
        """One run of the graph with sums held to 16 bits, for all outputs."""
        graph = (self.evidence.a, self.evidence.b)["AB".index(self.side)].graph
        assert graph is not None  # its outputs were there
        with sums_of_two_saturate():
            return graph.run()


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
