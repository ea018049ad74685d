"""What a comparison may cost: which of its optional steps still fit, and which were left out.

A step that is not expected to fit is not begun, in the order explain, nodes, repeated noise runs; a float64 evaluation
ends at the node at which the budget is spent. What was measured is judged all the same. Programs that run natively, and
the judging itself, are not ended.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field

from driftscope.errors import InputError, Interruption
from driftscope.programs.isolation.memory import resident_bytes

GIB = 2**30
#: Why a step was left out that asked for more memory than there is.
NO_MEMORY = "it asked for more memory than there is"


class BudgetSpent(Interruption):
    """A step that looks for explanations has come to the end of the budget: what it found so far stays."""


@dataclass(slots=True)
class Budget:
    """Time and memory that a comparison may take.

    Parameters
    ----------
    seconds : float or None
        Wall-clock time from the beginning of the comparison.
    gib : float or None
        Resident memory of this process, in GiB.
    begun : float
        On the clock of ``time.perf_counter``.
    left_out : dict of str to str
        Filled as steps are left out: the step, and why.
    """

    seconds: float | None = None
    gib: float | None = None
    begun: float = field(default_factory=time.perf_counter)
    left_out: dict[str, str] = field(default_factory=dict)
    _least: float = field(default=math.inf, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("budget_seconds", self.seconds), ("budget_memory", self.gib)):
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value!r}; give a number above 0")

    @property
    def set(self) -> bool:
        """Whether anything is bounded."""
        return self.seconds is not None or self.gib is not None

    @property
    def spent(self) -> float:
        """Seconds since the comparison began."""
        return time.perf_counter() - self.begun

    def allows(self, step: str, seconds: float) -> bool:
        """Whether a step still fits; one that does not is noted as left out.

        A step is expected to hold as much memory again as all steps since the first question.

        Parameters
        ----------
        step : str
        seconds : float
            What it is expected to take, from what the steps before it took.
        """
        if self.seconds is not None and self.spent + seconds > self.seconds:
            self.left_out[step] = (
                f"{self.spent:.1f} s of {self.seconds:g} s were used, and it was expected to take {seconds:.1f} s"
            )
        elif self.gib is not None:
            held = resident_bytes(os.getpid()) / GIB
            self._least = min(self._least, held)
            need = held - self._least
            if held + need > self.gib:
                self.left_out[step] = (
                    f"{held:.2g} GiB of {self.gib:g} GiB were held, and it was expected to need {need:.2g} GiB more"
                )
        return step not in self.left_out

    def check(self, step: str) -> None:
        """End a step that has come to the end of the budget.

        Raises
        ------
        BudgetSpent
        """
        if self.seconds is not None and self.spent > self.seconds:
            self.left_out[step] = f"it was ended after {self.spent:.1f} s of {self.seconds:g} s"
            raise BudgetSpent
