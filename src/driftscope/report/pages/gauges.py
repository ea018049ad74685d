"""Where a measurement stands on its axis: positions for the small bars beside the numbers."""

from __future__ import annotations

import math

WIDTH = 120.0  # of the drawing, in its own units
ROUNDING_END = 2.5
_LINEAR_SHARE = 0.6  # of the width for 0 to 2.5 floors, where verdicts are decided; the rest is logarithmic
_DECADES_BEYOND = 3.0
_LIFTED_SMALLEST, _LIFTED_DECADES = -18.0, 18.0


def floors_position(floors: float | None) -> float | None:
    """Return where ``floors`` stands on the axis 0 - 1.5 - 2.5 - 25 - 250 - 2,500; None when not measured."""
    if floors is None or math.isnan(floors):
        return None
    if floors <= ROUNDING_END:
        return WIDTH * _LINEAR_SHARE * max(floors, 0.0) / ROUNDING_END
    beyond = min(1.0, math.log10(floors / ROUNDING_END) / _DECADES_BEYOND) if math.isfinite(floors) else 1.0
    return WIDTH * (_LINEAR_SHARE + (1 - _LINEAR_SHARE) * beyond)


def lifted_position(lifted: float | None) -> float | None:
    """Return where a relative lifted drift stands on the axis 1e-18 to 1; None when not measured."""
    if lifted is None or math.isnan(lifted):
        return None
    if lifted <= 0:
        return 0.0
    decades = (math.log10(lifted) if math.isfinite(lifted) else 0.0) - _LIFTED_SMALLEST
    return WIDTH * min(1.0, max(0.0, decades / _LIFTED_DECADES))


#: Where the axis of floors changes its colour, and where it ends.
AXIS = {"rounding": floors_position(1.5), "large": floors_position(ROUNDING_END), "end": WIDTH}
