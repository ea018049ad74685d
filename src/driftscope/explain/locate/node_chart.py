"""Drift along the way through two programs: node by node, each side against float64, and the sides against each other.

Every value of B is put beside the value of A that an alignment gives it, twice: with both programs on their *own*
values, which is what has come together up to that node, and with B *fed* A's, which is what the node itself adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.explain.locate.alignment import Alignment, align
from driftscope.explain.locate.fed_values import Fed, ancestors, relative
from driftscope.explain.locate.fingerprints import Trail, Visited
from driftscope.explain.locate.targets import as_double
from driftscope.explain.native.observation import Sizes, observe
from driftscope.lift.evidence import Evidence
from driftscope.lift.noise.floor import kernels_of
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.sources import lift_bound
from driftscope.lift.steps import Lifted, Step
from driftscope.lift.torch.native_values import keeping_natives
from driftscope.lift.torch.tape import TorchTape
from driftscope.programs.protocol import Bound
from driftscope.records.kinds.comparison import NodeRecord

#: Elements of float64 values held at a time on each side (256 MiB); with more, the runs are repeated for each share.
_HELD = 1 << 25


def node_records(a: Bound, b: Bound, evidence: Evidence, seed: int = 0) -> tuple[NodeRecord, ...]:
    """Measure every value on the way through B.

    Parameters
    ----------
    a, b : Bound
    evidence : Evidence
        Of the comparison: both lifted graphs.
    seed : int
        Of the noise.

    Returns
    -------
    tuple of NodeRecord
        In the order in which B computes; empty when a side cannot be lifted. Costs three float64 runs of each side,
        a fourth of B, one native run, and again two of each for every 2**25 elements.
    """
    if evidence.a.graph is None or evidence.b.graph is None:
        return ()
    graph_a, native_a = _with_natives(a, evidence.a.graph)
    graph_b, native_b = _with_natives(b, evidence.b.graph)
    known = evidence.reconciled
    # Rounded constants are put back: what is left is drift that the storage does not explain.
    repaired = (
        ({r.name: r.value for r in known.repairs_a}, {r.name: r.value for r in known.repairs_b}) if known else ({}, {})
    )
    trail_a, trail_b = _trail(graph_a), _trail(graph_b)
    aligned = align(trail_a, trail_b, {})
    shown = [step for step in trail_b.steps if not step.inside and step.outputs and step.shapes]
    partners = {step.name: p for step in shown if (p := _partner(step, trail_a, aligned)) is not None}
    reads_b = ancestors(trail_b.steps, {step.name for step in shown})
    reads_a = ancestors(trail_a.steps, {p.name for p in partners.values()})
    records: list[NodeRecord] = []
    shares = list(_shares(shown))
    for share in shares:
        wanted = [name for step in share if step.name in partners for name in partners[step.name].outputs if name]
        side_a = _Side(graph_a, native_a, seed, wanted, repaired[0])
        side_b = _Side(graph_b, native_b, seed, [step.outputs[0] for step in share], repaired[1])
        pairs = [(step, partners.get(step.name)) for step in share]
        names = {step.outputs[0]: _output(step, partner, side_a, side_b) for step, partner in pairs if partner}
        fed = Fed({name: side_a.common[other] for name, other in names.items() if other in side_a.common})
        if len(shares) == 1:  # else A's values before this share are not at hand
            graph_b.run(observe=fed, replace=repaired[1])
        for step, partner in pairs:
            record = _record(step, partner, names.get(step.outputs[0], ""), side_a, side_b)
            found = fed.drift.get(step.outputs[0])
            reads = reads_b.get(step.name, ()), reads_a.get(partner.name, ()) if partner else ()
            records.append(replace(record, fed=_short(found), reads=reads[0], counterpart_reads=reads[1]))
    return tuple(records)


def _output(step: Visited, partner: Visited, side_a: _Side, side_b: _Side) -> str:
    """Name the output of ``partner`` that ``step`` computes: of several (a split's parts) the nearest one."""
    mine = side_b.common.get(step.outputs[0])
    usable = {name: d for name in partner.outputs if (d := relative(side_a.common.get(name), mine)) is not None}
    return min(usable, key=lambda name: usable[name]) if usable else partner.outputs[0]


def _with_natives(bound: Bound, graph: Lifted) -> tuple[Lifted, Mapping[str, torch.Tensor]]:
    """Return the lifted graph with what its values natively were, by name; none where they cannot be read."""
    try:
        if bound.program.kind in ("torch", "exported", "callable"):
            with keeping_natives() as natives:
                recorded = lift_bound(bound)
            if isinstance(recorded, TorchTape) and not recorded.tape.written:
                return recorded, natives.named(recorded.tape)
        elif bound.program.onnx_model is not None:
            return graph, _observed(bound, graph)
    except (CannotLift, RuntimeRefused):
        pass  # the chart shows the other side, and the float64 drift
    return graph, {}


def _observed(bound: Bound, graph: Lifted) -> dict[str, torch.Tensor]:
    sizes = Sizes()
    graph.run(observe=sizes)
    observation = observe(bound, sizes.found)
    found: dict[str, torch.Tensor] = {}
    for values in observation.values():
        if not observation.faithful:
            return {}  # reading them changed the result: they say nothing
        found.update(values)
    return found


def _trail(graph: Lifted) -> Trail:
    trail = Trail(frozenset(c.name for c in graph.constants()), graph.kind == "torch")
    graph.run(observe=trail)
    return trail


def _partner(step: Visited, trail_a: Trail, aligned: Alignment) -> Visited | None:
    index = aligned.partner.get(step.index)
    return trail_a.steps[index] if index is not None else None


def _shares(steps: Sequence[Visited]) -> Iterator[list[Visited]]:
    """Cut the way into shares whose values can be held at a time."""
    share: list[Visited] = []
    held = 0
    for step in steps:
        size = torch.Size(step.shapes[0]).numel()
        if share and held + size > _HELD:
            yield share
            share, held = [], 0
        share.append(step)
        held += size
    if share:
        yield share


@dataclass(slots=True)
class _Kept:
    """An observer that keeps some values of a run, and what noise did to them when it is given clean ones."""

    names: frozenset[str]
    injector: NoiseInjector | None = None
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        replaced = None if self.injector is None else self.injector(step)
        shown = step.outputs if replaced is None else replaced
        for name, value in zip(step.output_names, shown, strict=True):
            if name in self.names and value is not None:
                self.values[name] = value
        return replaced


class _Side:
    """The values of one side at some of its nodes: exact, and with the noise of one ordinary rounding each step.

    ``repaired`` are constants that the other side has unrounded: :attr:`common` is what both would compute with them.
    """

    def __init__(
        self,
        graph: Lifted,
        natives: Mapping[str, torch.Tensor],
        seed: int,
        names: Sequence[str],
        repaired: Mapping[str, torch.Tensor],
    ):
        self.natives = natives
        exact = _Kept(frozenset(names))
        graph.run(observe=exact)
        self.exact = self.common = exact.values
        if repaired:
            common = _Kept(frozenset(names))
            graph.run(observe=common, replace=repaired)
            self.common = common.values
        # A reading costs a run with noise; without native values there is nothing to measure with it.
        readable = frozenset(name for name in names if name in natives)
        noisy = _Kept(readable, NoiseInjector(seed=seed, kernels=kernels_of(graph.kind)))
        if readable:
            graph.run(observe=noisy)
        self.noisy = noisy.values

    def error(self, name: str) -> float | None:
        """Distance of the native value from the exact one in floors; None where it was not read or does not round."""
        native, exact, noisy = self.natives.get(name), self.exact.get(name), self.noisy.get(name)
        if native is None or exact is None or noisy is None or native.shape != exact.shape:
            return None
        if not (native.is_floating_point() and exact.is_floating_point()):
            return None
        drift = rms(finite(as_double(native) - exact))
        floor = rms(finite(noisy - exact))
        if floor:
            return drift / floor
        return 0.0 if drift == 0.0 else None  # a step that only moves rounded inputs of the program


def _record(step: Visited, partner: Visited | None, other: str, side_a: _Side, side_b: _Side) -> NodeRecord:
    name = step.outputs[0]
    # The reference's source is what a person can edit; an exporter may have written it into B as well.
    sources = [where for where in (step.where, partner.where if partner is not None else None) if where is not None]
    placed = next((where for where in sources if where.file), sources[0])
    return NodeRecord(
        name=step.name,
        operator=step.operator,
        value=name,
        shape=step.shapes[0],
        module=next((where.module for where in sources if where.module), None),
        file=placed.file,
        line=placed.line,
        expression=placed.expression,
        counterpart=partner.name if partner is not None else "",
        lifted=_short(relative(side_a.common.get(other), side_b.common.get(name))),
        error_a=_short(side_a.error(other)) if other else None,
        error_b=_short(side_b.error(name)),
    )


def _short(value: float | None) -> float | None:
    """Three digits: thousands of nodes are kept, and nobody reads more of a size."""
    return None if value is None else float(f"{value:.3g}")
