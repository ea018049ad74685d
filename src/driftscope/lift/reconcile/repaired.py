"""A lifted program with repaired constants in force in every run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch

from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.steps import Constant, Lifted, LiftedOutput, Observer


class RepairedGraph:
    """Implements :class:`driftscope.lift.steps.Lifted`: another one, run with repairs.

    Parameters
    ----------
    graph : Lifted
    repairs : sequence of Repair
        In force unless a run replaces the same constants by something else.
    """

    def __init__(self, graph: Lifted, repairs: Sequence[Repair]):
        self.kind = graph.kind
        values = {r.name: r.value for r in repairs}
        # One layer over the program as it is stored, whatever was repaired before.
        stored, before = graph.beneath({}) if type(graph) is RepairedGraph else (graph, {})
        self._graph: Lifted = stored
        self._values = {**before, **values}

    def beneath(self, replace: Mapping[str, torch.Tensor]) -> tuple[Lifted, Mapping[str, torch.Tensor]]:
        """The program as it is stored, and everything that is replaced in it."""
        return self._graph, {**self._values, **replace}

    def constants(self) -> Sequence[Constant]:
        """Its constants, as stored."""
        return self._graph.constants()

    def run(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> list[LiftedOutput]:
        """Evaluate once in float64, with the repairs."""
        return self._graph.run(observe=observe, replace={**self._values, **(replace or {})})

    def with_attribute(self, step: str, name: str, value: object) -> RepairedGraph:
        """Give it with another attribute of one step, and the repairs."""
        changed = copy.copy(self)
        changed._graph = self._graph.with_attribute(step, name, value)
        return changed

    def with_inputs(self, step: str, order: Sequence[int]) -> RepairedGraph:
        """Give it with the inputs of one step in another order, and the repairs."""
        changed = copy.copy(self)
        changed._graph = self._graph.with_inputs(step, order)
        return changed

    def with_operator(self, step: str, operator: str) -> RepairedGraph:
        """Give it with another operator in one step, and the repairs."""
        changed = copy.copy(self)
        changed._graph = self._graph.with_operator(step, operator)
        return changed

    def constant_values(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Evaluate the constant subgraphs alone, with the repairs."""
        return self._graph.constant_values(observe=observe, replace={**self._values, **(replace or {})})
