"""Findings of probing: wrong before lost before what only may go wrong, each with its line, consequence and remedy."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import Any

from driftscope.records.finding import Finding, Where
from driftscope.records.words import all_of, counted
from driftscope.shapes.check import Check
from driftscope.shapes.conditions.expressions import text
from driftscope.shapes.conditions.relations import Clause
from driftscope.shapes.findings.deciding_values import UnmaskedOnly, deciding_mask, unmasked_only
from driftscope.shapes.findings.losses import Group, changed_sizes, groups, needless
from driftscope.shapes.findings.remedies import Remedies, Remedy
from driftscope.shapes.private_torch import output_values
from driftscope.shapes.probe.domain import CRASH, LOST, MORE, RIGHT, WRONG
from driftscope.shapes.probe.original import Original
from driftscope.shapes.probe.runners import is_complex
from driftscope.shapes.targets import AOTI, EXPORTED, ONNX, PLAIN_ONNX, UNGUARDED, plain_capture

_WRONG = {EXPORTED: "S020", ONNX: "S021", AOTI: "S022"}
_LOST = {ONNX: "S025", AOTI: "S025"}
_NAMES = {EXPORTED: "the exported program", ONNX: "the ONNX file", AOTI: "the compiled package",
          UNGUARDED: "the program without its checks"}  # fmt: skip
_SHOWN = 10  # points kept as evidence
_FOLLOWED = 6  # points after which the example is run again


def _unrolled(clause: Clause) -> str:
    """Whether the user's line is a loop over the size that was fixed: a trace holds one copy of its body per turn."""
    line = clause.user_line
    said = linecache.getline(line.file, line.line).strip() if line is not None else ""
    loops = clause.kind == "static" and said.startswith("for ") and said.endswith(":")
    return f", because `{said.removesuffix(':')}` was unrolled for the example's size" if loops else ""


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
        found += self._complex()
        found += self._plain_export()
        found += self._latent()
        found += self._accepts_more(targets)
        return found

    def _groups(self, target: str, outcome: str) -> list[Group]:
        capture = self.check.capture
        if capture is None:
            return []
        relations = self.check.relations(target) or capture.relations
        return groups(self.check.domain, relations, self.example, target, outcome)

    def _wrong(self, group: Group) -> Finding:
        point = group.points[0]
        said = self.check.domain.seen[group.target][point].words
        name = _NAMES[group.target]
        values = deciding_mask(self.check, group.target, group.points)
        remedy = self._remedy_for_values(group) if values else self._remedy_for_wrong(group)
        return self._finding(
            _WRONG[group.target],
            group,
            what=f"{name} is wrong, without an error, at {self._share(group)}, such as {self._at(point)}: {said}",
            why=values or self._why_wrong(group),
            remedy=remedy,
        )

    def _remedy_for_values(self, group: Group) -> Remedy:
        """What to do where a mask decides: only a comparison of values says more."""
        words = "ds.compare on the example says where the values part"
        if group.target != ONNX or self.check.bounds(ONNX) is not None:
            return Remedy(words)
        return Remedy(f"{words}; or run the model instead: report.guard(path, fallback=model)")

    def _remedy_for_wrong(self, group: Group) -> Remedy:
        if group.target == EXPORTED:
            return self.remedies.for_exported(group, right_without_checks=False)
        bounds = self.check.bounds(group.target)
        if group.target != ONNX:
            clause = f"sizes that break {group.clause.text}" if group.clause is not None else "these sizes"
            return Remedy(f"refuse {clause} before the package is called")
        refuses = group.count(self.check.domain, EXPORTED, LOST)
        also = ", as the exported program does" if refuses == len(group.points) else ""
        if bounds is None:
            return Remedy("run the model instead: report.guard(path, fallback=model)", None)
        return Remedy(
            f"call the file through report.guard(path), which refuses these shapes{also}; with fallback=model it runs"
            f" the model there",
            True,
        )

    def _complex(self) -> Iterator[Finding]:
        """Complex results, which an ONNX file returns as pairs of real numbers."""
        capture, seen = self.check.capture, self.check.domain.seen.get(ONNX)
        outputs = [i for i, value in enumerate(output_values(capture.exported)) if is_complex(value)] if capture else []
        if not seen or not outputs:
            return
        right, wrong = (self.check.domain.count(ONNX, outcome) for outcome in (RIGHT, WRONG))
        which = "the result" if len(outputs) == 1 else f"{len(outputs)} results"
        yield Finding(
            "S034",
            f"the ONNX file returns {which} of complex numbers as real ones with one more axis of 2 at the end",
            why="ONNX operators compute with real numbers; the exporter keeps real and imaginary part side by side",
            fix="torch.view_as_complex(output), or call the file through report.guard(path), which does it"
            + (f": the values are then right at {all_of(right, 'shape')} tried" if not wrong else ""),
            evidence={"target": ONNX, "outputs": outputs, "right": right, "wrong": wrong},
            verified=True if right and not wrong else None,
        )

    def _why_wrong(self, group: Group) -> str:
        clause = group.clause
        if clause is None:
            return "nothing that was recorded while the program was made tells these shapes from the others"
        return f"it was made for {text(clause.condition)}, and checks that nowhere"

    def _lost(self, group: Group) -> Finding:
        point = group.points[0]
        free = needless(group, self.check.domain, UNGUARDED)
        right = group.count(self.check.domain, UNGUARDED, RIGHT)
        wrong = group.count(self.check.domain, UNGUARDED, WRONG)
        what = f"the model runs and the exported program refuses at {self._share(group)}, such as {self._at(point)}"
        why = self._why_lost(group, point)
        if free:
            why += "; needless: without its checks the program is right at all of them"
        else:
            why += f"; needed: without its checks it is wrong at {wrong} of them" if wrong else ""
            why += f"; needless at {right} of them" if right and wrong else ""
        unmasked = self._unmasked(group)
        why += f"; at {len(unmasked.points)} of these {unmasked}" if unmasked.points else ""
        remedy = self.remedies.for_exported(group, right_without_checks=free)
        return self._finding("S023" if free else "S024", group, what=what, why=why, remedy=remedy)

    def _unmasked(self, group: Group) -> UnmaskedOnly:
        original = self.check.original
        return unmasked_only(original, group.points) if original is not None else UnmaskedOnly()

    def _why_lost(self, group: Group, point: tuple[int, ...]) -> str:
        if group.clause is None:
            return self._said(group, point)
        if group.clause.enforced:
            return f"it checks {group.clause.text}{_unrolled(group.clause)}"
        return f"it was traced for {text(group.clause.condition)}, and inside {self._said(group, point)}"

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
        relations = self.check.made_under.get(PLAIN_ONNX, plain.relations)
        for group in groups(domain, relations, self.example, PLAIN_ONNX, WRONG):
            point = group.points[0]
            kept = group.count(domain, ONNX, RIGHT)
            what = f"the ONNX file of a plain export (Dim.AUTO) is silently wrong at {self._share(group)}, such as "
            what += f"{self._at(point)}: {domain.seen[PLAIN_ONNX][point].words}"
            whole = kept == len(group.points)
            share = "all" if whole else f"{kept} of {len(group.points)}"
            fix = f"convert .program instead, whose file is right at {share} of these shapes" if kept else ""
            remedy = Remedy(fix, whole or None)
            yield self._finding("S032", group, what=what, why=self._why_latent(group), remedy=remedy, note=True)

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
        return f"it was made for {text(group.clause.condition)}" if group.clause is not None else ""

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
        return f"{count} of {counted(total, 'shape')} tried"

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


