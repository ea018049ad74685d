"""Which capture to use: every mode is tried and repaired, and ranked by how many shapes it is right at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.export import Dim

from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import Capture, Refusal, capture
from driftscope.shapes.capture.export_costs import ExportCosts
from driftscope.shapes.capture.inference import WantedAxes, dim_name
from driftscope.shapes.capture.repairing import Repaired, repaired
from driftscope.shapes.conditions.expressions import Operation, Term
from driftscope.shapes.conditions.linear import Linear, linear_of
from driftscope.shapes.conditions.relations import Clause, Relations
from driftscope.shapes.probe.axes import Arguments

#: A point at which a program is silently wrong costs as much as this many points that it refuses.
WRONG_COSTS = 3

_ORDER = (Mode.NAMED, Mode.DERIVED, Mode.DYNAMIC, Mode.AUTO, Mode.OBLIVIOUS, Mode.UNBACKED)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a capture does at the probed points at which the model itself runs.

    Parameters
    ----------
    right, lost, wrong : int
    untied : int
        Of those lost or wrong: points at which all sizes are equal that the trace found to be, so that another way of
        tracing, which finds the same equalities, may do better there.
    """

    right: int = 0
    lost: int = 0
    wrong: int = 0
    untied: int = 0

    @property
    def probed(self) -> int:
        """All of them."""
        return self.right + self.lost + self.wrong


@dataclass(frozen=True)
class Candidate:
    """One way of exporting and what it is worth.

    Parameters
    ----------
    name : str
        Where its spec came from: ``"yours"``, ``"from the inputs"``, ``"from the relations"``, or the mode.
    repair : Repaired
    coverage : Coverage or None
        None for what was refused.
    """

    name: str
    repair: Repaired
    coverage: Coverage | None = None

    @property
    def capture(self) -> Capture | None:
        """The program, or None where torch refused to the end."""
        return self.repair.result if isinstance(self.repair.result, Capture) else None

    @property
    def worth(self) -> tuple[int, int]:
        """For ranking: points right, wrong ones counted against it; then the plainer mode."""
        if self.capture is None or self.coverage is None:
            return (-(2**31), 0)
        gained = self.coverage.right - WRONG_COSTS * self.coverage.wrong
        return (gained, -_ORDER.index(self.capture.mode))


