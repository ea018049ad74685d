"""Whether what the optimisers of a runtime did to a graph is the graph's function, and whether it shows in its results.

Of most graphs an optimiser changes few nodes, and each of them is held against the file by itself
(:func:`certified_by_node`). Integers may be rounded otherwise: of those the results tell (:func:`optimisers_show`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from driftscope.comparison.measuring.pieces import same_bits
from driftscope.comparison.measuring.spread import Ratio, finite, largest_magnitude, rms
from driftscope.comparison.thresholds import Thresholds
from driftscope.errors import DriftscopeError
from driftscope.lift.onnx.changed_nodes import ChangedNodes, changed_nodes
from driftscope.lift.onnx.graph import LiftedOnnx
from driftscope.lift.onnx.registry import Value
from driftscope.lift.onnx.stored import decode
from driftscope.lift.reconcile.drifts import Reconciled
from driftscope.lift.reconcile.exact import repairs_before_a_run
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.side_lift import SideLift, attempt
from driftscope.lift.steps import Lifted, LiftedOutput
from driftscope.programs.protocol import Bound, OnnxSource
from driftscope.programs.value_trees import flatten

# How many times as far as its kernels are from its float64 run two writings of one quantised graph may be apart.
_TIMES = 2.0


def changes_of(bound: Bound) -> tuple[OnnxSource | None, ChangedNodes | None]:
    """The graph that a runtime made of a program's file and runs, and what in it is not the file's, as far as it shows.

    Raises
    ------
    CannotLift, RuntimeRefused
        If the runtime cannot write what it made, or an input is no tensor.
    """
    made = bound.program.optimized_source(bound)
    if made is None:
        return None, None
    file = bound.program.lift_source(bound)
    return made, changed_nodes(file.model, made.model) if isinstance(file, OnnxSource) else None


def certified_by_node(
    file: SideLift, made: OnnxSource, changes: ChangedNodes, thresholds: Thresholds
) -> Reconciled | None:
    """Hold what an optimiser changed against the file, each change on the file's own values.

    Parameters
    ----------
    file : SideLift
        With the values that ``changes`` asks for.
    made : OnnxSource
        What the optimiser made.
    changes : ChangedNodes
    thresholds : Thresholds

    Returns
    -------
    Reconciled or None
        Its drift is the largest of any value that the optimiser computes in another way. None where one of them is
        not the file's, or is not known: then the graph is looked at as a whole.
    """
    values = file.asked
    if file.graph is None or any(name not in values for name in changes.values):
        return None
    if not all(_holds(decode(tensor, tensor.name, made.directory), values[tensor.name]) for tensor in changes.folded):
        return None
    source, repairs = ReconciledSide(file.graph, file.clean), list[Repair]()

    def run(graph: Lifted) -> list[LiftedOutput]:
        assert isinstance(graph, LiftedOnnx)
        repairs.extend(repairs_before_a_run(source, graph, file.clean, thresholds.constant_ulps))
        return graph.run(replace={r.name: r.value for r in repairs})

    again = attempt(lambda: changes.on(values, made.directory), run) if changes.writes else SideLift()
    computed = [output.value for output in again.clean]
    if len(computed) != len(changes.writes):  # it cannot be lifted, or a value is a sequence
        return None
    apart = [_relative(x, values[n].data, thresholds.lifted) for x, n in zip(computed, changes.writes, strict=True)]
    if None in apart:
        return None
    known = [Ratio(x, f"value {n}", thresholds.lifted) for x, n in zip(apart, changes.writes, strict=True) if x]
    worst = max(known, key=lambda drift: drift.value, default=Ratio(0.0, limit=thresholds.lifted))
    drifts = [worst for _ in file.clean]
    return Reconciled(file.clean, file.clean, file.clean, file.clean, drifts, drifts, repairs_b=repairs)


# Elements smaller than their tensor by this factor are looked at on its scale: they are zero by cancellation. Where
# more than a share of all are smaller by another one, as beside a mask, they have a scale of their own.
_NEGLIGIBLE, _SMALLER, _SHARE = 1e-2, 1e-3, 0.02


def _relative(value: torch.Tensor | None, own: Any, limit: float) -> float | None:
    """How far a value is from the file's, relative; None where an element is further off than the limit."""
    if value is None or not isinstance(own, torch.Tensor) or value.shape != own.shape or value.dtype != own.dtype:
        return None
    if torch.equal(value, own):  # what was only laid out anew
        return 0.0
    if not value.is_floating_point():
        return None
    gap, sizes = (value - own).abs_(), own.abs()
    smallest, largest = map(float, torch.aminmax(sizes))
    if not math.isfinite(largest):
        gap, sizes = gap.masked_fill_(value == own, 0.0), sizes.masked_fill_(torch.isinf(own), 0.0)
    scale = rms(sizes)
    apart, few = rms(gap) / (scale or 1.0), _SHARE * own.numel()
    if largest_magnitude(gap) <= limit * min(
        smallest, largest
    ):  # no element is too far off, on any scale; not so of NaN
        return apart
    while bool((gap <= (sizes + _NEGLIGIBLE * scale).mul_(limit)).all()):  # not so of NaN
        smaller = (sizes > 0.0) & (sizes < _SMALLER * scale)
        if int(smaller.sum()) <= few:
            return apart
        gap, sizes = gap[smaller], sizes[smaller]
        scale = rms(sizes)
    return None


def _holds(stored: Value, own: Value) -> bool:
    """Whether a tensor that the optimiser computed ahead has the bits of what the file computes natively."""
    one, other = stored.data, own.data
    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and same_bits(one, other)


def optimisers_show(bound: Bound, file: Sequence[LiftedOutput], optimised: Sequence[LiftedOutput]) -> bool:
    """Run a program as it is and with nothing optimised; whether the optimised graph is another one by its results.

    Float64 rounds to other integers than the kernels do, and to others again in a graph that is written otherwise: of
    a quantised graph it says nothing where the results have the same bits, or where the two graphs are no further
    apart than the kernels are from the file's float64 run. True where nothing can be run.

    Parameters
    ----------
    bound : Bound
    file, optimised : sequence of LiftedOutput
        The outputs of the file, and of the graph that the runtime made of it, in float64.
    """
    try:
        plain = bound.program.unoptimised()
        results = bound.program(bound), plain(plain.bind(bound.feeds if bound.inputs is None else bound.inputs))
    except (DriftscopeError, RuntimeError, TypeError, ValueError):
        return True
    one, other = ([leaf for _, leaf in flatten(values)[0]] for values in results)
    tensors = all(isinstance(leaf, torch.Tensor) for leaf in (*one, *other))
    if tensors and len(one) == len(other) and all(map(same_bits, one, other)):
        return False
    rounded = max((_apart(native, k.value) for native, k in zip(other, file, strict=False)), default=0.0)
    return (
        max((_apart(k.value, m.value) for k, m in zip(optimised, file, strict=False)), default=0.0) > _TIMES * rounded
    )


def _apart(value: Any, exact: Any) -> float:
    """How far a value is from an exact one, relative to its size."""
    if not isinstance(value, torch.Tensor) or not isinstance(exact, torch.Tensor) or value.shape != exact.shape:
        return 0.0
    held = exact.detach().cpu().to(torch.float64)
    return rms(finite(value.detach().cpu().to(torch.float64) - held)) / (rms(finite(held)) or 1.0)
