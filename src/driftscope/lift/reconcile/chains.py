"""Through which values a chain of affine steps leads, told by names: what lies elsewhere needs no map."""

from __future__ import annotations

from dataclasses import dataclass, field

from driftscope.lift.steps import Kind, Step, plain_name

ADD = frozenset({"add", "sub"})
SCALE = frozenset({"mul", "div"})


def operator_of(step: Step) -> str:
    """The plain name of a step's operator."""
    return plain_name(step.operator)


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
        """The inputs whose maps a map of the step's result may go on from (see :mod:`.affine`)."""
        operator = operator_of(step)
        values = [name for name in step.input_names if name and name not in self.held]
        if step.rounding.kind is Kind.DOT or operator in SCALE:
            return values if len(values) == 1 else []
        if operator in ADD:
            return values
        if ("batch" in operator and "norm" in operator) or step.rounding.kind is Kind.EXACT:
            return values[:1]
        return []