class CandidateSearch:
    """Tries ways of exporting one model.

    Parameters
    ----------
    model : torch.nn.Module or callable
    arguments : Arguments
        The example.
    wanted : WantedAxes
        Which axes may vary, and what the user said of them.
    costs : ExportCosts, optional
        What exports of this model took so far; decides whether further ways are tried.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        arguments: Arguments,
        wanted: WantedAxes,
        costs: ExportCosts | None = None,
    ):
        self.model = model
        self.arguments = arguments
        self.wanted = wanted
        self.costs = costs or ExportCosts()
        self._relations: Relations | None = None

    def attempt(self, one: Attempt) -> Capture | Refusal:
        """Export one way."""
        return self.costs.timed(lambda: capture(self.model, self.arguments, one))

    def _repaired(self, first: Attempt) -> Repaired:
        return repaired(first, self.attempt, lambda: self.costs.may_go_on)

    def hinted(self, mode: Mode, hint: Any) -> Attempt:
        """The same hint for every axis that may vary."""
        return Attempt(mode, tuple(hint if free else None for free in self.wanted.free))

    def automatic(self) -> Candidate:
        """Everything left to torch: what it finds is where the other candidates start."""
        return Candidate(Mode.AUTO.value, self._repaired(self.hinted(Mode.AUTO, Dim.AUTO)))

    def oblivious(self) -> Candidate:
        """The same with sizes 0 and 1 traced like any other."""
        return Candidate(Mode.OBLIVIOUS.value, self._repaired(self.hinted(Mode.OBLIVIOUS, Dim.AUTO)))

    def unbacked(self, relations: Relations | None) -> Candidate:
        """Nothing assumed of sizes, but for those that every trace fixed."""
        fixed = fixed_axes(relations) if relations is not None else set()
        # AUTO here only says which axes; it is also what a plain export with this spec accepts.
        sizes = tuple(
            Dim.AUTO if free and axis.name not in fixed and axis.dim is not None else None
            for axis, free in zip(self.wanted.axes, self.wanted.free, strict=True)
        )
        return Candidate(Mode.UNBACKED.value, Repaired(self.attempt(Attempt(Mode.UNBACKED, sizes))))

    def said(self) -> Candidate | None:
        """The user's own spec, repaired; None when the user gave none."""
        if self.wanted.said is None:
            return None
        return Candidate("yours", repaired(Attempt(_mode_of(self.wanted.said), self.wanted.said), self.attempt))

    def inferred(self) -> Candidate | None:
        """What several sets of inputs show, in named Dims; None when there is only one set."""
        if self.wanted.said is not None or not any(len(g) > 1 for g in self.wanted.classes.groups):
            return None
        sizes = named_sizes(self.wanted)
        return Candidate("from the inputs", self._repaired(Attempt(_mode_of(sizes), sizes)))

    def related(self, relations: Relations) -> Candidate | None:
        """Named Dims that say what a trace found; None where it found nothing that names can say."""
        sizes = sizes_from(relations, self.wanted)
        if not any(isinstance(size, Dim) for size in sizes):
            return None
        repair = self._repaired(Attempt(_mode_of(sizes), sizes))
        if isinstance(repair.result, Capture):
            told = with_lines(repair.result.relations, relations)
            repair = dataclasses.replace(repair, result=dataclasses.replace(repair.result, relations=told))
        return Candidate("from the relations", repair)

    def plain(self) -> Iterator[Candidate]:
        """What ``dynamic_shapes`` alone can say: everything left to torch, the user's spec, names."""
        first = self.automatic()
        yield first
        self._relations = first.capture.relations if first.capture is not None else None
        # What the user said is an order, whatever it costs.
        for made in (self.said(), self.inferred()):
            if made is not None:
                yield made
        if self._relations is None or not self.costs.allows("a spec of named Dims"):
            return
        if (made := self.related(self._relations)) is not None:
            yield made

    def further(self) -> Iterator[Candidate]:
        """What needs more than a spec; worth trying where nothing plain is right everywhere."""
        if self.costs.allows(Mode.OBLIVIOUS.value):
            yield self.oblivious()
        if self.costs.allows(Mode.UNBACKED.value):
            yield self.unbacked(self._relations)


def with_lines(relations: Relations, known: Relations) -> Relations:
    """Name the lines of clauses that a trace had no reason to ask for, because the spec said them already.

    An axis that was found to be fixed is declared fixed, and nothing is recorded of it any more.
    """
    lines = {c.text: c for c in (*known.recorded, *known.clauses) if c.line is not None}

    def told(one: Clause) -> Clause:
        found = lines.get(one.text)
        if one.line is not None or found is None:
            return one
        return dataclasses.replace(one, torch_line=found.torch_line, user_line=found.user_line)

    recorded, clauses = tuple(map(told, relations.recorded)), tuple(map(told, relations.clauses))
    return dataclasses.replace(relations, recorded=recorded, clauses=clauses)


def _mode_of(sizes: tuple[Any, ...]) -> Mode:
    """The mode that a mixture of words amounts to: the least that any of them says."""
    if any(hasattr(size, "root") for size in sizes):
        return Mode.DERIVED
    if any(isinstance(size, Dim) for size in sizes):
        return Mode.NAMED
    hints = {size.type.name for size in sizes if size is not None}
    return Mode.DYNAMIC if hints == {"DYNAMIC"} else Mode.AUTO


def fixed_axes(relations: Relations) -> set[str]:
    """Names of axes that a trace fixed to one size."""
    return {name for c in relations.recorded if c.kind == "static" for name in c.names}


def named_sizes(wanted: WantedAxes) -> tuple[Any, ...]:
    """Say in Dims what several sets of inputs showed; a sum of two sizes has no Dim and is left to torch."""
    sizes: list[Any] = [None] * len(wanted.axes)
    dims: dict[str, Any] = {}
    for group in wanted.classes.groups:
        if wanted.free[group[0]] and group[0] not in wanted.derived:
            dim = Dim(dim_name(wanted.axes[group[0]]))
            for place in group:
                dims[wanted.axes[place].name] = sizes[place] = dim
    for place, line in wanted.derived.items():
        sizes[place] = derived_dim(line, dims) or Dim.DYNAMIC
    return tuple(sizes)


