"""torch programs that store integers and scales as tensors of their own (PyTorch 2 export quantisation, torchao)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from driftscope.errors import CannotLift
from driftscope.explain.quantised.float_graph import Dequantised, dequantised_as, float_graph
from driftscope.explain.quantised.originals import computed_constants, float_weights
from driftscope.explain.quantised.undoing import (
    MEASURED,
    Quantisation,
    as_quantised,
    cost_of,
    same_as,
    side_alone,
)
from driftscope.explain.quantised.weights import IntegerGrid, layouts
from driftscope.lift.evidence import Evidence
from driftscope.lift.reconcile.matching import same_name
from driftscope.lift.steps import Constant, Lifted

_ROUNDING = "quantized_decomposed.quantize"
_SMALL = (torch.int8, torch.uint8)
# How far a scale may be from the one that fits integers to their weight best, relative.
_NEAR = 0.05


def stored_quantisation(evidence: Evidence) -> Quantisation | None:
    """Say what the quantisation of a torch side is that stores its integers; None where that is not all that differs.

    Its weights are put back as ``weight / scale`` where the integers are stored, and nothing is rounded on the way.
    """
    graphs = (evidence.a.graph, evidence.b.graph)
    integers = [_integers(g) for g in graphs]
    # One that stores no integers may still round what it computes.
    index = side_alone(integers if any(integers) else [_rounds(g) for g in graphs])
    if index is None:
        return None
    graph, other, side = graphs[index], graphs[1 - index], "AB"[index]
    if graph is None or other is None:
        return None
    found = _grids(graph, integers[index], [*float_weights(other), *computed_constants(other)])
    if found is None:
        return None  # whose integers these are is not known
    quotients = {key: quotient for key, (*_, quotient) in found.items()}
    integers_of = {c.name: c.value.detach().cpu().to(torch.float64) for c in integers[index]}
    try:
        floats = float_graph(graph, stored=quotients)
        if not same_as(side, other, floats, evidence):
            return None
        clean = floats.run()
        rows = [
            cost_of(grid, name, exact, clean, float_graph(graph, stored=quotients | {key: integers_of[key]}).run())
            for key, (grid, name, exact, _) in list(found.items())[:MEASURED]
        ]
    except CannotLift:
        return None
    return as_quantised(side, [name for _, name, _, _ in found.values()], rows, clean)


# The grid, the weight's name, the weight laid out alike, and the integers as they were before they were rounded.
_Found = tuple[IntegerGrid, str, torch.Tensor, torch.Tensor]


def _grids(graph: Lifted, integers: Sequence[Constant], weights: Sequence[Constant]) -> dict[str, _Found] | None:
    """By constant, the weight that its integers are the rounding of; None where one of them is the rounding of nothing.

    Of several weights that round to the same integers it is one of their name, or one that none stands for yet, and
    of several scales the one beside them.
    """
    plain = graph.constant_values()
    order = {c.name: k for k, c in enumerate(graph.constants())}
    scales = [(order[c.name], c.value.to(torch.float64)) for c in graph.constants() if c.value.dtype.is_floating_point]
    grids: dict[str, _Found] = {}
    for constant in integers:
        name, taken = constant.name, {found[1] for found in grids.values()}
        free = sorted(weights, key=lambda w, name=name, taken=taken: (not same_name(w.name, name), w.name in taken))  # type: ignore[misc]
        near = sorted(scales, key=lambda s, name=name: abs(s[0] - order[name]))  # type: ignore[misc]
        made = dequantised_as(graph, constant, plain)
        if made is not None and made.is_zero_point:
            continue
        found = None if made is None else _scaled(constant, made, free)
        found = found or _grid(constant, free, [scale for _, scale in near])
        if found is None:
            return None
        grids[name] = found
    return grids


def _integers(graph: Lifted | None) -> list[Constant]:
    """The stored tensors of small integers of a torch program that are more than indices: each with many levels."""
    if graph is None or graph.kind != "torch":
        return []
    small = (c for c in graph.constants() if c.value.dtype in _SMALL and c.value.dim() >= 2)
    # One number everywhere is a zero point.
    return [c for c in small if not bool((c.value == c.value.reshape(-1)[:1]).all())]


def _rounds(graph: Lifted | None) -> bool:
    """Whether a torch program rounds values to integers by a scale that it writes."""
    if graph is None or graph.kind != "torch":
        return False
    return any((c.where.operator or "").startswith(_ROUNDING) for c in graph.constants())


def _grid(constant: Constant, weights: Sequence[Constant], scales: Sequence[torch.Tensor]) -> _Found | None:
    """The grid of stored integers, with the weight of the other side that they are the rounding of; the zero point."""
    stored = constant.value.detach().cpu().to(torch.float64)
    limits = torch.iinfo(constant.value.dtype)
    edge = (stored <= limits.min) | (stored >= limits.max)
    for weight in weights:
        for exact in layouts(weight.value, stored.shape):
            # No constant says which integer stands for zero: it is the one that fits, and every element has to.
            for zero in dict.fromkeys((0.0, _zero(stored, exact))):
                for step in _steps(stored - zero, exact, scales):
                    grid = IntegerGrid(constant.name, (stored - zero) * step, step, edge)
                    if grid.rounds(exact):
                        return grid, weight.name, exact, exact / step + zero
    return None


def _scaled(constant: Constant, made: Dequantised, weights: Sequence[Constant]) -> _Found | None:
    """The weight whose rounding is what a program makes of its integers by scales and zero points of any layout."""
    stored = constant.value.detach().cpu().to(torch.float64)
    # Integers of fewer bits are stored as these too: their ends are the smallest and the largest that is there.
    edge = (stored == stored.min()) | (stored == stored.max())
    grid = IntegerGrid(constant.name, made.value, made.step.abs(), edge)
    for weight in weights:
        for exact in layouts(weight.value, stored.shape):
            if grid.rounds(exact):
                return grid, weight.name, exact, stored + (exact - made.value) / made.step
    return None


def _zero(integers: torch.Tensor, exact: torch.Tensor) -> float:
    """The integer that stands for zero where all are on one line, by least squares."""
    spread = exact - exact.mean()
    slope = (spread * integers).sum() / spread.square().sum().clamp(min=1e-300)
    return float(torch.round(integers.mean() - slope * exact.mean()))


def _steps(integers: torch.Tensor, exact: torch.Tensor, scales: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Scales of the program, one or one per channel, that are near what these integers of that weight need."""
    for axis in (0, integers.dim() - 1, None):
        rest = [d for d in range(integers.dim()) if d != axis]
        best = (integers * exact).sum(rest) / integers.square().sum(rest).clamp(min=1)
        for scale in scales:
            given = scale.reshape(-1)
            if given.numel() == best.numel() and bool(((given - best).abs() <= _NEAR * best.abs()).all()):
                yield given.reshape([-1 if d == axis else 1 for d in range(integers.dim())]).expand(integers.shape)
