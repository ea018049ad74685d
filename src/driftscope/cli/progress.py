"""The progress line of a terminal: the step, and after two seconds how far it has come and how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

#: Seconds before a bar is drawn: most commands have answered by then.
PATIENCE = 2.0
#: Columns beside the step's name and the bar: spinner, count of a large graph, time left, what separates them.
_BESIDE = 2 + 18 + 8 + 4


class StepBar:
    """One line on standard error, erased at the end.

    Parameters
    ----------
    console : rich.console.Console
    text : str
        The first step.
    """

    def __init__(self, console: Any, text: str):
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

        self._begun = time.monotonic()
        bar = min(20, max(6, console.width // 6))
        room = max(12, console.width - bar - _BESIDE)

        def drawn(column: ProgressColumn, render: Callable[[Any], Any]) -> ProgressColumn:
            column.render = render  # type: ignore[method-assign, assignment]
            column.max_refresh = None
            return column

        def known(task: Any) -> bool:
            return task.total is not None and time.monotonic() - self._begun >= PATIENCE

        def late(column: ProgressColumn) -> ProgressColumn:
            whole = column.render
            return drawn(column, lambda task: whole(task) if known(task) else "")

        def elided(column: ProgressColumn) -> ProgressColumn:
            whole: Callable[[Any], Any] = column.render

            def render(task: Any) -> Any:
                words = whole(task)
                if known(task):  # a narrow terminal shows the time left rather than the end of a step's name
                    words.truncate(room, overflow="ellipsis")
                return words

            return drawn(column, render)

        self._progress = Progress(
            SpinnerColumn(), elided(TextColumn("{task.description}", markup=False)), late(BarColumn(bar)),
            late(TextColumn("{task.fields[counted]}")), late(TimeRemainingColumn()),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task(text, total=None, counted="")

    def __enter__(self) -> StepBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """Name the step that begins; nothing is known of its length."""
        self._progress.reset(self._task, description=text, total=None)

    def count(self, done: int, total: int) -> None:
        """Say how many nodes of the step's present run are done."""
        if done == 0:
            self._progress.reset(self._task, total=total)
        self._progress.update(self._task, completed=done, total=total, counted=f"{done} of {total} nodes")

    def move(self, text: str, done: int, total: int) -> None:
        """Say in words and on the bar how far a step has come that counts something else."""
        if self._progress.tasks[0].total is None:
            self._progress.reset(self._task, total=total, completed=done)
        self._progress.update(self._task, description=text, completed=done, total=total, counted="")
