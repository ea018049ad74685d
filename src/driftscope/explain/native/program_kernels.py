"""Native localisation of a bound program: its values read without disturbing it, its kernels judged one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.errors import CannotLift
from driftscope.explain.locate.narrowing import first_narrowing
from driftscope.explain.locate.targets import largest_gap, same_bits
from driftscope.explain.native.observation import Sizes, disturbed, observe
from driftscope.explain.native.pieces import PieceDrift, native_drifts
from driftscope.lift.sources import lift_bound, lift_source
from driftscope.lift.steps import Lifted, Step
from driftscope.lift.torch.native_values import keeping_natives
from driftscope.lift.torch.tape import TorchTape
from driftscope.programs.protocol import Bound
from driftscope.programs.value_trees import flatten
from driftscope.records.finding import Finding, Where
from driftscope.records.words import agreeing, counted, floors

# Kernels named beside the worst one.
_OTHERS = 3


def native_pieces_of(
    bound: Bound, seed: int = 0, side: str = "B", errors: dict[str, torch.Tensor] | None = None
) -> tuple[list[PieceDrift], Finding | None, Lifted | None]:
    """Measure every kernel of a program on its native inputs.

    Parameters
    ----------
    bound : Bound
    seed : int
    side : str
    errors : dict or None
        Filled with what the values outside their floor are off by.

    Returns
    -------
    drifts : list of PieceDrift
        Empty when observing changed the result.
    disturbed : Finding or None
        By how much it did.
    graph : Lifted or None
        The graph that the runtime runs; None when observing changed the result.

    Raises
    ------
    CannotLift
        If the values of this runtime cannot be read, or its graph not be evaluated in float64.
    RuntimeRefused
        If the optimised graph cannot be saved or run.
    """
    graph, parts, broken = native_parts_of(bound, side)
    drifts: list[PieceDrift] = []
    for values in parts:
        if broken():
            return [], broken(), None
        drifts += native_drifts(graph, values, seed, errors)
    return (drifts, None, graph) if broken() is None else ([], broken(), None)


def native_parts_of(
    bound: Bound, side: str
) -> tuple[Lifted, Iterable[Mapping[str, torch.Tensor]], Callable[[], Finding | None]]:
    """The graph that a runtime runs, and its native values by name, in parts that fit into memory.

    Returns
    -------
    graph, parts, disturbed
        The last says, once a part is there, by how much reading it changed the result; None where it did not.

    Raises
    ------
    CannotLift, RuntimeRefused
        As :func:`native_pieces_of`.
    """
    if bound.program.kind in ("torch", "exported", "callable"):
        return _torch_parts(bound, side)
    if bound.program.onnx_model is None:
        raise CannotLift(f"the values inside {bound.program.name} on {bound.program.runtime} cannot be read")
    source = bound.program.optimized_source(bound)
    if source is None:
        raise CannotLift(f"{bound.program.runtime} does not say which graph it runs")
    graph = lift_source(source)
    sizes = Sizes()
    graph.run(observe=sizes)
    observation = observe(bound, sizes.found)
    return graph, observation.values(), lambda: observation.finding(side)


def _torch_parts(
    bound: Bound, side: str
) -> tuple[Lifted, Iterable[Mapping[str, torch.Tensor]], Callable[[], Finding | None]]:
    with keeping_natives() as natives:
        lifted = lift_bound(bound)
    if not isinstance(lifted, TorchTape):
        raise CannotLift(f"{bound.program.name} has no tape of its own")
    if lifted.tape.written:
        raise CannotLift(f"{bound.program.name} writes into memory that others see: its values cannot be exchanged")
    values = natives.named(lifted.tape)
    with torch.no_grad():
        leaves, _ = flatten(bound.program(bound))
    final = {output.name: str(output.path) for output in lifted.run()}
    expected = {str(path): value for path, value in leaves}
    pairs = [
        (expected[path].cpu(), values[name]) for name, path in final.items() if name in values and path in expected
    ]
    one, other = [one for one, _ in pairs], [other for _, other in pairs]
    broken = None if same_bits(one, other) else disturbed(side, len(values), largest_gap(one, other))
    return lifted, [values], lambda: broken


@dataclass(slots=True)
class SourceLines:
    """An observer that learns where in the user's source each value of a file is computed."""

    found: dict[str, Where] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        for name in step.output_names:
            if name:
                self.found[name] = step.where


