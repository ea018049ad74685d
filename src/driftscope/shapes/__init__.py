"""Dynamic shapes: which sizes an exported program keeps, why it loses the others, and programs that keep them all.

Others call what this file names; the rest is private to the room. ``capture`` exports and reads what a trace assumed;
``conditions`` are relations between sizes: read, solved, minimised, worded; ``probe`` asks the model and its targets at
points (one size per axis) and puts the model back after every call; ``findings`` say what was found and try what mends
it; ``covering`` finds conditions under which a program without its checks is right, holds them against new points, and
puts programs behind them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftscope.shapes.answer import ShapeReport as ShapeReport
    from driftscope.shapes.check import Effort as Effort
    from driftscope.shapes.checking import check_shapes as check_shapes
    from driftscope.shapes.conditions.proving import prove as prove
    from driftscope.shapes.covering.covered_program import CoveredProgram as CoveredProgram
    from driftscope.shapes.covering.covered_program import cover_shapes as cover_shapes

_HOME = {
    "CoveredProgram": "covering.covered_program",
    "Effort": "check",
    "ShapeReport": "answer",
    "check_shapes": "checking",
    "cover_shapes": "covering.covered_program",
    "prove": "conditions.proving",
}
__all__ = ["CoveredProgram", "Effort", "ShapeReport", "check_shapes", "cover_shapes", "prove"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
