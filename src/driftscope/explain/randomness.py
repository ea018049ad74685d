"""Where a program draws its random numbers: the first step that does, in the order in which they run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from driftscope.errors import CannotLift
from driftscope.lift.steps import Lifted, Step
from driftscope.lift.torch.entries import AtenCall
from driftscope.lift.torch.tape import TorchTape
from driftscope.records.finding import Where

_ONNX = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def first_draw(graph: Lifted | None) -> Where | None:
    """Return the place of the first random operator of a lifted graph; None where there is none or it cannot run."""
    if isinstance(graph, TorchTape):
        # What no input decides is no step of a run: the record of all calls is looked at.
        return next((_place(entry) for entry in graph.tape.entries if entry.random), None)
    if graph is None:
        return None
    watch = _RandomCalls()
    try:
        graph.run(observe=watch)
    except CannotLift:
        return None
    return next(iter(watch.found), None)


def _place(entry: AtenCall) -> Where:
    return dataclasses.replace(entry.where, node=entry.name, operator=f"aten.{entry.facts.name}")


@dataclass(slots=True)
class _RandomCalls:
    found: list[Where] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        if step.operator in _ONNX:
            self.found.append(dataclasses.replace(step.where, node=step.name, operator=step.operator))
