"""Findings of probing: wrong before lost before what only may go wrong, each with its line, consequence and remedy."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from driftscope.records.finding import Finding, Where
from driftscope.shapes.domain import CRASH, LOST, MORE, RIGHT, WRONG
from driftscope.shapes.losses import Group, changed_sizes, groups, needless
from driftscope.shapes.relations import Clause
from driftscope.shapes.remedies import Remedies, Remedy
from driftscope.shapes.targets import AOTI, EXPORTED, ONNX, PLAIN_ONNX, UNGUARDED, plain_capture

if TYPE_CHECKING:
    from driftscope.shapes.checking import Check

_WRONG = {EXPORTED: "S020", ONNX: "S021", AOTI: "S022"}
_LOST = {ONNX: "S025", AOTI: "S025"}
_NAMES = {EXPORTED: "the exported program", ONNX: "the ONNX file", AOTI: "the compiled package",
          UNGUARDED: "the program without its checks"}  # fmt: skip
_SHOWN = 10  # points kept as evidence


class DomainFindings:
    """Makes the findings of one check.

    Parameters
    ----------
    check : Check
    """

    def __init__(self, check: Check):
        self.check = check
        self.remedies = Remedies(check)
        self.names = [axis.name for axis in check.arguments.axes] if check.arguments is not None else []
        self.example = check.original.example if check.original is not None else ()

    def all(self) -> list[Finding]:
        """Every finding: wrong, lost, crashes, then notes."""
        if self.check.capture is None:
            return []
        targets = [name for name in (EXPORTED, ONNX, AOTI) if name in self.check.domain.seen]
        found: list[Finding] = []
        for target in targets:
            found += [self._wrong(group) for group in self._groups(target, WRONG)]
        found += [self._lost(group) for group in self._groups(EXPORTED, LOST)]
        for target in targets[1:]:
            found += [self._lost_elsewhere(group) for group in self._groups(target, LOST)]
        for target in targets:
            found += [self._crash(group) for group in self._groups(target, CRASH)]
        found += self._plain_export()
        found += self._latent()
        found += self._accepts_more(targets)
        return found

    def _groups(self, target: str, outcome: str) -> list[Group]:
        capture = self.check.capture
        if capture is None:
            return []
        return groups(self.check.domain, capture.relations, self.example, target, outcome)

    def _wrong(self, group: Group) -> Finding:
        point = group.points[0]
        said = self.check.domain.seen[group.target][point].words
        name = _NAMES[group.target]
        remedy = self._remedy_for_wrong(group)
        return self._finding(
            _WRONG[group.target],
            group,
            what=f"{name} silently gives something else at {self._share(group)}, such as {self._at(point)}: {said}",
            why=self._why_wrong(group),
            remedy=remedy,
        )

    def _remedy_for_wrong(self, group: Group) -> Remedy:
        if group.target == EXPORTED:
            return self.remedies.for_exported(group, right_without_checks=False)
        refuses = group.count(self.check.domain, EXPORTED, LOST)
        words = "run it through report.guard(path), which refuses what the file would get wrong"
        words += (
            f'; ds.cover(model, inputs, target="{group.target}") keeps these shapes' if group.target == ONNX else ""
        )
        if refuses == len(group.points):
            words += "; the exported program refuses them as well"
        kept_away = self.check.conditions(group.target) is not None
        return Remedy(words, True if kept_away else None)

    def _why_wrong(self, group: Group) -> str:
        clause = group.clause
        if clause is None:
            return "nothing that the trace recorded tells these shapes from the others"
        who = "nothing" if group.target == EXPORTED and not clause.enforced else _NAMES[group.target]
        verb = "checks" if who == "nothing" else "does not check"
        return f"it was traced under: {clause.text}; {who} {verb} that"

    def _lost(self, group: Group) -> Finding:
        point = group.points[0]
        free = needless(group, self.check.domain, UNGUARDED)
        right = group.count(self.check.domain, UNGUARDED, RIGHT)
        wrong = group.count(self.check.domain, UNGUARDED, WRONG)
        what = f"the model runs and the exported program refuses at {self._share(group)}, such as {self._at(point)}"
        why = f"it checks {group.clause.text}" if group.clause is not None else self._said(group, point)
        if free:
            why += "; needless: without its checks the program is right at all of them"
        else:
            why += f"; needed: without its checks it is wrong at {wrong} of them" if wrong else ""
            why += f"; needless at {right} of them" if right and wrong else ""
        remedy = self.remedies.for_exported(group, right_without_checks=free)
        return self._finding("S023" if free else "S024", group, what=what, why=why, remedy=remedy)

    def _said(self, group: Group, point: tuple[int, ...]) -> str:
        return f"it says: {self.check.domain.seen[group.target][point].words}"

    def _lost_elsewhere(self, group: Group) -> Finding:
        point = group.points[0]
        name = _NAMES[group.target]
        itself = self.example in group.points
        what = f"{name} refuses {self._share(group)} at which the model runs, such as {self._at(point)}"
        what += "; the shape it was made with is among them" if itself else ""
        remedy = Remedy('ds.cover(model, inputs, target="onnx") looks for files that run there', None)
        return self._finding(_LOST[group.target], group, what=what, why=self._said(group, point), remedy=remedy)

    def _crash(self, group: Group) -> Finding:
        point = group.points[0]
        what = f"{_NAMES[group.target]} takes its process down at {self._share(group)}, such as {self._at(point)}"
        remedy = Remedy("refuse such sizes before the runtime sees them: report.guard(path) does", None)
        return self._finding("S026", group, what=what, why=self._said(group, point), remedy=remedy)

    def _plain_export(self) -> Iterator[Finding]:
        """What the ONNX file of a plain export would get wrong, where the chosen one is another."""
        plain = plain_capture(self.check)
        if plain is None or not self.check.domain.of(PLAIN_ONNX, WRONG):
            return
        domain = self.check.domain
        for group in groups(domain, plain.relations, self.example, PLAIN_ONNX, WRONG):
            point = group.points[0]
            kept = group.count(domain, ONNX, RIGHT)
            what = f"the ONNX file of a plain export (Dim.AUTO) is silently wrong at {self._share(group)}, such as "
            what += f"{self._at(point)}: {domain.seen[PLAIN_ONNX][point].words}"
            whole = kept == len(group.points)
            fix = f"convert .program instead, whose file is right at {'all' if whole else kept} of these"
            why = f"it was traced under: {group.clause.text}" if group.clause is not None else ""
            yield self._finding("S032", group, what=what, why=why, remedy=Remedy(fix, whole or None), note=True)

    def _latent(self) -> Iterator[Finding]:
        """What the checks keep away, and every conversion that drops them would let through."""
        domain = self.check.domain
        shown = set(domain.of(ONNX, WRONG)) | set(domain.of(EXPORTED, WRONG))
        for group in self._groups(UNGUARDED, WRONG):
            if set(group.points) <= shown:
                continue
            point = group.points[0]
            what = f"only its checks keep the program from {self._share(group)} at which it would be silently wrong, "
            what += f"such as {self._at(point)}: {domain.seen[UNGUARDED][point].words}"
            fix = "keep the checks: torch.export.unflatten, load + run_decompositions and converters drop them"
            yield self._finding("S028", group, what=what, why=self._why_latent(group), remedy=Remedy(fix), note=True)

    def _why_latent(self, group: Group) -> str:
        return f"it was traced under: {group.clause.text}" if group.clause is not None else ""

    def _accepts_more(self, targets: list[str]) -> Iterator[Finding]:
        for target in targets:
            points = self.check.domain.of(target, MORE)
            if points:
                group = Group(target, MORE, tuple(points), None)
                what = f"{_NAMES[target]} answers at {self._share(group)} at which the model itself refuses, such as "
                yield self._finding(
                    "S027", group, what=what + self._at(points[0]), why="", remedy=Remedy(""), note=True
                )

    # --- words ------------------------------------------------------------------------------------------------

    def _share(self, group: Group) -> str:
        probed = len(self.check.domain.seen.get(group.target, {}))
        running = len(self.check.domain.running)
        count = len(group.points)
        total = probed - running if group.outcome == MORE else running
        return f"{count} of {total} probed shapes" if count != 1 else f"1 of {total} probed shapes"

    def _at(self, point: tuple[int, ...]) -> str:
        return ", ".join(f"{name}={size}" for name, size in changed_sizes(point, self.example, self.names)[:6])

    def _finding(self, code: str, group: Group, *, what: str, why: str, remedy: Remedy, note: bool = False) -> Finding:
        shown = [dict(zip(self.names, point, strict=True)) for point in group.points[:_SHOWN]]
        evidence: dict[str, Any] = {
            "target": group.target,
            "shapes": shown,
            "count": len(group.points),
            "consequences": group.consequences(self.check.domain),
        }
        if group.clause is not None:
            evidence["clause"] = group.clause.text
            evidence["asked_by"] = str(group.clause.torch_line or "")
        return Finding(
            code,
            what,
            why=why,
            fix=remedy.words,
            where=where_of(group.clause),
            evidence=evidence,
            note=note,
            verified=remedy.verified if remedy.words else None,
        )


def values_are_random() -> Finding:
    """S029."""
    return Finding(
        "S029",
        "two runs of the model on the same inputs differ",
        why="it draws random numbers; torch was seeded before each run, other runtimes cannot follow its generator",
        fix="call model.eval(), or give the random numbers as inputs; elsewhere only shapes were compared",
        note=True,
    )


def where_of(clause: Clause | None) -> Where:
    """The user's line that made torch record a condition."""
    line = clause.user_line if clause is not None else None
    if line is None:
        return Where()
    return Where(file=line.file, line=line.line, expression=linecache.getline(line.file, line.line).strip() or None)
