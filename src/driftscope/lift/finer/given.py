"""What a ball rule is given: the step, its inputs' balls, its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import flint
import numpy as np

from driftscope.lift.steps import Step

Balls: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class NoRule(Exception):
    """A step, or this way of calling it, has no ball rule."""


@dataclass(slots=True)
class Given:
    """What a rule sees of a step.

    Parameters
    ----------
    step : Step
    inputs : sequence of ball arrays or None
        None for inputs that are no reals.
    shape : tuple of int
        Of the first output.
    numbers : mapping
        Numbers in force instead of the step's attributes, by their names.
    """

    step: Step
    inputs: Sequence[Balls | None]
    shape: tuple[int, ...]
    numbers: dict[str, float]

    def real(self, position: int) -> Balls:
        """Give an input's balls."""
        value = self.inputs[position] if position < len(self.inputs) else None
        if value is None:
            raise NoRule
        return value

    def attribute(self, *names: str) -> Any:
        """Give the first attribute of these names; None without one."""
        for name in names:
            if f"{self.step.name}.{name}" in self.numbers:
                return self.numbers[f"{self.step.name}.{name}"]
            if name in self.step.attributes:
                return self.step.attributes[name]
        return None

    def integers(self, position: int) -> list[int]:
        """Give an input of integers as they are; none where it is left out."""
        held = self.step.inputs[position] if position < len(self.step.inputs) else None
        return [] if held is None or held.is_floating_point() else [int(v) for v in held.reshape(-1)]

    def other(self, *names: str) -> Any:
        """Give the second operand: an input's balls, or a number of the call."""
        if len(self.inputs) > 1 and self.inputs[1] is not None:
            return self.inputs[1]
        number = self.attribute(*names)
        if number is None or isinstance(number, bool):
            raise NoRule
        return flint.arb(float(number))

    def axes(self, ndim: int) -> tuple[int, ...]:
        """Give the axes of a reduction."""
        found = self.attribute("dim", "axis", "axes")
        if found is None and len(self.step.inputs) > 1 and self.step.inputs[1] is not None:
            held = self.step.inputs[1]
            found = [int(v) for v in held.reshape(-1)] if not held.is_floating_point() else None
        if found is None or found == []:
            return tuple(range(ndim))
        return tuple(int(k) % ndim for k in (found if isinstance(found, list | tuple) else [found]))


def each(function: Callable[..., Any]) -> Callable[..., Any]:
    mapped: Callable[..., Any] = np.frompyfunc(function, 1, 1)
    return mapped
