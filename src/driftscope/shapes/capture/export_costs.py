"""What exporting one model costs, remembered: a model that takes long to trace is not traced in every way there is.

Running a model at a point is cheap, tracing it is not: a transformer of windows takes 70 s of processor time for
one export, and a converter to ONNX traces the program again. What is left out is named, never skipped in silence.
The cost that decides is counted, so that what is tried depends on no machine and on nothing that ran before.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from driftscope.shapes.private_torch import Moved, watched

_Made = TypeVar("_Made")

#: Seconds of one export above which no other is made for anything but an order.
_DEAR = 8.0
#: Seconds of one export, and how many more may follow the first one: cheap ones are never counted.
_MORE = ((1.0, math.inf), (_DEAR, 2.0), (math.inf, 0.0))
#: Seconds of one export above which the program is converted only where the user asks: that takes three times as long.
_CONVERTED = 12.0
# Seconds of processor time for each question about sizes, and for each node of an expression in which sizes are put
# for each other. Measured on 16 models: from half to twice of what their exports take.
_PER_QUESTION, _PER_NODE = 2.8e-4, 2e-5


class TraceWork:
    """Counts what a trace asks about sizes: that is where its time goes."""

    def __init__(self) -> None:
        self.questions, self.nodes = 0, 0

    @property
    def seconds(self) -> float:
        """About how long that takes."""
        return self.questions * _PER_QUESTION + self.nodes * _PER_NODE

    def asked(self, arguments: Any, result: Any) -> None:
        """Count one question."""
        self.questions += 1

    def replaced(self, arguments: Any, result: Any) -> None:
        """Count the nodes of an expression."""
        waiting = [arguments[0]]
        while waiting:
            self.nodes += 1
            waiting += waiting.pop().args


@contextlib.contextmanager
def counting(work: TraceWork) -> Iterator[None]:
    """Count a trace; where torch asks elsewhere, nothing is counted, and every export is cheap."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(Moved):
            stack.enter_context(watched("evaluate_expr", work.asked))
            stack.enter_context(watched("replace", work.replaced))
        yield


class ExportCosts:
    """Remembers what each export of one model took."""

    def __init__(self) -> None:
        self.exports = 0
        #: Seconds of the cheapest one, as counted: these decide.
        self.least = math.inf
        #: Processor seconds of the fastest one: these are told. The first pays for what torch loads and compiles.
        self.fastest = math.inf
        #: What was not tried, in words.
        self.left_out: list[str] = []

    def timed(self, export: Callable[[], _Made]) -> _Made:
        """Export, and remember what it took."""
        work, started = TraceWork(), time.process_time()
        try:
            with counting(work):
                return export()
        finally:
            self.exports += 1
            self.least = min(self.least, work.seconds)
            self.fastest = min(self.fastest, time.process_time() - started)

    @property
    def may_go_on(self) -> bool:
        """Whether one more export is worth its time."""
        return self.exports <= next(more for seconds, more in _MORE if self.least < seconds or seconds == math.inf)

    @property
    def dear(self) -> bool:
        """Whether one export takes so long that a cover makes no other one either."""
        return bool(self.exports) and self.least >= _DEAR

    @property
    def may_convert(self) -> bool:
        """Whether a converter, which traces again, is worth its time where nobody asked for it."""
        return not self.exports or self.least < _CONVERTED

    def allows(self, what: str) -> bool:
        """Whether one more export is worth its time; where it is not, ``what`` is among what was left out."""
        if not self.may_go_on and what not in self.left_out:
            self.left_out.append(what)
        return self.may_go_on
