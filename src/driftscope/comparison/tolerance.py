"""A tolerance per output, from its floor, with the reason in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from driftscope.comparison.measuring.spread import rms
from driftscope.records.kinds.output import Tolerance

# How much larger than one noise sample's largest element the next one's may be.
_MARGIN = 1.5


def suggest_tolerance(noises: Sequence[torch.Tensor], formats: tuple[str, str], roundoff: float) -> Tolerance | None:
    """Suggest ``rtol`` and ``atol`` that ordinary rounding stays within and little else does.

    Parameters
    ----------
    noises : sequence of Tensor, shape S
        Noise samples of both sides; their squares add up to the floor.
    formats : tuple of str
        Native formats of both sides, for the sentence.
    roundoff : float
        Unit roundoff of the coarser of the two.

    Returns
    -------
    Tolerance or None
        ``atol`` = 1.5 times the largest of S rounding errors to be expected: sqrt(2 ln n) + 1 standard deviations
        for n normal deviates, or the noise sample's own largest where the errors are more uneven than that.
        ``rtol`` = two roundings of the coarser format. Both rounded up to one digit of 1, 2, 5. None without a
        floor.
    """
    if not noises or noises[0].numel() == 0:
        return None
    floor = math.hypot(*map(rms, noises))
    count = noises[0].numel()
    words = formats[0] if formats[0] == formats[1] else f"{formats[0]} against {formats[1]}"
    if floor == 0.0:
        return Tolerance(0.0, 0.0, f"nothing is rounded on the way to this output ({words}): it must be equal")
    largest = max(float(n.abs().max()) for n in noises) * math.sqrt(len(noises))
    deviations = max(math.sqrt(2.0 * math.log(max(count, 2))) + 1.0, largest / floor)
    atol = round_up(_MARGIN * deviations * floor)
    # A scalar has one error, and what is expected of it has no largest.
    farthest = f"the largest of {count:,} rounding errors" if count > 1 else "its largest rounding error"
    reason = (
        f"the floor of {words} is {floor:.1e} here and {farthest} about "
        f"{deviations:.1f} times that; rtol is two roundings"
    )
    return Tolerance(round_up(2.0 * roundoff), atol, reason)


def round_up(x: float) -> float:
    """Round a positive number up to 1, 2 or 5 times a power of ten."""
    if x <= 0.0:
        return 0.0
    power = math.floor(math.log10(x))
    for digit in (1, 2, 5, 10):
        candidate = float(f"{digit}e{power}")
        if x <= candidate * (1 + 1e-12):
            return candidate
    return float(f"1e{power + 1}")
