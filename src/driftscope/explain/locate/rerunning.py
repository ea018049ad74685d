"""Runs of one lifted program that differ in a few places: what they have in common is computed once.

The search for places and causes puts another value, number or attribute somewhere and looks at what becomes of it.
Runs whose forced values are known to come back are kept, and the next one computes what lies behind the change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.explain.locate.fingerprints import Sketch, Trail, forced
from driftscope.lift.kept import KeptRun, MemoryShare, Reuse, reusing, shared_run
from driftscope.lift.steps import Lifted, LiftedOutput, Observer, Step
from driftscope.programs.isolation.memory import available_bytes
from driftscope.programs.state.by_tensor import ByTensor

# Share of the free memory that kept runs may take.
_ROOM = 0.25

Values = Mapping[str, torch.Tensor]


class AllSeen(Exception):
    """Ends a run: what was looked for has been computed."""


@dataclass(slots=True)
class ValueCapture:
    """An observer that forces values, keeps those of some names and ends the run when it has all of them."""

    names: frozenset[str]
    force: Values
    tape: bool
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, step: Step) -> list[torch.Tensor | None] | None:
        outputs = forced(step, self.force, self.tape)
        self._look(step.output_names, step.outputs if outputs is None else outputs, again=True)
        if not self.names.isdisjoint(step.input_names):
            self._look(step.input_names, step.inputs, again=False)
        if self.names and self.names <= self.values.keys():
            raise AllSeen
        return outputs

    def _look(self, names: Sequence[str], values: Sequence[torch.Tensor | None], again: bool) -> None:
        for name, value in zip(names, values, strict=False):
            if name in self.names and value is not None and (again or name not in self.values):
                value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
                self.values[name] = value.clone()


class Reruns:
    """One lifted program that is run again and again.

    Parameters
    ----------
    graph : Lifted
    replace : mapping of str to Tensor
        Constants that are replaced in every run.
    """

    def __init__(self, graph: Lifted, replace: Values):
        self.graph, self._replace = graph, replace
        self._tape = graph.kind == "torch"
        self._constants: frozenset[str] | None = None
        self._room: MemoryShare | None = None
        self._kept: list[tuple[Values, KeptRun]] = []
        self._sketches: ByTensor[tuple[int, Sketch | None]] = ByTensor()

    def run(
        self, observe: Observer | None, force: Values, replace: Values | None = None, graph: Lifted | None = None
    ) -> list[LiftedOutput]:
        """Run it, or an edited one, under an observer that forces these values."""
        with reusing(Reuse(self._nearest(force), None, force.keys())):
            return (graph or self.graph).run(observe=observe, replace={**self._replace, **(replace or {})})

    def kept(self, force: Values, replace: Values) -> tuple[Trail, list[LiftedOutput]]:
        """Run it with values forced, for others to take from; also return the steps with their sketches."""
        if self._room is None:
            self._room = MemoryShare(_ROOM * available_bytes())
        if self._constants is None:
            self._constants = frozenset(c.name for c in self.graph.constants())
        trail, own = Trail(self._constants, self._tape, force, known=self._sketches), KeptRun(self._room)
        with reusing(Reuse(self._nearest(force), own, force.keys())):
            outputs = self.graph.run(observe=trail, replace={**self._replace, **replace})
        self._kept.append((force, own))
        return trail, outputs

    def forget(self, force: Values) -> None:
        """Give back the memory of what was kept with these values forced."""
        gone = [pair for pair in self._kept if pair[0].keys() == force.keys() and _common(pair[0], force) == len(force)]
        for pair in gone:
            pair[1].forget()
        self._kept = [pair for pair in self._kept if not any(pair is other for other in gone)]

    def outputs(self, force: Values, replace: Values | None = None, graph: Lifted | None = None) -> list[LiftedOutput]:
        """Its outputs with values forced."""
        return self.run(ValueCapture(frozenset(), force, self._tape) if force else None, force, replace, graph)

    def values(
        self, names: Sequence[str], force: Values, replace: Values | None = None, graph: Lifted | None = None
    ) -> dict[str, torch.Tensor]:
        """Run it up to where all of the named values have been seen, and return them."""
        watch = ValueCapture(frozenset(n for n in names if n), force, self._tape)
        with contextlib.suppress(AllSeen):
            self.run(watch, force, replace, graph)
        return watch.values

    def _nearest(self, force: Values) -> KeptRun | None:
        """The kept run with the most of these values forced, and the fewest others.

        Behind a value that a run lacks all is computed again; others lie mostly behind what is looked for.
        """

        def distance(pair: tuple[Values, KeptRun]) -> tuple[int, int]:
            common = _common(pair[0], force)
            return len(force) - common, len(pair[0]) - common

        return min(self._kept, key=distance)[1] if self._kept else shared_run(self.graph, self._replace)


def _common(one: Values, other: Values) -> int:
    return sum(other.get(name) is value for name, value in one.items())
