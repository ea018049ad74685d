"""What can be known of a side that has no graph: recorded results, an engine, code that leaves torch.

Its arithmetic is not seen, but its numbers are: the format that they are in, or that all of them fit in, says how
finely it computed. The other side's graph, run with the noise of that format, says what ordinary rounding would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from driftscope.errors import CannotLift
from driftscope.lift.evidence import Evidence, samples_at
from driftscope.lift.noise.arithmetics import Arithmetic
from driftscope.lift.noise.floor import NoiseSample, noise_samples
from driftscope.numerics.formats import format_of

#: Narrower formats that a side may have computed in though it answers in float32, the finer first.
_NARROWER = (torch.float16, torch.bfloat16)
#: Fractions that must all fit a narrower format: of one number in 2**13 float32 numbers that many never do by chance.
_FRACTIONS = 8


@dataclass(frozen=True, slots=True)
class Unlifted:
    """Noise for sides without a graph of their own, taken from the other side's graph once for all outputs.

    Parameters
    ----------
    taken : dict
        Noise samples by the side that they are for and by format.
    """

    taken: dict[tuple[str, str], list[NoiseSample]] = field(default_factory=dict)

    def noise(self, evidence: Evidence, pair: int, side: str, formats: Sequence[str], seed: int) -> list[torch.Tensor]:
        """The noise of one output of a side without a lift.

        Parameters
        ----------
        evidence : Evidence
        pair : int
        side : str
            ``"A"`` or ``"B"``: the side without a lift.
        formats : sequence of two str
            Formats in which A and B answer. Where the side's own is the narrower one nothing says that only its last
            step rounds to it, so all of the other's graph is measured in it.
        seed : int

        Returns
        -------
        list of Tensor
            The other side's own noise where the formats are equally fine; [] where neither side has a lift.
        """
        k = "AB".index(side)
        theirs = evidence.noise_b(pair) if side == "A" else evidence.noise_a(pair)
        own, other = format_of(formats[k]), format_of(formats[1 - k])
        if not theirs or own is None or other is None or own.unit_roundoff <= other.unit_roundoff:
            return theirs
        return self.noise_in(own.name, evidence, pair, side, seed) or theirs

    def noise_in(self, name: str, evidence: Evidence, pair: int, side: str, seed: int) -> list[torch.Tensor]:
        """The noise that the other side's graph has in a narrower format; [] where it cannot be run so."""
        k = "AB".index(side)
        lift = (evidence.b, evidence.a)[k]
        if lift.graph is None:
            return []
        if (side, name) not in self.taken:
            narrow = Arithmetic(f"{name} storage", storage=name, product=name)
            try:
                found = noise_samples(lift.graph, lift.clean, arithmetic=narrow, seed=seed + 2000)
            except CannotLift:
                found = []
            self.taken[side, name] = found
        return samples_at(self.taken[side, name], evidence.pairs[pair][1 - k])


def narrower_format(value: torch.Tensor, reference: torch.Tensor) -> str:
    """Name the narrower format that all numbers of a float32 result are in, though the reference's are not.

    Parameters
    ----------
    value, reference : float32 or float64 Tensor, shape S
        The results of the side without a graph, and of the other.

    Returns
    -------
    str
        ``"float16"`` or ``"bfloat16"``; "" where there is none, or where whole numbers are all there is.
    """
    fractions = int((value.isfinite() & (value != value.round())).sum())
    if fractions < _FRACTIONS:
        return ""
    fitting = [f for f in _NARROWER if _fits(value, f) and not _fits(reference, f)]
    return str(fitting[-1]).removeprefix("torch.") if fitting else ""


def _fits(value: torch.Tensor, narrow: torch.dtype) -> bool:
    return bool(((value.to(narrow).to(value.dtype) == value) | value.isnan()).all())
