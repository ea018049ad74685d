"""What can happen to a task in a worker process, by name."""

from __future__ import annotations

import enum
import re
import signal
import sysconfig
from dataclasses import dataclass
from pathlib import PurePath

from driftscope.errors import DriftscopeError


class Fate(enum.StrEnum):
    """How a task ended that gave no result."""

    RAISED = "raised"  # a Python exception: the worker lives on
    ABORTED = "aborted"  # a fatal signal of its own making: SIGSEGV, SIGABRT, SIGFPE; or the process ended itself
    KILLED = "killed"  # SIGKILL or SIGTERM from elsewhere
    OUT_OF_MEMORY = "out of memory"
    TIMED_OUT = "timed out"


CODES = {Fate.ABORTED: "R006", Fate.KILLED: "R007", Fate.OUT_OF_MEMORY: "R008", Fate.TIMED_OUT: "R009"}


class WorkerDied(DriftscopeError):
    """A task took its worker process down, or had to be stopped. Other tasks are not affected.

    Parameters
    ----------
    fate : Fate
        How it ended.
    words : str
        One sentence with the signal or the limit.
    last_words : str
        The end of what the process printed, the native error message and the Python lines that were running.
    """

    def __init__(self, fate: Fate, words: str, last_words: str = ""):
        self.fate = fate
        self.words = words
        self.last_words = last_words
        super().__init__(words)

    def __reduce__(self) -> tuple[type, tuple[Fate, str, str]]:
        return type(self), (self.fate, self.words, self.last_words)


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A failed task as plain data.

    Parameters
    ----------
    fate : Fate
    code : str
        Finding code, R006 to R009; ``""`` for an exception, which explains itself.
    words : str
        One sentence.
    last_words : str
        Traceback, or the end of what the process printed.
    """

    fate: Fate
    code: str
    words: str
    last_words: str = ""


#: How the words begin for a process that was not killed but called an exit function,
ENDED_ITSELF = "the process ended itself"
#: and for one that came to no task.
NOT_STARTED = "the process could not start"

# What allocators say that report by a general error: torch (CPU, CUDA), the C++ library, onnxruntime's arenas.
_MEMORY_WORDS = re.compile(
    r"can't allocate memory|out of memory|bad_alloc|Failed to allocate memory|Unable to allocate"
)

_FATAL = {
    getattr(signal, name)
    for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)  # Windows knows four of them
}


def text_of(error: BaseException) -> str:
    """What an exception says; nothing where its own ``__str__`` fails."""
    try:
        return str(error)
    except Exception:  # code of the program's
        return ""


def failure_of(error: BaseException) -> TaskFailure:
    """Name the failure behind the exception of a future.

    Parameters
    ----------
    error : BaseException
        What ``future.exception()`` returned.

    Returns
    -------
    Failure
        ``MemoryError`` and the allocators' own errors count as out of memory.
    """
    if isinstance(error, WorkerDied):
        return TaskFailure(error.fate, CODES.get(error.fate, ""), error.words, error.last_words)
    words = f"{type(error).__name__}: {text_of(error)}".rstrip(": ")
    trace = str(error.__cause__) if isinstance(error.__cause__, RemoteTrace) else ""
    fate = Fate.OUT_OF_MEMORY if ran_out_of_memory(error) else Fate.RAISED
    if type(error).__name__ == "KilledWorker":  # Dask's word for a task whose machine went away, again and again
        fate = Fate.KILLED
    return TaskFailure(fate, CODES.get(fate, ""), words, trace)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory could not be had."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(_MEMORY_WORDS.search(text_of(error)))
    )


def before_a_task(died: WorkerDied) -> WorkerDied:
    """Say of a process that ended before it took a task that it could not start, in the last line it printed."""
    if not died.words.startswith(ENDED_ITSELF):
        return died
    said = died.last_words.strip().rpartition("\n")[2] or died.words.removeprefix(ENDED_ITSELF).strip()
    return WorkerDied(died.fate, f"{NOT_STARTED}: {said[:200]}", died.last_words)


def death_of(status: int, *, out_of_memory: bool, last_words: str) -> WorkerDied:
    """Name how a process ended.

    Parameters
    ----------
    status : int
        Exit status; ``-n`` when signal ``n`` ended it.
    out_of_memory : bool
        Whether the kernel's out-of-memory killer struck while it ran.
    last_words : str
        The end of what it printed.
    """
    if status >= 0:
        return WorkerDied(Fate.ABORTED, f"{ENDED_ITSELF} with exit status {status}", last_words)
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if out_of_memory and -status == signal.SIGKILL:
        return WorkerDied(Fate.OUT_OF_MEMORY, "the kernel killed the process because memory ran out", last_words)
    if -status in _FATAL:
        memory = bool(_MEMORY_WORDS.search(last_words))
        fate = Fate.OUT_OF_MEMORY if memory else Fate.ABORTED
        return WorkerDied(fate, f"the process crashed with {name}{where_it_was(last_words)}", last_words)
    return WorkerDied(Fate.KILLED, f"the process was killed by {name}", last_words)


# Where files lie that the user did not write: Python's own, what was installed, ours, and code without a file.
_NOT_THEIRS = (*sysconfig.get_paths().values(), str(PurePath(__file__).parents[2]), "<string>", "<frozen")


def where_it_was(last_words: str) -> str:
    """Return the native message of a crash (of a C++ exception, an assertion), else the Python line it was in."""
    for line in last_words.splitlines():
        if re.search(r"what\(\):|[Aa]ssert|CHECK|[Ff]atal error:|FATAL", line) and "Fatal Python error" not in line:
            return f": {line.strip()[:200]}"
    # faulthandler lists Python lines, the innermost first; ours end the list.
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', last_words)
    theirs = [frame for frame in frames if not frame[0].startswith(_NOT_THEIRS)]
    if not theirs:
        return ""
    file, line, function = theirs[0]
    return f" in {function} ({PurePath(file).name}:{line})"


class RemoteTrace(Exception):
    """The traceback of an exception in the process where it was raised, as text."""

    def __init__(self, text: str):
        self.text = text
        super().__init__(text)

    def __str__(self) -> str:
        return f"\n{self.text}"
