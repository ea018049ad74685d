"""Every error raised on purpose: what was wrong, where, what to do.

An error that a user can mend is a :class:`DriftscopeError` and ends a command with exit code 2. Anything else
that escapes is ours: the command line prints one sentence about it and ends with exit code 3.
"""

from __future__ import annotations

import dis
import enum
from typing import Any

_LONGEST = 2_000  # characters of a message


class Exit(enum.IntEnum):
    """The exit codes of every command."""

    SAME = 0  # IDENTICAL or ROUNDING, or a finding below --fail-on
    FINDING = 1  # a finding at or above --fail-on: the reason you ran us
    USAGE = 2  # anything the user supplied; also click's own code for a bad command line
    FAILED = 3  # driftscope itself could not finish


class DriftscopeError(Exception):
    """Something the user supplied cannot be used; the message is one sentence that says what to do."""

    exit_code: Exit = Exit.USAGE

    def __str__(self) -> str:
        """The sentence; a name of a hundred thousand characters in it loses its middle."""
        text = super().__str__()
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


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


class RuntimeCrashed(RuntimeRefused):
    """A runtime took its process down, or had to be stopped. Becomes R006 to R009.

    Parameters
    ----------
    runtime, stage : str
        As for :class:`RuntimeRefused`.
    words : str
        How the process ended.
    code : str
        Of the finding.
    node, operator : str
        The node that crashes alone, where one was found.
    """

    def __init__(self, runtime: str, stage: str, words: str, code: str, node: str = "", operator: str = ""):
        super().__init__(runtime, stage, words)
        self.code, self.node, self.operator = code, node, operator

    def __reduce__(self) -> tuple[type, Any]:
        return type(self), (self.runtime, self.stage, self.words, self.code, self.node, self.operator)

    @property
    def by_itself(self) -> bool:
        """Whether the runtime ended its process, rather than somebody who watched it."""
        return self.code == "R006"

    def at(self, node: str, operator: str) -> RuntimeCrashed:
        """Return the same with the place of the crash."""
        return RuntimeCrashed(self.runtime, self.stage, self.words, self.code, node, operator)


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


class Interruption(BaseException):
    """A limit of ours that ends a run: it must reach whoever set it, through every ``except`` on the way."""


def ends_us(error: BaseException) -> bool:
    """Whether an exception that left a user's program is not the program's: Ctrl-C, a limit of ours or of pytest.

    A program may raise anything, ``SystemExit``, ``KeyboardInterrupt`` and ``asyncio.CancelledError`` included; that
    is its own failure. What Ctrl-C raises comes between two instructions, what a program raises from a ``raise``.
    """
    if isinstance(error, Interruption) or type(error).__module__.startswith("_pytest."):
        return True
    if not isinstance(error, KeyboardInterrupt):
        return False
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is None or dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] not in _RAISING


_RAISING = ("RAISE_VARARGS", "RERAISE")


class AuditFailed(DriftscopeError):
    """An example of a batch is not what the loop gives for it.

    Parameters
    ----------
    function : str
        The batched function, as its author names it.
    row : int
        Position of the example in the batch.
    told : str
        Both values, where they differ.
    """

    def __init__(self, function: str, row: int, told: str):
        self.function = function
        self.row = row
        self.told = told
        super().__init__(f"ds.vmap({function}): example {row} of the batch is not what the loop gives: {told}")

    def __reduce__(self) -> tuple[type[AuditFailed], tuple[str, int, str]]:
        return type(self), (self.function, self.row, self.told)


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
