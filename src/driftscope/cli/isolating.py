"""``--isolate``, ``--max-seconds`` and ``--max-memory``: the same words on every command that runs programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from driftscope.errors import Exit, InputError

if TYPE_CHECKING:
    from driftscope.cli.watching import Ended

_LAST_CALL = 60.0  # seconds for importing, and for the call of a kernel during which its time ran out


def watch_options(function: Callable[..., Any], *, own_seconds: bool) -> Callable[..., Any]:
    """Add the options; a command with a ``--max-seconds`` of its own keeps it."""
    function = click.option(
        "--isolate/--no-isolate", "isolate", default=None,
        help="Work in a child process, so that a crash is an answer. [default: isolate]",
    )(function)  # fmt: skip
    function = click.option(
        "--max-memory", is_eager=True, type=click.FloatRange(min=0, min_open=True), metavar="GIB",
        help="Memory the work may hold. [default: four fifths of what is free]",
    )(function)  # fmt: skip
    if own_seconds:
        return function
    return click.option(
        "--max-seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Time the work may take."
    )(function)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say.

    Parameters
    ----------
    isolate : bool or None
    seconds, gib : float or None
    runtime : bool
        Whether a file for a native runtime is among the arguments.
    limited : bool
        Whether a limit was asked for, which takes a child to watch.
    """

    isolate: bool | None
    seconds: float | None
    gib: float | None
    runtime: bool
    limited: bool

    def done(self, work: Callable[[], None]) -> Ended | None:
        """Do the work in a child process and say how that ended; None where it is to be done here.

        Raises
        ------
        InputError
            If a child process is asked for, by name or by a limit, and cannot be had.
        """
        from driftscope.programs.isolation.choice import WATCHED, isolating
        from driftscope.programs.isolation.failures import Fate

        if self.isolate is False:
            if self.limited:
                raise InputError("--max-seconds and --max-memory need a child process to watch: leave --no-isolate out")
            with isolating(False):
                work()
            raise SystemExit(int(Exit.SAME))
        if os.environ.get(WATCHED) == str(os.getpid()):  # this is the child
            return None
        child = self._child(work)
        if child is None:
            if self.isolate or self.limited:
                raise InputError(
                    "no child process can be started from here, where a tensor library is loaded: run the driftscope"
                    " command by itself, or leave out --isolate and limits"
                )
            return None
        ended = child(None)
        if ended.died is None or ended.died.fate is not Fate.ABORTED or not self.runtime:
            return ended
        # Once more with the runtime in a process of its own: the rest then lives to name the operator.
        return child(True)

    def _child(self, work: Callable[[], None]) -> Callable[[bool | None], Ended] | None:
        """How the work is done in a child, told whether runtimes get a process of their own there; None: not at all."""
        from driftscope.cli.watching import can_fork, watched
        from driftscope.programs.isolation.choice import isolating
        from driftscope.programs.isolation.limits import Limits

        limits = Limits(self.seconds, None if self.gib is None else int(self.gib * 2**30))

        def forked(isolate: bool | None) -> Ended:
            def inside() -> None:
                with isolating(isolate):
                    work()

            return watched(inside, limits)

        def started(isolate: bool | None) -> Ended:
            from driftscope.cli.spawning import spawned

            return spawned(arguments(), limits, isolate)

        if not hasattr(os, "fork"):
            return started
        return forked if can_fork() else None


def arguments() -> list[str]:
    """Return the words of the command line that is being answered, without the program's name."""
    words: list[str] = click.get_current_context().find_root().obj
    return words


def asked_of(options: dict[str, Any]) -> Asked:
    """Take the options out of a command's."""
    given = [str(value).lower() for value in options.values()]
    isolate, gib = options.pop("isolate"), options.pop("max_memory")
    runtime = any(".onnx" in value for value in given)
    if "max_calls" in options:
        return Asked(isolate, _asking_ends(options), gib, runtime, limited=gib is not None)
    seconds = options.pop("max_seconds")
    return Asked(isolate, seconds, gib, runtime, limited=seconds is not None or gib is not None)


def _asking_ends(options: dict[str, Any]) -> float:
    """When ``reveal`` is ended: it keeps its own time between two calls of a kernel, but one call may never return."""
    askings = len(options["threads"]) * (2 if options["dependence"] else 1)
    return max(0.0, float(options["max_seconds"])) * askings + _LAST_CALL
