"""Arguments at the end of a function's domain, to float64's own rounding: the cosine of two equal vectors, a variance
of equal numbers.

Of a cosine of ``1 - 1e-16`` the arc cosine is 1e-8, of ``1 + 2e-16`` it is NaN: which of them a program gives says
nothing about what it computes. Where an argument lies so near to the end that float64's rounding may have carried it
across, it is taken as the end, in both programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.lift.kept import look
from driftscope.lift.noise.floor import FLOAT64_UNIT, SMALL_UNIT, kernels_of
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.outline import has_operator
from driftscope.lift.steps import Lifted, LiftedOutput, Step, plain_name
from driftscope.records.finding import Where

# Distance to the end of a domain, relative to one or to the largest argument, from which on nothing is looked at.
_NEAR = 1e-6
# Rounding of float64, in multiples of what was measured, that may have carried an argument across.
_ACROSS = 100.0
_RUNS = 2


@dataclass(frozen=True, slots=True)
class _Domain:
    """Where a function of one argument is defined, and what it is there."""

    ends: tuple[float, ...]
    function: Callable[[torch.Tensor], torch.Tensor]
    #: What the ends are off by at least: nothing at zero.
    unit: float = 0.0


_DOMAINS = {
    "acos": _Domain((-1.0, 1.0), torch.acos, FLOAT64_UNIT),
    "asin": _Domain((-1.0, 1.0), torch.asin, FLOAT64_UNIT),
    "atanh": _Domain((-1.0, 1.0), torch.atanh, FLOAT64_UNIT),
    "acosh": _Domain((1.0,), torch.acosh, FLOAT64_UNIT),
    "sqrt": _Domain((0.0,), torch.sqrt),
    "rsqrt": _Domain((0.0,), torch.rsqrt),
    "log": _Domain((0.0,), torch.log),
    "log2": _Domain((0.0,), torch.log2),
    "log10": _Domain((0.0,), torch.log10),
}  # fmt: skip


def domain_of(operator: str) -> _Domain | None:
    """The domain of an operator of one argument that is not defined everywhere."""
    return _DOMAINS.get(plain_name(operator))


@dataclass(frozen=True, slots=True)
class HeldAt:
    """A step some of whose arguments were taken as the end of its domain.

    Parameters
    ----------
    where : Where
    end : float
    count : int
        Arguments that were.
    """

    where: Where
    end: float
    count: int


@dataclass(slots=True)
class AtEnds:
    """An observer that takes arguments within float64's rounding of the end of a domain as that end."""

    reach: Mapping[str, torch.Tensor]
    held: list[HeldAt] = field(default_factory=list)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        domain, given = domain_of(step.operator), _argument(step)
        reach = self.reach.get(step.name)
        if domain is None or given is None or reach is None or reach.shape != given.shape:
            return None
        x = given
        for end in domain.ends:
            near = (x - end).abs() <= reach
            if bool((near & (x != end)).any()):
                where = replace(step.where, node=step.name, operator=step.operator)
                self.held.append(HeldAt(where, end, int(near.sum())))
                x = torch.where(near, torch.full_like(x, end), x)
        return None if x is given else [domain.function(x), *step.outputs[1:]]


def held_at_ends(
    graph: Lifted, constants: Mapping[str, torch.Tensor], seed: int = 0
) -> tuple[list[LiftedOutput], list[HeldAt]] | None:
    """Evaluate a lifted program with arguments at the ends of domains taken as the ends.

    Returns
    -------
    (outputs, held), or None
        None where no argument lies near the end of a domain.
    """
    held = at_ends(graph, constants, seed)
    return (graph.run(observe=held, replace=constants), held.held) if held.reach else None


def at_ends(graph: Lifted, constants: Mapping[str, torch.Tensor], seed: int = 0) -> AtEnds:
    """Measure how far float64's rounding carries the arguments that lie near the end of a domain."""
    if not has_operator(graph, _DOMAINS):
        return AtEnds({})
    watch = _Arguments()
    look(graph, watch, constants)
    reach = {name: torch.zeros_like(x) for name, x in watch.found.items()}
    for run in range(_RUNS if reach else 0):
        noisy = _Arguments()
        injector = NoiseInjector(seed=seed + run, unit=SMALL_UNIT, kernels=kernels_of(graph.kind), watch=noisy.see)
        graph.run(observe=injector, replace=constants)
        for name, x in noisy.all.items():
            if name in reach and reach[name].shape == x.shape:
                gap = ((x - watch.found[name]) * (FLOAT64_UNIT / SMALL_UNIT)).nan_to_num(0.0, 0.0, 0.0)
                reach[name] = torch.hypot(reach[name], gap)
    return AtEnds({name: _ACROSS * size.clamp(min=watch.units[name]) for name, size in reach.items()})


@dataclass(slots=True)
class _Arguments:
    """An observer that keeps the arguments of functions with a domain: those near its ends, and all."""

    found: dict[str, torch.Tensor] = field(default_factory=dict)
    all: dict[str, torch.Tensor] = field(default_factory=dict)
    units: dict[str, float] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        self.see(step)
        domain, x = domain_of(step.operator), self.all.get(step.name)
        if domain is None or x is None or not x.numel():
            return
        size = max(1.0 if domain.unit else 0.0, float(x.abs().nan_to_num(0.0, 0.0, 0.0).max()))
        if size and min(float((x - end).abs().nan_to_num(math.inf).min()) for end in domain.ends) <= _NEAR * size:
            self.found[step.name] = x
            self.units[step.name] = domain.unit

    def see(self, step: Step) -> None:
        given = _argument(step)
        if given is not None and not step.constant and domain_of(step.operator) is not None:
            self.all[step.name] = given.to(torch.float64)


def _argument(step: Step) -> torch.Tensor | None:
    given = step.inputs[0] if len(step.inputs) else None
    return given if given is not None and given.is_floating_point() else None
