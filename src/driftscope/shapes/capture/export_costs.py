"""What exporting one model costs, remembered: a model that takes long to trace is not traced in every way there is.

Running a model at a point is cheap, tracing it is not: a transformer of windows takes 70 s of processor time for
one export, and a converter to ONNX traces the program again. What is left out is named, never skipped in silence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

_Made = TypeVar("_Made")

#: Seconds of one export above which no other is made for anything but an order.
_DEAR = 8.0
#: Seconds of processor time of one export, and how many more may follow the first one: fast ones are never counted,
#: so that what small models are told depends on no machine.
_MORE = ((1.0, math.inf), (_DEAR, 2.0), (math.inf, 0.0))
#: Seconds of one export above which the program is converted only where the user asks: that takes three times as long.
_CONVERTED = 12.0


class ExportCosts:
    """Remembers what each export of one model took."""

    def __init__(self) -> None:
        self.exports = 0
        #: Processor seconds of the fastest one: the first pays for what torch loads and compiles.
        self.fastest = math.inf
        #: What was not tried, in words.
        self.left_out: list[str] = []

    def timed(self, export: Callable[[], _Made]) -> _Made:
        """Export, and remember what it took."""
        started = time.process_time()
        try:
            return export()
        finally:
            self.exports += 1
            self.fastest = min(self.fastest, time.process_time() - started)

    @property
    def may_go_on(self) -> bool:
        """Whether one more export is worth its time."""
        return self.exports <= next(more for seconds, more in _MORE if self.fastest < seconds or seconds == math.inf)

    @property
    def dear(self) -> bool:
        """Whether one export takes so long that a cover makes no other one either."""
        return bool(self.exports) and self.fastest >= _DEAR

    @property
    def may_convert(self) -> bool:
        """Whether a converter, which traces again, is worth its time where nobody asked for it."""
        return not self.exports or self.fastest < _CONVERTED

    def allows(self, what: str) -> bool:
        """Whether one more export is worth its time; where it is not, ``what`` is among what was left out."""
        if not self.may_go_on and what not in self.left_out:
            self.left_out.append(what)
        return self.may_go_on
