"""What the steps of a program are, told without their values: which operators it has, and who reads what.

Many a question about a program is answered by names alone. The noise run shows every step anyway, so nobody runs the
program again to see that it sorts nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import torch

from driftscope.lift.kept import bare, look, remember, remembered
from driftscope.lift.steps import Kind, Lifted, Observer, Step, plain_name

#: Operators that add and that scale, which an affine map goes on through.
ADD = frozenset({"add", "sub"})
SCALE = frozenset({"mul", "div"})
# In noise another branch may be taken, or a loop left earlier: what such a program shows is known of no other run.
_BRANCHES = frozenset({"if", "loop", "scan"})


@dataclass(slots=True)
class Outline:
    """An observer that keeps the steps of a run; of a value its dtype, in an empty tensor, where it has one."""

    steps: list[Step] = field(default_factory=list)
    branches: bool = False

    def __call__(self, step: Step) -> None:
        """Keep one step without what it holds."""
        self.branches |= step.operator.lower() in _BRANCHES
        made = [v if v is None else _empty(v.dtype) for v in step.outputs]
        # Weights are lifted where somebody asks for them: only for a choice it matters what it is made of.
        chooses = any(v is not None and not v.is_floating_point() for v in made)
        given = [v if v is None else _empty(v.dtype) for v in step.inputs] if chooses else ()
        self.steps.append(
            Step(
                step.index, step.name, step.operator, step.where, step.input_names, step.output_names, given, made,
                step.formats, bare(step.rounding), step.attributes, step.constant, step.traced, step.held,
            )
        )  # fmt: skip


@functools.cache
def _empty(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype)


def remember_outline(graph: Lifted | None, outline: Outline) -> None:
    """Keep the outline of a program for the length of a comparison, where every run has it."""
    if graph is not None and outline.steps and not outline.branches:
        remember(graph, outline)


def tell_steps(graph: Lifted, see: Observer) -> None:
    """Show the steps of a program to somebody who needs no values; it is run only where no outline is known."""
    known = remembered(graph, Outline)
    if known is None:
        look(graph, see)
        return
    for step in known.steps:
        see(step)


def has_step(graph: Lifted, wanted: Callable[[Step], bool]) -> bool:
    """Whether a program may have a step of some kind: also where nobody knows its steps yet."""
    known = remembered(graph, Outline)
    return known is None or any(map(wanted, known.steps))


def has_operator(graph: Lifted, names: Container[str]) -> bool:
    """Whether a program may have an operator of one of these plain names."""
    return has_step(graph, lambda step: plain_name(step.operator) in names)


@dataclass(slots=True)
class Chains:
    """An observer that notes which constants a run reads, and which values an affine map may go on from.

    Parameters
    ----------
    held : set of str
        Names of constants, and of what is computed from them alone.
    """

    held: set[str] = field(default_factory=set)
    _before: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        """Note one step."""
        self.held.update(n for n, held in zip(step.input_names, step.held, strict=False) if held)
        before = tuple(self._followed(step))
        self._before.update((name, before) for name in step.output_names)

    def leading_to(self, value: str) -> frozenset[str]:
        """Return the value, and every value from which a chain of affine steps may lead to it."""
        found, stack = set(), [value]
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack += self._before.get(name, ())
        return frozenset(found)

    def _followed(self, step: Step) -> list[str]:
        """The inputs whose maps a map of the result may go on from (:mod:`driftscope.lift.reconcile.affine`)."""
        operator = plain_name(step.operator)
        values = [name for name in step.input_names if name and name not in self.held]
        if step.rounding.kind is Kind.DOT or operator in SCALE:
            return values if len(values) == 1 else []
        if operator in ADD:
            return values
        if ("batch" in operator and "norm" in operator) or step.rounding.kind is Kind.EXACT:
            return values[:1]
        return []
