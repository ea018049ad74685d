"""What a comparison says of half formats: which side was computed in float32, and what the declared format would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnx import ModelProto, TensorProto

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.half.keeping import HalfRuns, Kept, smallest_keep
from driftscope.explain.half.range import incident_findings, paste_lines
from driftscope.explain.half.simulation import Simulation
from driftscope.explain.locate.targets import as_double
from driftscope.explain.native.wide_kernels import computed_wide, wide_finding
from driftscope.lift.steps import Lifted
from driftscope.programs.protocol import Bound
from driftscope.records.finding import Finding, Where

_ELEMENTS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
# A search for what to keep in float32 makes up to sixty runs: for graphs of more steps it is left to ds.check_half.
# (Counted, not timed: the same comparison gives the same record on a busy machine.)
_STEPS = 600
# From this factor on, what the declared format would cost is worth a note.
_WORTH_SAYING = 2.0


def half_findings(bound: Bound, graph: Lifted | None, values: Sequence[Any], side: str) -> list[Finding]:
    """Say what a provider computed in float32, and what a device that computes as declared would give.

    Parameters
    ----------
    bound : Bound
    graph : Lifted or None
        The program in float64.
    values : sequence
        Its native results, flattened.
    side : str
        ``"A"`` or ``"B"``.

    Returns
    -------
    list of Finding
        Empty for a program that has no half format, or that was computed as declared.
    """
    program = bound.program
    if program.onnx_model is None:
        return []
    word = half_format(program.onnx_model.proto)
    wide = computed_wide(bound) if word else None
    if wide is None:
        return []
    notes = [wide_finding(wide, f"{side} ({program.name})", word)]
    if graph is None:
        return notes
    try:
        return notes + _declared(graph, values, word, program.provider)
    except (CannotLift, DriftscopeError):
        return notes  # a replaced value can lead a graph where its lift does not follow


def half_format(model: ModelProto) -> str:
    """Name the half format that a model stores, casts to, takes or gives; empty when there is none."""
    stored = (t.data_type for t in model.graph.initializer)
    declared = (v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output))
    casts = (a.i for n in model.graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to")
    return next((_ELEMENTS[e] for group in (stored, declared, casts) for e in group if e in _ELEMENTS), "")


def _declared(graph: Lifted, values: Sequence[Any], word: str, provider: str) -> list[Finding]:
    runs = HalfRuns(graph)
    first = runs.simulate()
    if first.incidents:
        small = len(runs.anatomy.order) <= _STEPS
        kept = smallest_keep(runs, first) if small else Kept()
        found = incident_findings(first.incidents[:1], kept, paste_lines(kept, graph.kind), runtime=provider)
        advice = "ds.check_half finds the operators to keep in float32."
        return found if small else [replace(f, fix=advice) for f in found]
    return _cost(runs, first, values, word)


def _cost(runs: HalfRuns, first: Simulation, values: Sequence[Any], word: str) -> list[Finding]:
    """Note the output for which the declared format would cost most beside what this run gave."""
    worst: tuple[float, int, float] | None = None
    for k, (clean, rounded) in enumerate(zip(runs.clean, first.outputs, strict=True)):
        x, y = clean.value, rounded.value
        if x is None or y is None or k >= len(values) or not x.is_floating_point() or x.shape != values[k].shape:
            continue
        here, there = rms(finite(as_double(values[k]) - x.cpu())), rms(finite(y - x))
        if here > 0.0 and there > _WORTH_SAYING * here and (worst is None or there / here > worst[0]):
            worst = (there / here, k, there)
    if worst is None:
        return []
    ratio, k, there = worst
    output = runs.clean[k].path
    return [
        Finding(
            "N028",
            f"rounding every operator's result to {word} would put {output} {there:.1e} from float64 (root mean "
            f"square), {ratio:.2g} times as far as this run",
            "This run rounded less often than its graph declares.",
            where=Where(output=str(output)),
            evidence={"rms": there, "ratio": ratio, "format": word},
            note=True,
        )
    ]
