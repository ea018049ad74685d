"""The progress line of a terminal: the step, and after two seconds how far it has come and how long it still takes."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

#: Seconds before a bar is drawn: most commands have answered by then.
PATIENCE = 2.0


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

        def late(column: ProgressColumn) -> ProgressColumn:
            drawn = column.render

            def render(task: Any) -> Any:
                shown = task.total is not None and time.monotonic() - self._begun >= PATIENCE
                return drawn(task) if shown else ""

            column.render = render  # type: ignore[method-assign]
            column.max_refresh = None
            return column

        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), late(BarColumn(20)),
            late(TextColumn("{task.completed} of {task.total} nodes")), late(TimeRemainingColumn()),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task(text, total=None)

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
        self._progress.update(self._task, completed=done, total=total)
