"""``--isolate``, ``--max-seconds`` and ``--max-memory``: the same words on every command that runs programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from driftscope.errors import DriftscopeError, Exit, InputError

if TYPE_CHECKING:
    from driftscope.cli.watching import Ended
    from driftscope.programs.isolation.failures import WorkerDied


def watch_options(function: Callable[..., Any], *, own_seconds: bool) -> Callable[..., Any]:
    """Add the options; a command with a ``--max-seconds`` of its own keeps it."""
    function = click.option(
        "--isolate/--no-isolate", "isolate", default=None,
        help="Work in a child process, so that a crash is an answer. [default: isolate]",
    )(function)  # fmt: skip
    function = click.option(
        "--max-memory", type=click.FloatRange(min=0, min_open=True), metavar="GIB",
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
    """

    isolate: bool | None
    seconds: float | None
    gib: float | None
    runtime: bool

    def done(self, work: Callable[[], None]) -> Ended | None:
        """Do the work in a child process and say how that ended; None where it is to be done here.

        Raises
        ------
        InputError
            If a child process is asked for, by name or by a limit, and cannot be had.
        """
        from driftscope.cli.watching import can_watch, watched
        from driftscope.programs.isolation.choice import isolating
        from driftscope.programs.isolation.failures import Fate
        from driftscope.programs.isolation.supervision import Limits

        limited = self.seconds is not None or self.gib is not None
        if self.isolate is False and limited:
            raise InputError("--max-seconds and --max-memory need a child process to watch: leave --no-isolate out")
        if self.isolate is False or not can_watch():
            if self.isolate or limited:
                raise InputError(
                    "no child process can be started from here (a tensor library is loaded, or the system cannot fork):"
                    " run the driftscope command by itself, on Linux or macOS, without --isolate and limits elsewhere"
                )
            if self.isolate is False:
                with isolating(False):
                    work()
                raise SystemExit(int(Exit.SAME))
            return None
        limits = Limits(self.seconds, None if self.gib is None else int(self.gib * 2**30))
        ended = watched(work, limits)
        if ended.died is None or ended.died.fate is not Fate.ABORTED or not self.runtime:
            return ended

        def again() -> None:
            with isolating(True):
                work()

        # Once more with the runtime in a process of its own: the rest then lives to name the operator.
        return watched(again, limits)


def asked_of(options: dict[str, Any]) -> Asked:
    """Take the options out of a command's."""
    given = [str(value).lower() for value in options.values()]
    return Asked(
        options.pop("isolate"),
        None if "max_calls" in options else options.pop("max_seconds"),
        options.pop("max_memory"),
        any(".onnx" in value for value in given),
    )


def no_answer(
    ended: Ended, options: dict[str, Any], unanswered: Callable[[WorkerDied, dict[str, Any]], None] | None
) -> NoReturn:
    """Answer for a child that did not live to: a record where the command has one, else one sentence; exit code 1."""
    from driftscope.explain.refusals import death_finding
    from driftscope.programs.isolation.failures import CODES

    died = ended.died
    if died is None:
        raise ValueError("this child gave an answer")
    if unanswered is not None:
        unanswered(died, {**options, "told": ended.told})
        raise SystemExit(int(Exit.FINDING))
    found = death_finding(CODES[died.fate], died.words, ended.told)
    if options.get("as_json"):
        plain = {"code": found.code, "what": found.what, "fix": found.fix, "evidence": dict(found.evidence)}
        click.echo(json.dumps({"schema": "driftscope/unanswered/1", "findings": [plain]}, indent=2))
        raise SystemExit(int(Exit.FINDING))
    error = DriftscopeError(f"{found.code}: {found.what}. {found.fix}")
    error.exit_code = Exit.FINDING
    raise error
