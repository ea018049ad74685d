"""A trial: two ways of running one program, and what of their results must agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from driftscope.invariance.judging import Select
from driftscope.invariance.pieces.states import Evaluate
from driftscope.invariance.running import Laid, Runner, RunResult
from driftscope.invariance.wrapping import Calling, called_by
from driftscope.lift.steps import LiftedOutput
from driftscope.programs.protocol import Program

Setting = Callable[[Program], AbstractContextManager[Program]]


def whole(_position: int, tensor: torch.Tensor) -> torch.Tensor:
    """Select everything."""
    return tensor


@dataclass(frozen=True, slots=True, eq=False)
class RunVariant:
    """One way of running a program.

    Parameters
    ----------
    changed : mapping of int to Tensor, or None
        Input tensors to be replaced, by position.
    select : callable
        What of each output is compared.
    setting : callable or None
        Enters a context that gives the program to run.
    laid : callable or None
        Layout of the inputs in memory.
    calling : callable or None
        Calls its function in a way of its own, instead of once.
    again : bool
        Run it even if it was run before.
    fresh : callable or None
        Returns what a process of its own, or a run on one piece after the other, gave.
    threads : int or None
        That its setting sets.
    lifted : callable or None
        Evaluates it in float64, given how a lifted graph is evaluated.
    """

    changed: Mapping[int, torch.Tensor] | None = None
    select: Select = whole
    setting: Setting | None = None
    laid: Laid | None = None
    calling: Calling | None = None
    again: bool = False
    fresh: Callable[[], RunResult] | None = None
    threads: int | None = None
    lifted: Callable[[Evaluate], Sequence[LiftedOutput]] | None = None

    def run(self, runner: Runner) -> RunResult:
        """Run the program this way."""
        if self.fresh is not None:
            return self.fresh()
        if self.calling is not None:
            program = called_by(runner.program, self.calling)
            return RunResult(refusal="not a function of torch") if program is None else runner.run(program=program)
        if self.setting is None:
            return runner.run(self.changed, laid=self.laid)
        with self.setting(runner.program) as program:
            return runner.run(self.changed, program=program, laid=self.laid)


@dataclass(frozen=True, slots=True)
class RowMap:
    """Which row of the first run is which of the second; for tracing operators.

    Parameters
    ----------
    one, other : int
        A row of each run.
    counts : tuple of int
        Rows of the first and of the second run.
    axes : tuple of (int, int)
        Batch axes of the inputs, by position.
    """

    one: int
    other: int
    counts: tuple[int, int]
    axes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KeptPositions:
    """Which positions of a longer sequence are those of the sequence as given; for tracing operators.

    Parameters
    ----------
    length, added : int
        Positions as given, and of padding.
    left : bool
        Whether the padding comes first.
    both : bool
        Whether both runs have the padding.
    """

    length: int
    added: int
    left: bool
    both: bool


@dataclass(frozen=True, slots=True)
class AxisTrial:
    """Two ways of running a program, and what must agree.

    Parameters
    ----------
    axis, name : str
        ``name`` in words: ``"row 0 repeated to a batch of 32"``.
    one, other : RunVariant
    positions : tuple of int
        Outputs that are compared.
    based : callable
        What of an output on the inputs as given the compared values correspond to: their floor is taken from there.
    strict : bool
        Not one bit may differ.
    resized : bool
        The two runs have other shapes, so float64 can decide whether they compute the same function.
    optional : bool
        A refusal says nothing.
    rows : RowMap or None
    kept : KeptPositions or None
    pieces : tuple of int
        Lengths of the pieces of a sequence that the second run was given in turn.
    along : mapping of int to int
        Position of an output to the axis along which those pieces lie.
    aside : bool
        What it shows is a note: the outcome of the axis is that of the other trials.
    ways : str
        ``"content"``, ``"joining"``, ``"state"`` or ``""``: what kind of dependence a difference shows.
    last : callable or None
        Returns how the program is run on the last of those pieces alone, with the state that the others leave.
    told : callable or None
        Says, after a difference was seen, what is known of it: a module, and a sentence.
    """

    axis: str
    name: str
    one: RunVariant
    other: RunVariant
    positions: tuple[int, ...]
    based: Select = whole
    strict: bool = False
    resized: bool = False
    optional: bool = False
    rows: RowMap | None = None
    kept: KeptPositions | None = None
    pieces: tuple[int, ...] = ()
    along: Mapping[int, int] = field(default_factory=dict)
    aside: bool = False
    ways: str = ""
    last: Callable[[], RunVariant] | None = None
    told: Callable[[], tuple[str, str] | None] | None = None


@dataclass(frozen=True, slots=True)
class AxisPlan:
    """The trials of one axis.

    Parameters
    ----------
    axis : str
    trials : list of AxisTrial
    reason : str
        Why there are none.
    refusals : tuple of (str, str)
        What could not be tried: a trial's name and what the runtime said.
    """

    axis: str
    trials: list[AxisTrial] = field(default_factory=list)
    reason: str = ""
    refusals: tuple[tuple[str, str], ...] = ()
