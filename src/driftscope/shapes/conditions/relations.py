"""Relations between sizes that an exported program was traced under: clauses, and which points they admit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.shapes.conditions.expressions import Size, Term, holds, sizes_in, text
from driftscope.shapes.probe.axes import Axis, AxisClasses


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of Python that made torch record a condition.

    Parameters
    ----------
    file : str
    line : int
    function : str
    user : bool
        Whether it is the user's own code rather than torch's.
    """

    file: str
    line: int
    function: str = ""
    user: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place} in {self.function}" if self.function else place


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition on sizes.

    Parameters
    ----------
    kind : str
        ``"static"``, ``"equal"``, ``"range"``, ``"derived"``, ``"guard"`` or ``"assert"``.
    condition : Term
    text : str
        For people.
    enforced : bool
        Whether ``ExportedProgram.module()`` checks it when it is called.
    torch_line : SourceLine or None
        The line of torch that asked.
    user_line : SourceLine or None
        The line of the user's code that was running.
    place : str
        Where torch recorded it: ``"placeholder"``, ``"range"``, ``"guard"`` or ``"assert"``.
    """

    kind: str
    condition: Term
    text: str
    enforced: bool = True
    torch_line: SourceLine | None = None
    user_line: SourceLine | None = None
    place: str = "guard"

    @property
    def line(self) -> SourceLine | None:
        """The user's line where known, else torch's."""
        return self.user_line or self.torch_line

    @property
    def names(self) -> frozenset[str]:
        """Names of the axes it speaks of."""
        return sizes_in(self.condition)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Relations:
    """Everything an exported program assumes about its sizes.

    Parameters
    ----------
    axes : tuple of Axis
        Columns of points.
    recorded : tuple of Clause
        As torch recorded them, from all four places.
    clauses : tuple of Clause
        The fewest of them that say the same, written for people: equalities as chains first.
    classes : AxisClasses
        Axes that must be equal.
    unread : tuple of str
        Places of torch that could not be read, in words: what stands there is missing here.
    """

    axes: tuple[Axis, ...]
    recorded: tuple[Clause, ...]
    clauses: tuple[Clause, ...]
    classes: AxisClasses
    unread: tuple[str, ...] = ()

    def admits(self, points: np.ndarray) -> np.ndarray:
        """Whether ``ExportedProgram.module()`` lets these sizes pass.

        Parameters
        ----------
        points : ndarray of int64, shape (n, axes)

        Returns
        -------
        ndarray of bool, shape (n,)
        """
        return self._all(points, [c for c in self.recorded if c.enforced])

    def assumed(self, points: np.ndarray) -> np.ndarray:
        """Whether the sizes agree with everything the trace assumed, checked at run time or not; (n,) of bool."""
        return self._all(points, self.recorded)

    def ties(self, points: np.ndarray) -> np.ndarray:
        """Whether the sizes are equal that the trace found to be equal; (n,) of bool."""
        return self._all(points, [c for c in self.recorded if c.kind == "equal"])

    def violated(self, point: Sequence[int]) -> list[Clause]:
        """Clauses (the minimised ones) that a point breaks, enforced ones first."""
        row = np.asarray([point], np.int64)
        broken = [c for c in self.clauses if not self._all(row, [c])[0]]
        if not any(c.enforced for c in broken):
            # Clauses are chosen at sizes from 1 on; at 0 another of those recorded may be the one that refuses.
            broken += [c for c in self.recorded if c.enforced and not self._all(row, [c])[0]]
        return sorted(broken, key=lambda c: not c.enforced)

    def _all(self, points: np.ndarray, clauses: Sequence[Clause]) -> np.ndarray:
        sizes = self.columns(points)
        result = np.ones(len(points), bool)
        for clause in clauses:
            result &= holds(clause.condition, sizes, len(points))
        return result

    def columns(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Sizes by axis name, for :func:`driftscope.shapes.conditions.expressions.evaluate`."""
        return {axis.name: points[:, number] for number, axis in enumerate(self.axes)}

    @property
    def unchecked(self) -> tuple[Clause, ...]:
        """Clauses that were assumed while tracing and that nothing checks at run time."""
        return tuple(c for c in self.clauses if not c.enforced)

    def __iter__(self) -> Iterator[Clause]:
        return iter(self.clauses)

    def __len__(self) -> int:
        return len(self.clauses)

    def __str__(self) -> str:
        lines: dict[str, str] = {}
        for one in self.clauses:
            _, traced, rest = one.text.partition(" traced as ")
            # One line for all sizes that were traced alike.
            key = rest if traced else one.text
            lines[key] = f"{lines[key].partition(traced)[0]}, {one.text}" if traced and key in lines else one.text
        return "\n".join(lines.values()) or "no relation between sizes"


def clause(kind: str, condition: Term, **more: object) -> Clause:
    """Make a clause whose text is its condition."""
    made = Clause(kind, condition, text(condition))
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def size_of(axis: Axis) -> Size:
    """The axis as a term."""
    return Size(axis.name)
