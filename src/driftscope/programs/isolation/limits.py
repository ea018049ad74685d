"""What a task may use, apart from what starts processes: that imports much which few need."""

from __future__ import annotations

import os
from dataclasses import dataclass

from driftscope.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """What one task may use.

    Parameters
    ----------
    seconds : float or None
        Running time; starting the process and importing the task's modules are not counted.
    memory : int or None
        Resident memory of the process in bytes. None: four fifths of what is free when the process starts.
    """

    seconds: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"a time limit is a positive number of seconds, not {self.seconds!r}")
        if self.memory is not None and not self.memory > 0:
            raise InputError(f"a memory limit is a positive number of bytes, not {self.memory!r}")


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


NO_LIMITS = Limits()
