"""The checks an exporter dropped, put back in front of its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.errors import InputError
from driftscope.shapes.conditions.expressions import Term, text
from driftscope.shapes.conditions.minimising import minimised
from driftscope.shapes.conditions.predicates import all_of, compiled
from driftscope.shapes.conditions.relations import clause
from driftscope.shapes.covering.dispatching import Form, NotCovered
from driftscope.shapes.covering.serving_members import OnnxMember
from driftscope.shapes.probe.axes import Axis


@dataclass(frozen=True, slots=True)
class GuardedOnnx:
    """What stands in front of a file.

    Parameters
    ----------
    name : str
        What messages call the file.
    form : Form
        How arguments must be built.
    axes : tuple of Axis
    conditions : tuple of Term or None
        Sizes at which the file answers; None: at none.
    tried : int
        Shapes that the conditions were held against after they had been chosen.
    rebuild : callable
        Puts leaves into the model's containers.
    fallback : callable or None
        Answers where the file may not.
    """

    name: str
    form: Form
    axes: tuple[Axis, ...]
    conditions: tuple[Term, ...] | None
    tried: int
    rebuild: Callable[[list[Any]], Any]
    fallback: Callable[..., Any] | None = None


class GuardedFile:
    """An ONNX file that refuses what it would get wrong, or leaves it to the model.

    Called with the model's own arguments, or with the file's inputs by name; returns what the model returns.

    Attributes
    ----------
    conditions : tuple of str
        What it checks, for people.
    tried : int
        Shapes that the conditions were held against, beside and far from those they were chosen by.
    """

    def __init__(self, member: OnnxMember, guard: GuardedOnnx):
        self._member = member
        self._guard = guard
        self._form = guard.form
        conditions = guard.conditions
        self._holds: Callable[[Mapping[str, int]], bool] = (
            all_of(conditions) if conditions is not None else lambda sizes: False
        )
        self.tried = guard.tried

    @property
    def conditions(self) -> tuple[str, ...]:
        """What is checked, for people: the fewest conditions that say the same."""
        if self._guard.conditions is None:
            return ("no size: the file is never run",)
        shown, _ = minimised([clause("guard", term) for term in self._guard.conditions], self._guard.axes)
        return tuple(one.text for one in shown)

    def admits(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the file would be run on these arguments."""
        return self._holds(self._form.sizes(*self._bound(args, kwargs)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._bound(args, kwargs)
        sizes = self._form.sizes(args, kwargs)
        if not self._holds(sizes):
            if self._guard.fallback is not None:
                return self._guard.fallback(*args, **kwargs)
            broken = [text(term) for term in self._guard.conditions or () if not compiled(term)(sizes)]
            shown = ", ".join(f"{name}={size}" for name, size in list(sizes.items())[:8])
            raise NotCovered(
                f"{self._guard.name} is not known to be right at {shown}, where {' and '.join(broken[:3])} does"
                " not hold; report.guard(path, fallback=model) runs the model there"
            )
        return self.without_checks(*args, **kwargs)

    def without_checks(self, *args: Any, **kwargs: Any) -> Any:
        """Run the file whatever the sizes are, as it would be run without the guard."""
        return self._guard.rebuild(self._member.run(*self._form.flat(*self._bound(args, kwargs))))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Accept the file's own input names where they are not the model's."""
        names = dict(self._member.inputs)
        if args or not kwargs or set(kwargs) <= set(self._form.names) or set(kwargs) != set(names):
            return args, kwargs
        if len(self._form.names) != len(self._form.leaves):
            raise InputError("this model's inputs are nested; call the guarded file with the model's own arguments")
        by_place = {place: kwargs[name] for name, place in names.items()}
        return tuple(by_place[i] for i in range(len(self._form.leaves))), {}
