"""The planted bugs, all of them."""

from __future__ import annotations

from .attribute_bugs import ATTRIBUTE_BUGS
from .constant_bugs import CAST_BUGS, CONSTANT_BUGS
from .weight_bugs import WEIGHT_BUGS
from .wiring_bugs import WIRING_BUGS

BUGS = (*ATTRIBUTE_BUGS, *WEIGHT_BUGS, *WIRING_BUGS, *CONSTANT_BUGS, *CAST_BUGS)
CASES = tuple((bug, dtype) for bug in BUGS for dtype in bug.dtypes)
