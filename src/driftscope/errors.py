"""Every error raised on purpose: what was wrong, where, what to do.

An error that a user can mend is a :class:`DriftscopeError` and ends a command with exit code 2. Anything else
that escapes is ours: the command line prints one sentence about it and ends with exit code 3.
"""

from __future__ import annotations

import enum
from typing import Any


class Exit(enum.IntEnum):
    """The exit codes of every command."""

    SAME = 0  # IDENTICAL or ROUNDING, or a finding below --fail-on
    FINDING = 1  # a finding at or above --fail-on: the reason you ran us
    USAGE = 2  # anything the user supplied; also click's own code for a bad command line
    FAILED = 3  # driftscope itself could not finish


class DriftscopeError(Exception):
    """Something the user supplied cannot be used; the message is one sentence that says what to do."""

    exit_code: Exit = Exit.USAGE


class ProgramError(DriftscopeError):
    """A program (a file, a name, an object) cannot be loaded or understood."""


class InputError(DriftscopeError):
    """Inputs do not fit: a wrong name, rank, dtype, count, file or spec."""


class RecordError(DriftscopeError):
    """A record on disk cannot be read: not ours, truncated, or of an unknown schema."""


class DependencyMissing(DriftscopeError):
    """A feature needs a package that is not installed."""

    def __init__(self, feature: str, module: str, extra: str):
        self.needs = (feature, module, extra)
        super().__init__(
            f"{feature} needs the module {module!r}, which is not installed. Run: pip install 'driftscope[{extra}]'"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), self.needs


class RuntimeRefused(DriftscopeError):
    """A runtime would not load or run a program. Becomes an R finding, in the runtime's own words.

    Parameters
    ----------
    runtime : str
        The runtime's name, for example ``"onnxruntime"``.
    stage : str
        ``"load"`` or ``"run"``.
    words : str
        What the runtime said.
    """

    def __init__(self, runtime: str, stage: str, words: str):
        self.runtime = runtime
        self.stage = stage
        self.words = words.strip()
        verb = "load" if stage == "load" else "run"
        super().__init__(f"{runtime} refused to {verb} the program: {self.words}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.runtime, self.stage, self.words)


class ImpureFunction(DriftscopeError):
    """A function cannot be batched, because a run of it does more than compute its result.

    Parameters
    ----------
    finding : driftscope.records.finding.Finding
        What it does, where, and what to do.
    """

    def __init__(self, finding: Any):
        self.finding = finding
        super().__init__(f"{finding}; {finding.fix}" if finding.fix else str(finding))


class CannotLift(Exception):
    """A program, or one operator of it, cannot be evaluated in float64. Evidence, not a failure.

    Parameters
    ----------
    reason : str
        One sentence, naming the operator where there is one.
    """

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(reason)
