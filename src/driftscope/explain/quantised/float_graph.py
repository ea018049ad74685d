"""A torch program that multiplies floats where it multiplies integers, and what it makes of integers that it stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from driftscope.lift.formulas.quantisation import undone
from driftscope.lift.reconcile.sides import RepairedGraph
from driftscope.lift.steps import Constant, Lifted, LiftedOutput, Observer, Origin

# How far a value may be from proportional to what it is computed from, relative: float64's rounding of a few steps.
_LINEAR = 1e-9


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


def float_graph(
    graph: Lifted, exact: Mapping[str, torch.Tensor] | None = None, stored: Mapping[str, torch.Tensor] | None = None
) -> FloatGraph:
    """A program that rounds nothing to integers, what it computes from constants alone included.

    Parameters
    ----------
    graph, exact, stored
        As of :class:`FloatGraph`.
    """
    exact, stored = exact or {}, stored or {}
    rounded, meant = graph.constant_values(), FloatGraph(graph, exact, stored).constant_values()
    moved = {n: v for n, v in meant.items() if n in rounded and not torch.equal(v, rounded[n])}
    tables = {c.name: moved[c.name] for c in graph.constants() if c.origin is Origin.COMPUTED and c.name in moved}
    return FloatGraph(graph, exact, {**stored, **tables})


@dataclass(frozen=True, slots=True)
class Dequantised:
    """What a program makes of stored integers before it uses them.

    Parameters
    ----------
    value, step : torch.Tensor, float64, the shape of the integers
        The numbers they stand for, and by how much one integer more moves each.
    is_zero_point : bool
        Whether each moves several numbers: these are what other integers are counted from.
    """

    value: torch.Tensor
    step: torch.Tensor
    is_zero_point: bool = False


def dequantised_as(graph: Lifted, constant: Constant, plain: Mapping[str, torch.Tensor]) -> Dequantised | None:
    """Measure the scale of every stored integer, whatever the layout of scales; None where it is applied to products.

    Parameters
    ----------
    graph : Lifted
    constant : Constant
        Integers that it stores.
    plain : mapping of str to torch.Tensor
        The constant subgraphs of the program.
    """
    integers = constant.value.detach().cpu().to(torch.float64)
    part = torch.rand(integers.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, some = (
        FloatGraph(graph, {}, {constant.name: integers + move}).constant_values() for move in (torch.ones(()), part)
    )
    found: Dequantised | None = None
    spread = False
    for name, value in plain.items():
        steps = [moved[name] - value for moved in (one, some) if name in moved and moved[name].shape == value.shape]
        if len(steps) < 2 or not value.dtype.is_floating_point or not bool(steps[0].any()):
            continue
        spread |= value.numel() > integers.numel()
        if value.numel() == integers.numel():
            step, less = (s.reshape(integers.shape) for s in steps)
            # In the order of the integers, and no table that they were moved into.
            if bool(((less - part * step).abs() <= _LINEAR * (step.abs() + value.reshape(step.shape).abs())).all()):
                found = Dequantised(value.reshape(integers.shape), step)
    if found is None or not bool(found.step.all()):
        return None
    return Dequantised(found.value, found.step, is_zero_point=True) if spread else found