def model_changes_itself(original: Original) -> list[Finding]:
    """S033, where the model is another one after a call."""
    changes = original.state.changes
    if not changes:
        return []
    names = [axis.name for axis in original.builder.axes]
    points = list(dict.fromkeys(original.changed_at.values()))[:_FOLLOWED]
    after = {point: told for point in points if (told := original.after(point))}
    point = next(iter(after), points[0] if points else original.example)
    paths = [path for path in changes if original.changed_at.get(path, point) == point] or list(changes)
    shown = "; ".join(f"{path} is {changes[path][0]} before and {changes[path][1]} after" for path in paths[:3])
    sizes = ", ".join(f"{n}={s}" for n, s in changed_sizes(point, original.example, names)[:6])
    where = "a call with its own example" if point == original.example else f"a call with {sizes}"
    return [
        Finding(
            "S033",
            f"the model changes itself: {shown} {where}" + (f"; then {after[point]}" if after else ""),
            why="driftscope put it back after every call, so every shape was tried with the model as it was given;"
            " your own calls follow each other, and an exported program does not change itself",
            fix="keep in a local variable what belongs to one call",
            evidence={"changes": {path: list(both) for path, both in changes.items()}},
            note=not after,
        )
    ]


def where_of(clause: Clause | None) -> Where:
    """The user's line that made torch record a condition."""
    line = clause.user_line if clause is not None else None
    if line is None:
        return Where()
    return Where(file=line.file, line=line.line, expression=linecache.getline(line.file, line.line).strip() or None)