def derived_dim(line: Linear, dims: dict[str, Any]) -> Any | None:
    """``2*d + 1`` of a Dim, or None where torch has no such thing (a sum of two Dims, a negative slope)."""
    if len(line.slopes) != 1:
        return None
    ((name, slope),) = line.slopes.items()
    root = dims.get(name)
    if root is None or slope < 1 or hasattr(root, "root"):
        return None
    made = root * slope if slope != 1 else root
    return made + line.offset if line.offset > 0 else made - -line.offset if line.offset else made


def sizes_from(relations: Relations, wanted: WantedAxes) -> tuple[Any, ...]:
    """Say in Dims what a trace found: one name per class, bounds, derived sizes; the rest is left to torch.

    What it fixed is fixed, and axes in conditions that no Dim can say are DYNAMIC.
    """
    axes = wanted.axes
    fixed = fixed_axes(relations)
    sizes: list[Any] = [None] * len(axes)
    bounds, lines, entangled = _sayable(relations)
    entangled |= {name for name, line in lines.items() if {name, *line.slopes} & entangled}
    entangled |= {other for name, line in lines.items() if name in entangled for other in line.slopes}
    dims: dict[str, Any] = {}
    groups = [g for g in relations.classes.groups if all(wanted.free[i] for i in g)]
    groups = [g for g in groups if not {axes[i].name for i in g} & fixed]
    # What is derived comes after what it is derived from.
    for group in sorted(groups, key=lambda g: axes[g[0]].name in lines):
        first = axes[group[0]]
        dim = None
        if first.name in lines and first.name not in entangled:
            dim = derived_dim(lines[first.name], dims)
        elif first.name not in entangled:
            dim = Dim(dim_name(first), **bounds.get(first.name, {}))
        for place in group:
            sizes[place] = dims[axes[place].name] = dim if dim is not None else Dim.DYNAMIC
    return tuple(sizes)


def _sayable(relations: Relations) -> tuple[dict[str, dict[str, int]], dict[str, Linear], set[str]]:
    """Bounds of single sizes, sizes on a line of one other, and the names in all other conditions that are checked."""
    bounds: dict[str, dict[str, int]] = {}
    lines: dict[str, Linear] = {}
    entangled: set[str] = set()
    for one in relations.clauses:
        if one.kind in ("equal", "static") or not one.enforced:
            continue
        bound, line = _bound(one.condition), _on_a_line(one.condition)
        if bound is not None:
            name, word, number = bound
            bounds.setdefault(name, {})[word] = number
        elif line is not None and line[0] not in lines:
            lines[line[0]] = line[1]
        else:
            entangled |= one.names
    return bounds, lines, entangled


def _on_a_line(condition: Term) -> tuple[str, Linear] | None:
    """``b == 2*a + 1`` as ``("b", 2*a + 1)``; None for what is no increasing line of one other size."""
    if not isinstance(condition, Operation) or condition.operator != "==":
        return None
    left, right = linear_of(condition.terms[0]), linear_of(condition.terms[1])
    if left is None or right is None or len(line := left.minus(right).slopes) != 2:
        return None
    offset = left.minus(right).offset
    for name, slope in reversed(tuple(line.items())):
        other = next(n for n in line if n != name)
        if abs(slope) == 1 and -line[other] * slope >= 1:
            return name, Linear({other: -line[other] * slope}, -offset * slope)
    return None


def _bound(condition: Term) -> tuple[str, str, int] | None:
    """``2*x.shape[0] + 1 <= 9`` as ``(name, "max", 4)``."""
    if not isinstance(condition, Operation) or condition.operator not in ("<=", ">="):
        return None
    left, right = linear_of(condition.terms[0]), linear_of(condition.terms[1])
    if left is None or right is None or len(left.minus(right).slopes) != 1:
        return None
    line = left.minus(right)
    ((name, slope),) = line.slopes.items()
    if (slope > 0) == (condition.operator == "<="):
        return name, "max", -line.offset // slope if slope > 0 else line.offset // -slope
    return name, "min", -(line.offset // slope) if slope > 0 else -(-line.offset // -slope)
