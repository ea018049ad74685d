"""Each transform of a check judged, and what is suspected of each difference. No edit is tried here.

``check_transforms`` tries edits for what is suspected, and ``ds.vmap``, which is one of them, asks here for the place
of what it refuses: the imports go one way.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch

from driftscope.records.finding import Finding
from driftscope.records.kinds.transform_report import TransformRun
from driftscope.transforms import outcomes
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.diagnose import drifts, module_calls, refusals, slow, tangents, traces_left
from driftscope.transforms.diagnose.wording import finding_of, first_line
from driftscope.transforms.examination import Examination, Question, subject_of
from driftscope.transforms.naming import levels_of
from driftscope.transforms.subject import Subject, Suspicion
from driftscope.transforms.transforming import Level
from driftscope.transforms.world.process_state import process_kept
from driftscope.transforms.world.reach import unwrapped
from driftscope.transforms.world.running import logs_silenced, timed_out

# Seconds that one run may take where nobody says otherwise.
SECONDS = 60.0

#: The transforms of a check, as they were asked for and as they are applied.
Transforms = list[tuple[str, tuple[Level, ...]]]


def investigated(subject: Subject, wanted: Transforms, time_limit: float | None) -> Investigation:
    """Run every transform and judge it; the world is as it was afterwards."""
    with process_kept(), logs_silenced():
        examination = Examination(subject, time_limit)
        try:
            examination.begin()
            found = Investigation(examination, wanted)
            found.fill()
        finally:
            subject.world.rewind()
    return found


def findings_without_repairs(fn: Callable[..., Any], *examples: Any, in_dims: Any, randomness: str) -> list[Finding]:
    """Return what :func:`ds.check_transforms` finds under ``vmap``, with no edit tried.

    ``ds.vmap`` asks here for the place of what it refuses; a repair may be ``ds.vmap`` itself, and would ask again.
    """
    found = investigated(subject_of(fn, examples, in_dims, randomness), [("vmap", levels_of("vmap"))], SECONDS)
    return [finding_of(suspect, found.examination, None) for suspect in found.suspects]


class Investigation:
    """Collects runs and suspects of one check.

    Parameters
    ----------
    examination : Examination
    wanted : list of (str, tuple of Level)
        The transforms as they were asked for.
    """

    def __init__(self, examination: Examination, wanted: Transforms):
        self.examination = examination
        self.wanted = wanted
        self.runs: list[TransformRun] = []
        self.suspects: list[Suspicion] = []

    def fill(self) -> None:
        """Judge every transform, and the function itself."""
        if self.examination.loop.error is not None:
            self.plain_fails()
            return
        for name, levels in self.wanted:
            self.answer(name, levels)
        self.about_the_function()

    def plain_fails(self) -> None:
        """Say once that the function raises, or does not return, without any transform."""
        run = self.examination.loop
        stopped = timed_out(run)
        limit = f"did not return within {self.examination.seconds:g} s" if stopped else ""
        said = limit or f"raises {type(run.error).__name__}: {first_line(run.error)}" if run.error else ""
        reason = f"the function {said} by itself, without any transform" if not stopped else f"the function {said}"
        if not stopped and self.examination.runs_unmapped:
            reason = f"the function {said} on one example of the batch; on the arguments as given it runs"
        cause = "T032" if stopped else "T031"
        for name, _ in self.wanted:
            self.runs.append(TransformRun(name, "plain-refuses", reason, message=said))
            self.suspects.append(Suspicion(cause, name, "", run.place, error=run.error, what=reason))

    def answer(self, name: str, levels: tuple[Level, ...]) -> None:
        """Run one transform, judge it and look for causes."""
        examination = self.examination
        question = examination.question(name, levels)
        outcome, reason = outcomes.judge(question, examination)
        difference = question.difference
        self.runs.append(
            TransformRun(
                name,
                outcome,
                reason,
                message=first_line(question.lifted.error) if question.lifted.error is not None else "",
                path=difference.path if difference is not None and not difference.agrees else None,
                max_abs=difference.max_abs if difference is not None else None,
                max_rel=difference.max_rel if difference is not None else None,
                worst=difference.worst if difference is not None else None,
            )
        )
        main = _main_suspect(question, examination, outcome)
        if main is not None and (main.cause, outcome) != ("T099", "plain-refuses"):
            self.suspects.append(dataclasses.replace(main, outcome=outcome))
        extra = [*traces_left.suspects_left(question, examination), *_drifts_of_speed(question, examination, outcome)]
        self.suspects += [s for s in extra if main is None or not _told(s, main)]

    def about_the_function(self) -> None:
        """Add what concerns the function whatever the transform."""
        examination, first = self.examination, self.wanted[0][0]
        derivatives = [name for name, levels in self.wanted if levels[-1].kind == "derivative"]
        answered = {run.transform: run.outcome for run in self.runs}
        derived = [name for name in derivatives if answered[name] in ("same", "rounding", "wrong")]
        cut = self.cut(derived)
        self.suspects += [dataclasses.replace(cut, transform=name) for name in derived if cut is not None]
        mismatch = module_calls.mismatch_suspect(examination, first)
        notes = [mismatch] if mismatch is not None else []
        for path in examination.subject.world.opaque:
            what = f"`{path}` is a running generator or an open file and cannot be put back to its start"
            notes.append(Suspicion("T033", first, "", None, subject_name=path, what=what))
        if not examination.subject.world.full:
            what = "the function reaches more objects than are looked at; state behind them is not compared"
            notes.append(Suspicion("T033", first, "", None, what=what))
        function = unwrapped(examination.subject.function)
        if not hasattr(function, "__code__"):
            what = f"{getattr(function, '__name__', 'the function')} is built in C"
            notes.append(Suspicion("T034", first, "", None, what=what))
        self.suspects += [*notes, *self.written_arguments(first), *self.changed_outside(first)]

    def cut(self, derived: list[str]) -> Suspicion | None:
        """Return where plain autograd misses a derivative that finite differences see."""
        if not derived or not self.examination.reproducible:
            return None
        plain = self.examination.plain_run((Level("jvp"),), traced=False)
        if plain.error is not None or tangents.agrees_with_quotients(plain, self.examination) is not False:
            return None
        return tangents.cut_of(self.examination, derived[0])

    def changed_outside(self, name: str) -> list[Suspicion]:
        """Note what the plain program changes outside of itself, as a memo it fills, where no transform told of it."""
        told = {suspect.subject_name for suspect in self.suspects}
        found: dict[str, Suspicion] = {}
        for drift in traces_left.state_drifts(self.examination):
            if drift.root in told or re.match(r"torch generator|generator at|cache of", drift.plain):
                continue
            # The longest path says which entry or attribute is new, where others say how many there are.
            if drift.root in found and len(drift.path) <= len(str(found[drift.root].evidence["state"])):
                continue
            place = traces_left.write_place(self.examination, drift.root)
            what = f"the function changes `{drift.root}`, which lives outside of it: {drift.path} is {drift.lifted}"
            evidence = {"state": drift.path, "before": drift.plain, "after": drift.lifted}
            found[drift.root] = Suspicion(
                "T035", name, "", place, subject_name=drift.root, what=what, evidence=evidence
            )
        return list(found.values())

    def written_arguments(self, name: str) -> list[Suspicion]:
        """Note the arguments that the plain program writes to."""
        examination = self.examination
        start = {}
        flat = [argument for one in examination.subject.slices for argument in one]
        for i, argument in enumerate(flat):
            for j, leaf in enumerate(internals.tree_leaves(argument)):
                if isinstance(leaf, torch.Tensor):
                    start[f"argument {i}" + (f" leaf {j}" if j else "")] = leaf
        after = {key: examination.loop.state[key] for key in start if key in examination.loop.state}
        changed = traces_left.drifts({key: start[key] for key in after}, after)
        if not changed:
            return []
        count = max(len(examination.subject.slices[0]), 1)
        index = int(changed[0].path.split()[1]) % count
        place = next((e.place for e in examination.loop.events if e.in_place), None)
        what = f"the function writes to its argument {index}, so the caller's tensor changes"
        return [Suspicion("T035", name, "", place, subject_name=f"argument {index}", what=what)]


def _main_suspect(question: Question, examination: Examination, outcome: str) -> Suspicion | None:
    if outcome == "not-reproducible":
        place = drifts.clock_place(examination)
        return Suspicion("T023", question.name, outcome, place, what="two plain runs from the same start differ")
    if outcome in ("refused", "plain-refuses") and question.lifted.error is not None:
        if timed_out(question.lifted):
            what = f"{question.name} did not return within the time limit, the plain program did"
            return Suspicion("T032", question.name, outcome, question.lifted.place, what=what)
        return refusals.suspect_of(question, examination)
    if outcome == "random":
        return drifts.draw_note(question, examination)
    if outcome == "wrong":
        return drifts.suspect_of(question, examination)
    return None


def _drifts_of_speed(question: Question, examination: Examination, outcome: str) -> list[Suspicion]:
    found = []
    eager = all(level.kind != "compile" and level.kind != "export" for level in question.levels)
    if outcome in ("same", "rounding", "random") and eager and any(level.kind == "map" for level in question.levels):
        found.append(slow.fallback_suspect(question, examination))
    found.append(slow.poisoned_suspect(question, examination))
    return [suspect for suspect in found if suspect is not None]


def _told(suspect: Suspicion, main: Suspicion) -> bool:
    """Whether a further suspect says again what the main one says."""
    return suspect.cause == main.cause and (suspect.place == main.place or suspect.subject_name == main.subject_name)
