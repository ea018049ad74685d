"""torch operators with packed integer weights (``torch.ao``'s dynamic int8), with their quantisation undone."""

from __future__ import annotations

import torch

from driftscope.errors import CannotLift
from driftscope.explain.quantised.findings import tried, wrong_weight
from driftscope.explain.quantised.float_graph import float_graph
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
from driftscope.lift.outline import tell_steps
from driftscope.lift.steps import Lifted, Step
from driftscope.records.finding import Where


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
    floats = float_graph(graph, exact)
    same = same_as(side, other, floats, evidence)
    if wrong:
        return Quantisation(side, wrong=tried(wrong, same))
    if not same:
        return None
    clean, rows = floats.run(), []
    # A layer that is called several times is one weight.
    calls = {name: [w for w, _ in weights[index] if names[w.name] == name] for name in names.values()}
    for reference, own in list(calls.items())[:MEASURED]:
        moved = float_graph(graph, exact | {w.name: w.value for w in own}).run()
        rows.append(cost_of(own[0], reference, exact[own[0].name], clean, moved))
    if all(weight.in_half for weight, _ in weights[index]):
        return as_rounded(side, "weight", ["rounded to float16"] * len(calls), rows)
    return as_quantised(side, list(calls), rows, clean)


def _packed(graph: Lifted | None) -> list[tuple[IntegerGrid, Where]]:
    """The packed weights that a program multiplies with, and where."""
    if graph is None or graph.kind != "torch":
        return []
    places: dict[str, Where] = {}

    def see(step: Step) -> None:
        places[step.name] = step.where

    packs: list[str] = []

    def note(step: Step) -> None:
        packs.extend([step.name] if "quantized" in step.operator else [])

    try:
        tell_steps(graph, note)
        graph.constant_values(observe=note)
        if not packs:  # nearly always
            return []
        with undone({}) as found:
            graph.run(observe=see)
            graph.constant_values(observe=see)  # a layer may multiply a table of positions
    except CannotLift:
        return []
    return [(IntegerGrid(name, *parts), places.get(name, Where())) for name, parts in found.seen.items()]
