"""What mends a loss, tried before it is recommended: another mode, another example, another expression, a cover."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.export import Dim

from driftscope.programs.feeding.feeds import Inputs
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import Capture, capture
from driftscope.shapes.check import Check
from driftscope.shapes.findings.losses import Group
from driftscope.shapes.findings.rewriting import Rewrite, rewrites
from driftscope.shapes.probe.axes import Arguments, arguments_of
from driftscope.shapes.probe.domain import RIGHT, WRONG, Domain, probe
from driftscope.shapes.probe.original import Original, Point
from driftscope.shapes.probe.runners import TorchRunner

#: Points of a group at which a remedy is tried.
_TRIED = 12
#: Most examples that the model is traced at for all findings together: a trace takes seconds.
_EXAMPLES = 3
_REWRITES, _OTHER_EXAMPLES = "expressions rewritten", "other examples to trace with"


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something to do, and whether it was tried and worked at every point of the group that was tried."""

    words: str
    verified: bool | None = None


class Remedies:
    """Tries remedies for the groups of one check; the same thing is tried once.

    Parameters
    ----------
    check : Check
    """

    def __init__(self, check: Check):
        self.check = check
        self._rewrites: list[Rewrite] | None = None
        self._rewritten: dict[str, list[Capture]] = {}
        self._moved: list[tuple[Point, Capture]] = []
        self._examples = 0

    def for_exported(self, group: Group, *, right_without_checks: bool) -> Remedy:
        """For shapes that the exported program itself refuses or gets wrong."""
        points = group.points[:_TRIED]
        found = self._mode(points)
        rewritten = self._rewrite(group)
        if rewritten is not None:
            found = rewritten if found is None else Remedy(f"{rewritten.words}; or {found.words}", True)
        if found is not None:
            return found
        if right_without_checks:
            return Remedy("ds.cover(model, inputs): these checks are needless, the program alone is right here", True)
        return self._example(points) or Remedy(_TORCH_COND if _branches(group) else _REFUSE)

    def _mode(self, points: Sequence[Point]) -> Remedy | None:
        for candidate in self.check.candidates:
            made = candidate.capture
            if made is not None and made is not self.check.capture and self._all_right(made, points):
                return Remedy(f"export by {made.mode}, which is right at these", True)
        return None

    def _rewrite(self, group: Group) -> Remedy | None:
        """An expression of the model on the guilty line, or anywhere if that line is not known."""
        points = self._alone(group)[:_TRIED]
        if self._rewrites is None:
            self._rewrites = rewrites(self.check.model)
        line = group.clause.user_line.line if group.clause is not None and group.clause.user_line else None
        for rewrite in self._rewrites:
            if line is not None and rewrite.line != line:
                continue
            if any(self._all_right(made, points) for made in self._captured(rewrite)):
                return Remedy(f"write {rewrite.new} instead of {rewrite.old} (line {rewrite.line})", True)
        return None

    def _alone(self, group: Group) -> Sequence[Point]:
        """Points that break no other condition, which one expression cannot mend as well; all where there are none."""
        capture, clause = self.check.capture, group.clause
        if capture is None or clause is None:
            return group.points
        told = {point: {c.text for c in capture.relations.violated(point) if c.enforced} for point in group.points}
        return [point for point, texts in told.items() if texts <= {clause.text}] or group.points

    def _captured(self, rewrite: Rewrite) -> list[Capture]:
        """The rewritten model, exported as the chosen program was and with sizes 0 and 1 traced like any other."""
        if rewrite.old not in self._rewritten:
            made: list[Capture] = []
            chosen, wanted = self.check.capture, self.check.wanted
            if chosen is not None and wanted is not None:
                # What the chosen way fixed is what the rewrite may free.
                sizes = tuple(Dim.AUTO if free else None for free in wanted.free)
                for mode in (Mode.AUTO, Mode.OBLIVIOUS):
                    if self.check.exports.allows(_REWRITES):
                        made += self._exported(rewrite.model, chosen.arguments, Attempt(mode, sizes))
            self._rewritten[rewrite.old] = made
        return self._rewritten[rewrite.old]

    def _example(self, points: Sequence[Point]) -> Remedy | None:
        """Trace at one of the points; first those programs are asked that were traced for other findings."""
        check = self.check
        if check.original is None or check.capture is None:
            return None
        for point, made in self._moved:
            remedy = self._kept_by(made, point, points)
            if remedy is not None:
                return remedy
        if self._examples >= _EXAMPLES or not check.exports.allows(_OTHER_EXAMPLES):
            return None
        self._examples += 1
        args, kwargs = check.original.inputs(points[0])
        arguments = arguments_of(check.model, Inputs(args=args, kwargs=kwargs))
        sizes = tuple(None if said is None else Dim.AUTO for said in check.capture.attempt.sizes)
        for made_here in self._exported(check.model, arguments, Attempt(Mode.AUTO, sizes)):
            self._moved.append((points[0], made_here))
            return self._kept_by(made_here, points[0], points)
        return None

    def _exported(self, model: Callable[..., Any], arguments: Arguments, attempt: Attempt) -> list[Capture]:
        made = self.check.exports.timed(lambda: capture(model, arguments, attempt))
        return [made] if isinstance(made, Capture) else []

    def _kept_by(self, made: Capture, example: Point, points: Sequence[Point]) -> Remedy | None:
        """A program traced at another example, if it is right at some of the points and wrong at none."""
        original = self.check.original
        if original is None:
            return None
        right, wrong = outcomes_of(made, original, points)
        if wrong or not right:
            return None
        shown = ", ".join(
            f"{axis.name}={size}"
            for axis, size in zip(original.builder.axes, example, strict=True)
            if size != axis.size
        )
        share = "these" if right == len(points) else f"{right} of {len(points)} of these"
        return Remedy(f"trace with {shown} as well: that program is right at {share}; ds.cover keeps both", True)

    def _all_right(self, made: Capture, points: Sequence[Point]) -> bool:
        original = self.check.original
        return original is not None and all_right(made, original, points)


def all_right(made: Capture, original: Original, points: Sequence[Point]) -> bool:
    """Whether a program with its checks is right at every point."""
    return outcomes_of(made, original, points)[0] == len(points)


def outcomes_of(made: Capture, original: Original, points: Sequence[Point]) -> tuple[int, int]:
    """At how many points a program with its checks is right, and at how many it is wrong."""
    seen = probe(original, [TorchRunner("tried", made.module, original)], points, Domain())
    return seen.count("tried", RIGHT), seen.count("tried", WRONG)


def _branches(group: Group) -> bool:
    """Whether the user's own line decides something by a size: only a branch can be written with torch.cond."""
    line = group.clause.user_line if group.clause is not None else None
    if line is None:
        return False
    words = linecache.getline(line.file, line.line).split()
    return bool(words) and (words[0] in ("if", "elif", "while") or {"if", "else"} <= set(words))


_REFUSE = "ds.cover(model, inputs) looks for programs that keep these shapes; or refuse them in the caller"
_TORCH_COND = (
    "write a branch on a size with torch.cond, so that both sides are exported, or refuse such sizes in the caller"
)
