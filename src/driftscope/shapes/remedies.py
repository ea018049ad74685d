"""What mends a loss, tried before it is recommended: another mode, another example, another expression, a cover."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.export import Dim

from driftscope.programs.feeds import Inputs
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.axes import arguments_of
from driftscope.shapes.capture import Capture, capture
from driftscope.shapes.domain import RIGHT, WRONG, Domain, probe
from driftscope.shapes.losses import Group
from driftscope.shapes.original import Original, Point
from driftscope.shapes.rewriting import Rewrite, rewrites
from driftscope.shapes.runners import TorchRunner

if TYPE_CHECKING:
    from driftscope.shapes.checking import Check

#: Points of a group at which a remedy is tried.
_TRIED = 12


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

    def for_exported(self, group: Group, *, right_without_checks: bool) -> Remedy:
        """For shapes that the exported program itself refuses or gets wrong."""
        points = group.points[:_TRIED]
        found = self._mode(points)
        rewritten = self._rewrite(group, points)
        if rewritten is not None:
            found = rewritten if found is None else Remedy(f"{rewritten.words}; or {found.words}", True)
        if found is not None:
            return found
        if right_without_checks:
            return Remedy("ds.cover(model, inputs): these checks are needless, the program alone is right here", True)
        return self._example(points) or Remedy(_TORCH_COND)

    def _mode(self, points: Sequence[Point]) -> Remedy | None:
        for candidate in self.check.candidates:
            made = candidate.capture
            if made is not None and made is not self.check.capture and self._all_right(made, points):
                return Remedy(f"export by {made.mode}, which is right at these", True)
        return None

    def _rewrite(self, group: Group, points: Sequence[Point]) -> Remedy | None:
        """An expression of the model on the guilty line, or anywhere if that line is not known."""
        if self._rewrites is None:
            self._rewrites = rewrites(self.check.model)
        line = group.clause.user_line.line if group.clause is not None and group.clause.user_line else None
        for rewrite in self._rewrites:
            if line is not None and rewrite.line != line:
                continue
            if any(self._all_right(made, points) for made in self._captured(rewrite)):
                return Remedy(f"write {rewrite.new} instead of {rewrite.old} (line {rewrite.line})", True)
        return None

    def _captured(self, rewrite: Rewrite) -> list[Capture]:
        """The rewritten model, exported as the chosen program was and with sizes 0 and 1 traced like any other."""
        if rewrite.old not in self._rewritten:
            made: list[Capture] = []
            chosen = self.check.capture
            if chosen is not None:
                for mode in dict.fromkeys((chosen.mode, Mode.OBLIVIOUS)):
                    attempt = dataclasses.replace(chosen.attempt, mode=mode)
                    result = capture(rewrite.model, chosen.arguments, attempt)
                    made += [result] if isinstance(result, Capture) else []
            self._rewritten[rewrite.old] = made
        return self._rewritten[rewrite.old]

    def _example(self, points: Sequence[Point]) -> Remedy | None:
        """Trace at one of the points."""
        check = self.check
        if check.original is None or check.capture is None:
            return None
        args, kwargs = check.original.inputs(points[0])
        arguments = arguments_of(check.model, Inputs(args=args, kwargs=kwargs))
        sizes = tuple(None if said is None else Dim.AUTO for said in check.capture.attempt.sizes)
        made = capture(check.model, arguments, Attempt(Mode.AUTO, sizes))
        if not isinstance(made, Capture):
            return None
        right, wrong = outcomes_of(made, check.original, points)
        if wrong or not right:
            return None
        shown = ", ".join(
            f"{axis.name}={size}"
            for axis, size in zip(check.original.builder.axes, points[0], strict=True)
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


_TORCH_COND = (
    "write a branch on a size with torch.cond, so that both sides are exported, or refuse such sizes in the caller"
)
