"""``check_transforms``: each transform beside the plain program, the differences explained and located."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from driftscope.comparison.thresholds import AGREEMENT
from driftscope.errors import InputError
from driftscope.programs.state.process import state_kept
from driftscope.records.environment import capture
from driftscope.records.finding import Finding
from driftscope.records.kinds.transform_report import TransformFinding, TransformReport, TransformRun
from driftscope.records.user_code import is_users
from driftscope.transforms import outcomes
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.diagnose import drifts, module_calls, refusals, slow, tangents, traces_left
from driftscope.transforms.diagnose.wording import finding_of, first_line
from driftscope.transforms.examination import Examination, Question, subject_of
from driftscope.transforms.naming import levels_of
from driftscope.transforms.subject import Proposal, Subject, Suspect
from driftscope.transforms.transforming import DEFAULT_TRANSFORMS, Level
from driftscope.transforms.world.places import Place, place_of
from driftscope.transforms.world.process_state import process_kept
from driftscope.transforms.world.reach import unwrapped
from driftscope.transforms.world.running import timed_out

# Seconds that one run may take where nobody says otherwise.
SECONDS = 60.0


@state_kept()
def check_transforms(
    fn: Callable[..., Any],
    *examples: Any,
    in_dims: Any = 0,
    randomness: str = "error",
    transforms: Sequence[str] = DEFAULT_TRANSFORMS,
    time_limit: float | None = SECONDS,
) -> TransformReport:
    """Say what function transforms do to a function: the same, rounding, refused, or silently wrong; where and why.

    Parameters
    ----------
    fn : callable
        A function of one example: a plain function, lambda, method, partial or module.
    *examples : tree
        Its arguments with the mapped axis, at least one tensor; three examples are used whatever the batch.
        Derivatives are taken at the first example with respect to the first argument, non-scalar outputs summed.
    in_dims : int, None or tuple
        The mapped axes, as ``torch.vmap`` takes them. Arguments that are no tensors are not mapped.
    randomness : str
        ``"error"``, ``"different"`` or ``"same"``, as ``torch.vmap`` takes it.
    transforms : sequence of str
        Any of vmap, grad, vjp, jvp, jacrev, jacfwd, hessian, linearize, functional_call, compile (backends
        ``compile_eager``, ``compile_aot_eager``, ``compile_inductor``, ``compile_fullgraph``), ``export`` and
        ``export_strict``, with options as ``vmap[chunk_size=1]``, and compositions as ``vmap(grad)``.
    time_limit : float or None
        Seconds that one run may take.

    Returns
    -------
    TransformReport
        ``outcomes`` by transform and ``findings`` with cause, place and fix. The process (generators, flags,
        functorch levels) and everything the function reaches are as they were before.

    Raises
    ------
    InputError
        If the function, the examples, ``in_dims`` or a transform's name cannot be used.
    """
    start = time.perf_counter()
    if isinstance(transforms, str):
        transforms = (transforms,)
    wanted = [(name, levels_of(name)) for name in dict.fromkeys(transforms)]
    if not wanted:
        raise InputError("no transform was asked for; name at least one, as transforms=('vmap', 'grad')")
    report = _examined(subject_of(fn, examples, in_dims, randomness), wanted, time_limit)
    return report.record(fn, time.perf_counter() - start)


def findings_without_repairs(fn: Callable[..., Any], *examples: Any, in_dims: Any, randomness: str) -> list[Finding]:
    """Return what :func:`check_transforms` finds under ``vmap``, with no edit tried.

    ``ds.vmap`` asks here for the place of what it refuses; a repair may be ``ds.vmap`` itself, and would ask again.
    """
    report = _examined(subject_of(fn, examples, in_dims, randomness), [("vmap", levels_of("vmap"))], SECONDS)
    return [finding_of(suspect, report.examination, None) for suspect in report.suspects]


def _examined(subject: Subject, wanted: list[tuple[str, tuple[Level, ...]]], time_limit: float | None) -> _Report:
    with process_kept():
        examination = Examination(subject, time_limit)
        try:
            examination.begin()
            report = _Report(examination, wanted)
            report.fill()
        finally:
            subject.world.rewind()
    return report


class _Report:
    """Collects runs and findings of one check."""

    def __init__(self, examination: Examination, wanted: list[tuple[str, tuple[Level, ...]]]):
        self.examination = examination
        self.wanted = wanted
        self.runs: list[TransformRun] = []
        self.suspects: list[Suspect] = []

    def fill(self) -> None:
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
        cause = "T032" if stopped else "T031"
        for name, _ in self.wanted:
            self.runs.append(TransformRun(name, "plain-refuses", reason, message=said))
            self.suspects.append(Suspect(cause, name, "", run.place, error=run.error, what=reason))

    def answer(self, name: str, levels: tuple[Level, ...]) -> None:
        """Run one transform, judge it and look for causes."""
        examination = self.examination
        question = Question(name, levels, examination.plain_run(levels), examination.lifted_run(levels))
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
            notes.append(Suspect("T033", first, "", None, subject_name=path, what=what))
        if not examination.subject.world.full:
            what = "the function reaches more objects than are looked at; state behind them is not compared"
            notes.append(Suspect("T033", first, "", None, what=what))
        function = unwrapped(examination.subject.function)
        if not hasattr(function, "__code__"):
            what = f"{getattr(function, '__name__', 'the function')} is built in C"
            notes.append(Suspect("T034", first, "", None, what=what))
        self.suspects += [*notes, *self.written_arguments(first)]

    def cut(self, derived: list[str]) -> Suspect | None:
        """Return where plain autograd misses a derivative that finite differences see."""
        if not derived or not self.examination.reproducible:
            return None
        plain = self.examination.plain_run((Level("jvp"),))
        if plain.error is not None or tangents.agrees_with_quotients(plain, self.examination) is not False:
            return None
        return tangents.cut_of(self.examination, derived[0])

    def written_arguments(self, name: str) -> list[Suspect]:
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
        return [Suspect("T035", name, "", place, subject_name=f"argument {index}", what=what)]

    def record(self, fn: Any, seconds: float) -> TransformReport:
        subject = self.examination.subject
        findings = _ordered([finding_of(s, self.examination, _proposal(s, self.examination)) for s in self.suspects])
        return TransformReport(
            function=_title(fn),
            outcomes={run.transform: run.outcome for run in self.runs},
            findings=tuple(findings),
            runs=tuple(self.runs),
            inputs={
                "examples": [_described(argument) for argument in subject.examples],
                "in_dims": [str(dim) for dim in subject.in_dims],
                "randomness": subject.randomness,
                "size": subject.size,
            },
            environment=capture(),
            thresholds={name: [allowed.relative, allowed.of_scale] for name, allowed in AGREEMENT.items()},
            times={"check": seconds},
        )


def _main_suspect(question: Question, examination: Examination, outcome: str) -> Suspect | None:
    if outcome == "not-reproducible":
        place = drifts.clock_place(examination)
        return Suspect("T023", question.name, outcome, place, what="two plain runs from the same start differ")
    if outcome in ("refused", "plain-refuses") and question.lifted.error is not None:
        if timed_out(question.lifted):
            what = f"{question.name} did not return within the time limit, the plain program did"
            return Suspect("T032", question.name, outcome, question.lifted.place, what=what)
        return refusals.suspect_of(question, examination)
    if outcome == "random":
        return drifts.draw_note(question, examination)
    if outcome == "wrong":
        return drifts.suspect_of(question, examination)
    return None


def _drifts_of_speed(question: Question, examination: Examination, outcome: str) -> list[Suspect]:
    found = []
    eager = all(level.kind != "compile" and level.kind != "export" for level in question.levels)
    if outcome in ("same", "rounding", "random") and eager and any(level.kind == "map" for level in question.levels):
        found.append(slow.fallback_suspect(question, examination))
    found.append(slow.poisoned_suspect(question, examination))
    return [suspect for suspect in found if suspect is not None]


def _told(suspect: Suspect, main: Suspect) -> bool:
    """Whether a further suspect says again what the main one says."""
    return suspect.cause == main.cause and (suspect.place == main.place or suspect.subject_name == main.subject_name)


def _proposal(suspect: Suspect, examination: Examination) -> Proposal | None:
    """Ask the room of repairs to try an edit."""
    if suspect.outcome not in ("refused", "wrong"):
        return None
    from driftscope.transforms.repairs.propose import propose

    examination.subject.world.rewind()
    with process_kept():
        found: Proposal | None = propose(examination.subject, suspect)
    examination.subject.world.rewind()
    return found


def _ordered(findings: list[TransformFinding]) -> list[TransformFinding]:
    """Sort by weight and tell each finding which transforms show the same at the same place."""
    sharing: dict[Any, list[str]] = {}
    for finding in findings:
        sharing.setdefault(_shared_by(finding), []).append(finding.transform)

    def shared(finding: TransformFinding) -> tuple[str, ...]:
        all_of = sharing[_shared_by(finding)]
        return (finding.transform, *(t for t in dict.fromkeys(all_of) if t != finding.transform))

    full = [dataclasses.replace(finding, transforms=shared(finding)) for finding in findings]
    full = [f for i, f in enumerate(full) if not any(_says_again(f, earlier) for earlier in full[:i])]
    return sorted(full, key=lambda f: (f.note, f.what.find("refuses") >= 0))


def _shared_by(finding: TransformFinding) -> tuple[Any, ...]:
    return finding.cause, finding.note, finding.where.line, finding.where.column


def _says_again(finding: TransformFinding, earlier: TransformFinding) -> bool:
    """Whether autograd inside the function was told of before: the place and the edit are the same for all."""
    same = finding.cause == earlier.cause == "T012" and finding.where == earlier.where
    return same and (finding.fix, finding.patch, finding.verified) == (earlier.fix, earlier.patch, earlier.verified)


def _title(fn: Any) -> str:
    function = unwrapped(fn)
    name = getattr(fn, "__qualname__", None) or getattr(function, "__qualname__", None) or type(fn).__name__
    code = getattr(function, "__code__", None)
    place: Place | None = place_of(code, 0) if code is not None and is_users(code.co_filename) else None
    return f"{name} ({place})" if place is not None else str(name)


def _described(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return f"{'x'.join(map(str, argument.shape)) or 'scalar'}:{str(argument.dtype).removeprefix('torch.')}"
    return f"{type(argument).__name__} {argument!r:.60}"
