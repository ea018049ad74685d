"""torch operators with packed integer weights (``torch.ao``'s dynamic int8), with their quantisation undone."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from driftscope.errors import CannotLift
from driftscope.explain.quantised.findings import tried, wrong_weight
from driftscope.explain.quantised.originals import float_weights
from driftscope.explain.quantised.undoing import (
    MEASURED,
    Quantisation,
    as_quantised,
    as_rounded,
    cost_of,
    same_as,
    side_alone,
)
from driftscope.explain.quantised.weights import IntegerGrid
from driftscope.lift.evidence import Evidence
from driftscope.lift.formulas.quantisation import undone
from driftscope.lift.reconcile.repaired import RepairedGraph
from driftscope.lift.steps import Lifted, LiftedOutput, Observer, Step
from driftscope.records.finding import Where


class FloatGraph(RepairedGraph):
    """A lifted program that multiplies floats where it multiplies integers.

    Parameters
    ----------
    graph : Lifted
    exact : mapping of str to torch.Tensor
        By step: the weight to multiply with, float64.
    stored : mapping of str to torch.Tensor
        By constant that holds integers: the numbers that they are the rounding of, float64.
    """

    def __init__(
        self, graph: Lifted, exact: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor] | None = None
    ):
        super().__init__(graph, ())
        self._exact = exact
        self._values = dict(stored or {})

    def run(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> list[LiftedOutput]:
        """Evaluate once in float64."""
        with undone(self._exact):
            return super().run(observe=observe, replace=replace)

    def constant_values(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Evaluate the constant subgraphs alone."""
        with undone(self._exact):
            return super().constant_values(observe=observe, replace=replace)


def packed_quantisation(evidence: Evidence) -> Quantisation | None:
    """Say what the quantisation of a torch side is; None where neither side has packed weights, or both have."""
    graphs = [evidence.a.graph, evidence.b.graph]
    weights = [_packed(g) for g in graphs]
    index = side_alone(weights)
    if index is None:
        return None
    graph, other, side = graphs[index], graphs[1 - index], "AB"[index]
    if graph is None or other is None:
        return None
    constants, exact, wrong = float_weights(other), dict[str, torch.Tensor](), []
    names, taken = dict[str, str](), set[str]()
    for weight, where in weights[index]:
        partner = weight.partner(constants, taken)
        if partner is None:
            return None
        names[weight.name], exact[weight.name] = partner[0].name, partner[1]
        taken.add(partner[0].name)
        if not weight.rounds(partner[1]):
            wrong.append(wrong_weight(weight, partner[0].name, partner[1], where))
    floats = FloatGraph(graph, exact)
    same = same_as(side, other, floats, evidence)
    if wrong:
        return Quantisation(side, wrong=tried(wrong, same))
    if not same:
        return None
    clean, rows = floats.run(), []
    for weight, _ in weights[index][:MEASURED]:
        name = weight.name
        moved = FloatGraph(graph, exact | {name: weight.value}).run()
        rows.append(cost_of(weight, names[name], exact[name], clean, moved))
    if all(weight.in_half for weight, _ in weights[index]):
        return as_rounded(side, ["rounded to float16"] * len(names), rows)
    return as_quantised(side, list(names.values()), rows, clean)


def _packed(graph: Lifted | None) -> list[tuple[IntegerGrid, Where]]:
    """The packed weights that a program multiplies with, and where."""
    if graph is None or graph.kind != "torch":
        return []
    places: dict[str, Where] = {}

    def see(step: Step) -> None:
        places[step.name] = step.where

    try:
        with undone({}) as found:
            graph.run(observe=see)
    except CannotLift:
        return []
    return [(IntegerGrid(name, *parts), places.get(name, Where())) for name, parts in found.seen.items()]
