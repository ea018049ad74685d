"""Every threshold a verdict rests on, in one place, each with the measurement that chose it.

The measurements are the project's own calibration runs (``tests/lift/test_noise_calibration.py``,
``tests/planted``); ``docs/design/0002-verdict.md`` discusses them. Every record prints those it used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers of DESIGN section 2.

    Parameters
    ----------
    lifted : float
        Relative lifted drift below which two programs are the same function. Clean pairs with reconciled
        constants stay below 1e-13, the smallest planted bug reaches 1.5e-9.
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
    """

    lifted: float = 1e-11
    lifted_floor64: float = 100.0
    chaotic: float = 1e-6
    rounding: float = 1.5
    large: float = 2.5
    ill_conditioned: float = 0.1
    tie: float = 3.0
    repeat: float = 4.0
    constant_ulps: float = 2.0

    def to_dict(self) -> dict[str, float]:
        """Return the thresholds as plain data for a record."""
        return asdict(self)


THRESHOLDS = Thresholds()
