"""Every threshold a verdict rests on, in one place, each with the measurement that chose it.

The measurements are the project's own calibration runs (``tests/lift/test_noise_calibration.py``,
``tests/planted``); ``docs/design/0002-verdict.md`` discusses them. Every record prints those it used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from driftscope.numerics.formats import format_of


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers of DESIGN section 2.

    Parameters
    ----------
    lifted : float
        Relative lifted drift below which two programs are the same function, whatever their float64 floor is. Clean
        pairs with reconciled constants stay below 1e-14; a literal written in float64 is off by 1e-16 itself.
    lifted_floor64 : float
        The same limit in multiples of the float64 floor, for graphs whose own float64 rounding is larger.
    chaotic : float
        When that limit exceeds this, the graph amplifies float64 rounding itself: nothing can be certified.
    rounding, large : float
        Largest rho of ordinary rounding (honest variants: 0.07 to 1.4), and of unusually large rounding.
    ill_conditioned : float
        floor / rms above which rounding alone moves the output visibly.
    tie : float
        Margin, in floors, within which a choice between floats (argmax, comparison) is a tie.
    repeat : float
        rms(A - A again) in floors above which a program is random rather than nondeterministic in its sums.
    constant_ulps : float
        Distance, in ulps of the storage format, within which a natively folded constant is the same constant.
    replay : float
        Correlation from which a replayed error is the native one. Planted arithmetics reach 0.99 and more where the
        replay is the right one, 0.7 at most where it is another.
    """

    lifted: float = 1e-13
    lifted_floor64: float = 100.0
    chaotic: float = 1e-6
    rounding: float = 1.5
    large: float = 2.5
    ill_conditioned: float = 0.1
    tie: float = 3.0
    repeat: float = 4.0
    constant_ulps: float = 2.0
    replay: float = 0.9

    def to_dict(self) -> dict[str, float]:
        """Return the thresholds as plain data for a record."""
        return asdict(self)


THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What rounding may do to a value where no floor was measured.

    Parameters
    ----------
    relative : float
        Relative to the value itself.
    of_scale : float
        Relative to the largest value of its tensor.
    """

    relative: float
    of_scale: float


#: By format. On torch's operator database the largest honest difference of a batched and a plain kernel stays 1.5 times
#: below or more; planted defects stand orders of magnitude above. float64 is wide for linear algebra's sake.
AGREEMENT: dict[str, Allowance] = {
    "float64": Allowance(1e-8, 1e-9),
    "float32": Allowance(1e-4, 2e-5),
    "float16": Allowance(8e-3, 4e-3),
    "bfloat16": Allowance(3.2e-2, 1.6e-2),
}


def allowance(*dtypes: str) -> Allowance:
    """Return what rounding may do between values of these dtypes: that of the coarsest.

    Other formats than those of :data:`AGREEMENT` may be off by two ulps; integers, booleans and texts by nothing.
    """
    formats = [f for f in map(format_of, dtypes) if f is not None]
    if not formats:
        return Allowance(0.0, 0.0)
    coarsest = max(formats, key=lambda f: f.unit_roundoff)
    return AGREEMENT.get(coarsest.name, Allowance(4.0 * coarsest.unit_roundoff, 0.0))
