"""One program, run on variants of its inputs: refusals are answers, and runs are counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from driftscope.errors import InputError, RuntimeRefused
from driftscope.programs.protocol import Bound, Program
from driftscope.programs.value_trees import flatten
from driftscope.records.paths import Path

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs

Leaves = list[tuple[Path, Any]]
Laid = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run gave.

    Parameters
    ----------
    leaves : list of (Path, leaf)
        Its outputs; empty when it was refused.
    refusal : str
        In the runtime's words; empty when it ran.
    """

    leaves: Leaves = field(default_factory=list)
    refusal: str = ""

    @property
    def ran(self) -> bool:
        """Whether there is a result."""
        return not self.refusal


class Runner:
    """Runs a program on variants of one set of inputs.

    Parameters
    ----------
    program : Program
    inputs : anything ``ds.inputs`` accepts
        None for the program's own.

    Attributes
    ----------
    names : list of str
        Of the input tensors, as the program knows them.
    tensors : list of Tensor
        The input tensors as given.
    runs : int
        Runs so far.
    """

    def __init__(self, program: Program, inputs: Any = None):
        self.program = program
        self.bound = program.bind(inputs)
        if self.bound.inputs is None:
            raise InputError(f"{program.name} does not take inputs that could be varied")
        self.inputs = _apart(self.bound.inputs.realise(), graph=program.slots() is not None)
        if self.inputs is not self.bound.inputs:
            self.bound = program.bind(self.inputs)
        known = {id(value): name for name, value in self.bound.feeds.items()}
        leaves = [(path, leaf) for path, leaf in self.inputs.leaves if isinstance(leaf, torch.Tensor)]
        self.names = [known.get(id(leaf), str(path)) for path, leaf in leaves]
        self.tensors = [leaf for _, leaf in leaves]
        self.runs = 0
        self._base: RunResult | None = None

    @property
    def base(self) -> RunResult:
        """The result on the inputs as given, run once."""
        if self._base is None:
            self._base = self.run()
        return self._base

    def binding(self, changed: Mapping[int, torch.Tensor] | None = None, laid: Laid | None = None) -> Bound:
        """Bind the inputs with some tensors replaced, by their position.

        Raises
        ------
        InputError
            If the program takes no inputs of that shape.
        """
        values = {id(self.tensors[k]): value for k, value in (changed or {}).items()}
        bound = self.program.bind(self.inputs.replacing(values) if values else self.inputs)
        return bound if laid is None else dataclasses.replace(bound, laid=laid)

    def run(
        self,
        changed: Mapping[int, torch.Tensor] | None = None,
        *,
        program: Program | None = None,
        laid: Laid | None = None,
    ) -> RunResult:
        """Run once.

        Parameters
        ----------
        changed : mapping of int to Tensor, or None
            Input tensors to be replaced, by their position in :attr:`tensors`.
        program : Program or None
            Run in place of this one: the same, otherwise set up.
        laid : callable or None
            Layout of the inputs in memory, see :class:`~driftscope.programs.protocol.Bound`.
        """
        self.runs += 1
        try:
            bound = self.binding(changed, laid)
            if program is not None and program is not self.program:
                bound = dataclasses.replace(program.bind(bound.inputs), laid=laid)
            # Not the program of what is bound: one that sets the process up binds as the one it wraps.
            return RunResult(flatten((program or self.program)(bound))[0])
        except (RuntimeRefused, InputError) as error:
            return RunResult(refusal=_words(error))


def _apart(inputs: Inputs, *, graph: bool) -> Inputs:
    """Give each input a tensor of its own where one was given for several: an empty cache, zeros for every state.

    A function may ask whether two of its arguments are one object, as attention does; a graph, and what lies inside a
    list, does not.
    """
    seen: set[int] = set()

    def own(path: Path, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen and (graph or len(path.keys) > 1):
            return leaf.detach().clone()
        seen.add(id(leaf))
        return leaf

    found = inputs.mapped(own)
    return found if any(x is not y for (_, x), (_, y) in zip(found.leaves, inputs.leaves, strict=True)) else inputs


def _words(error: Exception) -> str:
    text = error.words if isinstance(error, RuntimeRefused) else str(error)
    return " ".join(str(text).split())[:300]
