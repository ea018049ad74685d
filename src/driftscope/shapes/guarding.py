"""The checks an exporter dropped, put back in front of its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from driftscope.errors import InputError, ProgramError
from driftscope.shapes.cover_files import builder_of
from driftscope.shapes.dispatching import Form, NotCovered
from driftscope.shapes.domain import CRASH, MORE, RIGHT, WRONG, Domain
from driftscope.shapes.expressions import Term, text
from driftscope.shapes.predicates import all_of, compiled
from driftscope.shapes.relations import Relations
from driftscope.shapes.separating import Evidence, separate
from driftscope.shapes.serving_members import OnnxMember


def needed_conditions(relations: Relations, domain: Domain, target: str) -> list[Term] | None:
    """The conditions that keep a target away from every point at which it was wrong or crashed.

    Returns
    -------
    list of Term or None
        None if nothing that was tried does.
    """
    known = {axis.name for axis in relations.axes}
    recorded = [c.condition for c in relations.recorded if c.names <= known]
    wrong = domain.of(target, WRONG, CRASH)
    return separate(recorded, Evidence(relations.axes, domain.of(target, RIGHT), wrong, domain.of(target, MORE)))


class GuardedFile:
    """An ONNX file that refuses what it would get wrong.

    Called with the model's own arguments, or with the file's inputs by name; returns what the model returns (tensors in
    the model's containers).

    Attributes
    ----------
    conditions : tuple of str
        What it checks, for people.
    """

    def __init__(self, member: OnnxMember, form: Form, outline: Any, conditions: Sequence[Term]):
        self._member = member
        self._form = form
        self._rebuild = builder_of(outline)
        self._conditions = tuple(conditions)
        self._holds: Callable[[Mapping[str, int]], bool] = all_of(self._conditions)

    @property
    def conditions(self) -> tuple[str, ...]:
        """What is checked, for people."""
        return tuple(text(term) for term in self._conditions)

    def admits(self, *args: Any, **kwargs: Any) -> bool:
        """Whether these arguments would be run."""
        return self._holds(self._form.sizes(*self._bound(args, kwargs)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._bound(args, kwargs)
        sizes = self._form.sizes(args, kwargs)
        if not self._holds(sizes):
            broken = [text(term) for term in self._conditions if not compiled(term)(sizes)]
            raise NotCovered(f"{self._member.path.name} is wrong where {' and '.join(broken)} does not hold: {sizes}")
        return self._rebuild(self._member.run(*self._form.flat(args, kwargs)))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Accept the file's own input names where they are not the model's."""
        names = dict(self._member.inputs)
        if args or not kwargs or set(kwargs) <= set(self._form.names) or set(kwargs) != set(names):
            return args, kwargs
        if len(self._form.names) != len(self._form.leaves):
            raise InputError("this model's inputs are nested; call the guarded file with the model's own arguments")
        by_place = {place: kwargs[name] for name, place in names.items()}
        return tuple(by_place[i] for i in range(len(self._form.leaves))), {}


def guarded(path: str | Path, form: Form, outline: Any, inputs: Mapping[str, int], conditions: Any) -> GuardedFile:
    """Put conditions before a file.

    Raises
    ------
    ProgramError
        If there is no such file, or no condition is known that keeps it from being wrong.
    """
    file = Path(path)
    if not file.is_file():
        raise ProgramError(f"{file}: no such file")
    if conditions is None:
        raise ProgramError(
            f"{file.name} is wrong at shapes that no condition tried here tells from the right ones; use ds.cover"
        )
    return GuardedFile(OnnxMember(file, tuple(inputs.items())), form, outline, conditions)