def placed(drifts: Sequence[PieceDrift], file: Lifted | None) -> list[PieceDrift]:
    """Give pieces of an optimised graph the source lines that the file has for the same values."""
    if file is None or not drifts or drifts[0].where.file is not None:
        return list(drifts)
    places = SourceLines()
    file.run(observe=places)
    known = [(d, places.found.get(d.value, Where())) for d in drifts]
    return [
        replace(d, where=replace(d.where, module=w.module, file=w.file, line=w.line, expression=w.expression))
        for d, w in known
    ]


def cast_finding(file: Lifted | None, bound: Bound, side: str) -> Finding | None:
    """Say that the graph which runs passes through a narrower format than any in its file."""
    source = bound.program.optimized_source(bound)
    narrowing = first_narrowing(file, lift_source(source)) if file is not None and source is not None else None
    if narrowing is None:
        return None
    return Finding(
        "N025",
        f"the graph that runs in {side} passes through {narrowing}, a format that its file does not have",
        "The runtime, or an optimiser of it, inserted a cast.",
        "Ask the provider for the declared format; its options say how.",
        narrowing.where,
        {"side": side, "format": narrowing.format},
    )


def _others_within(count: int) -> str:
    if not count:
        return ""
    return f"; that of {counted(count, 'other value')} {agreeing(count, 'is', 'are')} within ordinary rounding"


def kernel_finding(outside: Sequence[PieceDrift], count: int, side: str) -> Finding:
    """Put the kernels outside their floor into words, the worst one first."""
    worst = outside[0]
    others = ", ".join(f"{d.where.node} ({d.floors:.2g})" for d in outside[1 : 1 + _OTHERS])
    more = f"; also {others}" if others else ""
    more += f" and {len(outside) - 1 - _OTHERS} more" if len(outside) > 1 + _OTHERS else ""
    why = _meaning(worst)
    return Finding(
        "N025",
        f"the kernel of {worst.where.node} ({worst.where.operator}) in {side} is {floors(worst.floors, 3)} from "
        f"float64 on the very values it was given (relative error {worst.error:.1e})"
        f"{_others_within(count - len(outside))}{more}",
        why,
        _remedy(worst),
        worst.where,
        {
            "side": side,
            "kernels": [
                {"node": d.where.node, "operator": d.where.operator, "floors": d.floors, "error": d.error}
                | ({"absolute": d.approximation.absolute} if d.approximation else {})
                | ({"replay": dict(d.cause)} if d.cause else {})
                for d in outside[:20]
            ],
            "count": count,
        },
    )


def _meaning(worst: PieceDrift) -> str:
    """What the node's own attributes, or a replay that gives its very error, say of the kernel."""
    level = worst.attributes.get("accuracy_level")
    if level in _LEVELS:
        return f"Its attribute accuracy_level={level} lets the kernel {_LEVELS[level]}."
    if worst.approximation is not None and worst.approximation.cancels:
        times = f"{worst.approximation.cancels:.2g} times as large as its spread"
        return f"It loses digits by cancellation: its input is {times}."
    if worst.approximation is not None:
        return f"It is an approximation: {worst.approximation}."
    if not worst.cause:
        return ""
    return (
        f"Its error is that of {worst.cause['way']}: run again so, it predicts the native error with a correlation of "
        f"{worst.cause['correlation']:.3f}."
    )


def _remedy(worst: PieceDrift) -> str:
    if worst.approximation is not None and worst.approximation.cancels:
        return "Centre its input before, or compute it in float64."
    if worst.approximation is not None and not worst.approximation.allowed:
        return "Where small results matter, compute this operator in float64."
    return "Ask the runtime for the declared arithmetic at this operator, or keep it out of what chose this kernel."


# onnxruntime, docs/ContribOperators.md, com.microsoft.MatMulNBits.
_LEVELS: dict[object, str] = {
    1: "compute in float32",
    2: "round activations to float16",
    3: "round activations to bfloat16",
    4: "round activations to int8",
}
