"""torch programs that store integers and scales as tensors of their own (PyTorch 2 export quantisation, torchao)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from driftscope.errors import CannotLift
from driftscope.explain.quantised.originals import computed_constants, float_weights
from driftscope.explain.quantised.packed import FloatGraph
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
from driftscope.lift.steps import Constant, Lifted, Origin

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
    grids = {key: grid for key, (grid, *_) in found.items()}
    names = {key: (name, exact) for key, (_, name, exact, _) in found.items()}
    zeros = {key: zero for key, (*_, zero) in found.items()}
    quotients = {key: names[key][1] / grid.step + zeros[key] for key, grid in grids.items()}
    try:
        floats = _floats(graph, quotients)
        if not same_as(side, other, floats, evidence):
            return None
        clean = floats.run()
        rows = [
            cost_of(
                grid, *names[key], clean, _floats(graph, quotients | {key: grid.value / grid.step + zeros[key]}).run()
            )
            for key, grid in list(grids.items())[:MEASURED]
        ]
    except CannotLift:
        return None
    return as_quantised(side, [name for name, _ in names.values()], rows, clean)


_Found = tuple[IntegerGrid, str, torch.Tensor, float]


def _grids(graph: Lifted, integers: Sequence[Constant], weights: Sequence[Constant]) -> dict[str, _Found] | None:
    """By constant, what :func:`_grid` finds; None where one of them is the rounding of nothing.

    Of several weights that round to the same integers it is one of their name, or one that none stands for yet, and
    of several scales the one beside them.
    """
    order = {c.name: k for k, c in enumerate(graph.constants())}
    scales = [(order[c.name], c.value.to(torch.float64)) for c in graph.constants() if c.value.dtype.is_floating_point]
    grids: dict[str, _Found] = {}
    for constant in integers:
        name, taken = constant.name, {found[1] for found in grids.values()}
        free = sorted(weights, key=lambda w, name=name, taken=taken: (not same_name(w.name, name), w.name in taken))  # type: ignore[misc]
        near = sorted(scales, key=lambda s, name=name: abs(s[0] - order[name]))  # type: ignore[misc]
        found = _grid(constant, free, [scale for _, scale in near])
        if found is None:
            return None
        grids[name] = found
    return grids


def _integers(graph: Lifted | None) -> list[Constant]:
    """The stored tensors of small integers of a torch program that are more than indices: each with many levels."""
    if graph is None or graph.kind != "torch":
        return []
    return [c for c in graph.constants() if c.value.dtype in _SMALL and c.value.dim() >= 2]


def _floats(graph: Lifted, quotients: Mapping[str, torch.Tensor]) -> FloatGraph:
    """A program that rounds nothing to integers, what it computes from constants alone included."""
    rounded, meant = graph.constant_values(), FloatGraph(graph, {}, quotients).constant_values()
    moved = {n: v for n, v in meant.items() if n in rounded and not torch.equal(v, rounded[n])}
    tables = {c.name: moved[c.name] for c in graph.constants() if c.origin is Origin.COMPUTED and c.name in moved}
    return FloatGraph(graph, {}, {**quotients, **tables})


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
                        return grid, weight.name, exact, zero
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
