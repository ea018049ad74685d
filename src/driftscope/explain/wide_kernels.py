"""What a provider computed in float32 although the graph declares a half format."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx
import torch

from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.explain.half_simulation import HALVES
from driftscope.lift.sources import lift_source
from driftscope.lift.steps import Kind, Step
from driftscope.programs.protocol import Bound
from driftscope.programs.runtimes.onnxruntime_session import OnnxProgram
from driftscope.records.finding import Finding

# What onnxruntime 1.31 calls the casts it puts around operators without a kernel for a format
# (core/optimizer/insert_cast_transformer.cc).
_INSERTED = ("InsertedPrecisionFreeCast_", "InsertedCast_")


@dataclass(frozen=True, slots=True)
class WideKernels:
    """Operators that a provider computed in float32 though they are declared in a half format.

    Parameters
    ----------
    wide, total : int
        Rounding operators computed in float32, of those that the session ran.
    casts : int
        Casts that the runtime inserted.
    operators : tuple of str
        Their types, the most frequent first.
    provider : str
    """

    wide: int
    total: int
    casts: int
    operators: tuple[str, ...]
    provider: str


@dataclass(slots=True)
class _Formats:
    """An observer that counts rounding operators by the format they compute in."""

    graph: onnx.GraphProto
    wide: list[str] = field(default_factory=list)
    narrow: int = 0

    def __call__(self, step: Step) -> None:
        inside = bool(step.inputs) and not any(step.input_names)
        if step.constant or inside or step.operator == "Cast" or step.rounding.kind is Kind.EXACT:
            return
        first = next((fmt for fmt in step.formats if fmt is not None), None)
        if first == torch.float32:
            self.wide.append(step.operator)
        elif first in HALVES:
            self.narrow += 1


def computed_wide(bound: Bound) -> WideKernels | None:
    """Count what a runtime computed in float32 instead of the declared format; None when nothing was.

    Only a session says so: of the graph that it runs, by the casts that it inserted.
    """
    program = bound.program
    if not isinstance(program, OnnxProgram):
        return None
    try:
        source = program.optimized_source(bound)
        if source is None:
            return None
        inserted = sum(node.op_type == "Cast" and node.name.startswith(_INSERTED) for node in source.model.graph.node)
        if not inserted:
            return None
        formats = _Formats(source.model.graph)
        lift_source(source).run(observe=formats)
    except (CannotLift, RuntimeRefused):
        return None
    if not formats.wide:
        return None
    kinds = sorted(set(formats.wide), key=lambda name: (-formats.wide.count(name), name))
    total = len(formats.wide) + formats.narrow
    return WideKernels(len(formats.wide), total, inserted, tuple(kinds), program.setup.provider_name)


def wide_finding(found: WideKernels, name: str, fmt: str) -> Finding:
    """Say that a result is more exact than its format because it was not computed in it."""
    return Finding(
        "O008",
        f"{found.wide} of {found.total} rounding operators that {name} ran were computed in float32 by "
        f"{found.provider}, not in {fmt}: it has no kernels for it, and {found.casts} casts were inserted",
        "A small error here is no promise for a device that computes as declared.",
        evidence={"wide": found.wide, "total": found.total, "casts": found.casts, "operators": list(found.operators)},
        note=True,
    )
