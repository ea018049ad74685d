"""One program that is right wherever the model is, as far as probing shows, or refuses."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from driftscope.errors import InputError, ProgramError
from driftscope.programs.state.process import state_kept
from driftscope.records.words import counted
from driftscope.shapes.asked_model import AskedModel, asked_model
from driftscope.shapes.capture.candidates import CandidateSearch
from driftscope.shapes.capture.export import Capture
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.covering.dispatching import CoverMember, Dispatcher, Form
from driftscope.shapes.covering.files import like, load_cover, outline_of, save_cover
from driftscope.shapes.covering.search import Choice, CoverEffort, CoverSearch, Option
from driftscope.shapes.covering.serving_members import OnnxMember
from driftscope.shapes.findings.deciding_values import UnmaskedOnly, full_masks, unmasked_only
from driftscope.shapes.findings.rewriting import rewrites
from driftscope.shapes.probe.domain import choose
from driftscope.shapes.probe.exploration import ProbePlan, explore
from driftscope.shapes.probe.judging_runs import Ran, silence
from driftscope.shapes.probe.onnx_conversion import converted, save_model
from driftscope.shapes.probe.runners import Crashes, ExportTarget, OnnxRunner, TorchRunner, scratch_file

#: Points at which programs are judged: where the original runs, and where it refuses.
RUNNING, REFUSED = 300, 80
TARGETS = ("torch", "onnx")


class CoveredProgram(Dispatcher):
    """Called like the model: right wherever the model is, as far as it was probed, or it refuses.

    Attributes
    ----------
    members : tuple of CoverMember
        The programs, each with the conditions under which it answers (``.relation`` in words).
    probed, covered : int
        Shapes at which the model runs that were tried, and those at which a program here answers. Shapes at which it
        runs only while a mask hides nothing are not among them: :attr:`not_counted` says of how many.
    target : str
        ``"torch"`` or ``"onnx"``.
    """

    def __init__(self, form: Form, members: Sequence[CoverMember], outline: Any, about: dict[str, Any]):
        super().__init__(form, members)
        self._outline = outline
        self.probed = int(about["probed"])
        self.covered = int(about["covered"])
        self.target = str(about["target"])
        self.uncovered = tuple(str(words) for words in about.get("uncovered", ()))
        self.not_counted = str(about.get("not_counted", ""))

    def save(self, folder: str | Path) -> Path:
        """Write a folder: one file per program and ``manifest.json``; loads without the model's source.

        Raises
        ------
        InputError
            If the folder cannot be written, or holds something else.
        """
        about = {
            "target": self.target,
            "probed": self.probed,
            "covered": self.covered,
            "uncovered": list(self.uncovered),
            "not_counted": self.not_counted,
        }
        return save_cover(folder, self.form, self.members, self._outline, about)

    @classmethod
    def load(cls, folder: str | Path) -> CoveredProgram:
        """Read what :meth:`save` wrote.

        Containers of classes (caches, dataclasses) among the outputs come back as dicts of their parts.

        Raises
        ------
        RecordError
            If the folder holds no cover, or a damaged one.
        """
        form, members, about = load_cover(folder)
        return cls(form, members, about["outputs"], about)

    def __str__(self) -> str:
        programs = counted(len(self.members), "program")
        gap = self.probed - self.covered
        probed = counted(self.probed, "shape")
        answer = f"refuses {gap} of {probed}" if gap else f"no drift on {probed} tried"
        lines = [f"{programs}, {answer} (probed, not proved)"]
        lines += [f"  {m.origin}: {m.relation}" for m in self.members]
        lines += [f"  not counted: {self.not_counted}"] if self.not_counted else []
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<CoveredProgram of {len(self.members)}, right at {self.covered} of {counted(self.probed, 'shape')} tried>"
        )


@state_kept()
def cover_shapes(
    model: Callable[..., Any],
    inputs: Any,
    *,
    dynamic: Any = "all",
    target: str = "torch",
    effort: CoverEffort | None = None,
) -> CoveredProgram:
    """Make a program that keeps every shape the model runs at.

    One exported program without its guards, behind conditions of its own, where probing shows it right everywhere;
    otherwise the smallest set of programs that was found, and a dispatcher. It never answers what it was seen to get
    wrong: shapes that nothing covers are refused.

    Parameters
    ----------
    model : torch.nn.Module or callable
    inputs : object
        One example (a tuple, a dict, a tensor), or a list of several.
    dynamic : "all", spec as for ``torch.export.export``, or None
        Which sizes may vary.
    target : str
        ``"torch"``, or ``"onnx"`` for ONNX files run by onnxruntime.
    effort : CoverEffort, optional
        Most programs, and seconds for looking for further ones.

    Returns
    -------
    CoveredProgram

    Raises
    ------
    ProgramError
        If the model fails on its own example, or no export of it can be used at all.
    InputError
        If the inputs do not bind.
    """
    if target not in TARGETS:
        raise InputError(f"target={target!r} is not known; give {' or '.join(map(repr, TARGETS))}")
    asked = asked_model(model, inputs, dynamic)
    with silence():
        search = CandidateSearch(model, asked.arguments, asked.wanted)
        captures = _captures(search)
        first = next(captures, None)
        directions = explore(asked.original, asked.wanted.places, [first.relations] if first else [], ProbePlan())
        running, refused = choose(asked.original, RUNNING, REFUSED)
        # A program that reads no mask is right while there is nothing to hide.
        asked.original.masks = full_masks(asked.original)
        unmasked = unmasked_only(asked.original, running)
        looking = CoverSearch(
            asked.original,
            running + refused,
            asked.wanted.places,
            directions,
            MemberRunners(asked, target),
            effort or CoverEffort(),
            search.costs,
            unmasked.points,
        )
        choice = looking.search(itertools.chain([first] if first else [], captures))
    asked.original.state.put_back(thoroughly=True)
    if not choice.options:
        raise ProgramError(
            f"no way of exporting {asked.name} gives a program for {target}; driftscope shapes says what each refuses"
        )
    return covered(asked, choice, target, unmasked)


def _captures(search: CandidateSearch) -> Iterator[Capture]:
    """Captures in the order in which they are likely to suffice; each is made when it is asked for."""
    first = search.automatic().capture
    if first is not None:
        yield first
        if search.costs.dear:
            return
    for made in (search.oblivious, lambda: search.unbacked(first.relations if first is not None else None)):
        capture = made().capture
        if capture is not None:
            yield capture
    for rewrite in rewrites(search.model)[-1:]:
        # Every expression said differently that makes torch fix a size; probing decides what it is worth.
        again = CandidateSearch(rewrite.model, search.arguments, search.wanted)
        for made in (again.automatic, again.oblivious):
            capture = made().capture
            if capture is not None:
                yield dataclasses.replace(capture, rewritten=f"{rewrite.new} instead of {rewrite.old}")


class MemberRunners:
    """Makes what runs a capture without its checks, and remembers what is to be saved of it.

    Parameters
    ----------
    asked : AskedModel
    target : str
        One of :data:`TARGETS`.
    """

    def __init__(self, asked: AskedModel, target: str):
        self.asked = asked
        self.target = target
        self.crashes: Crashes = Counter()

    def __call__(self, capture: Capture) -> tuple[ExportTarget, Relations]:
        """Make a runner; return what its program was made under as well.

        Raises
        ------
        RuntimeRefused
            If the capture cannot be converted or loaded.
        """
        if self.target == "torch":
            return TorchRunner("unguarded", capture.unguarded, self.asked.original), capture.relations
        path, relations = onnx_file(capture)
        return OnnxRunner(path, capture.exported, crashes=self.crashes), relations


def onnx_file(capture: Capture) -> tuple[Path, Relations]:
    """Convert a capture to a file that lives as long as this process; return what it was made under as well.

    Raises
    ------
    RuntimeRefused
        If the exporter refuses.
    """
    path = scratch_file(".onnx")
    made = converted(capture)
    save_model(made.model, path)
    return path, made.relations


def covered(asked: AskedModel, choice: Choice, target: str, unmasked: UnmaskedOnly) -> CoveredProgram:
    """Put the chosen programs behind a dispatcher."""
    form = Form.of(asked.arguments)
    answer = asked.original.answer(asked.original.example)
    value = answer.value if isinstance(answer, Ran) else None
    taken: set[Any] = set()
    members = []
    for option in choice.options:
        fresh = option.covers - taken
        taken |= fresh
        members.append(_member(option, form, like(value), len(fresh)))
    names = [axis.name for axis in asked.arguments.axes]
    shown = [", ".join(f"{n}={s}" for n, s in zip(names, point, strict=True)) for point in choice.uncovered[:20]]
    about = {
        "target": target,
        "probed": len(choice.running),
        "covered": len(choice.running) - len(choice.uncovered),
        "uncovered": shown,
        "not_counted": f"{counted(len(unmasked.points), 'shape')} more: {unmasked}" if unmasked.points else "",
    }
    return CoveredProgram(form, members, outline_of(value), about)


def _member(option: Option, form: Form, rebuild: Callable[[list[Any]], Any], points: int) -> CoverMember:
    capture, runner = option.capture, option.runner
    example = ", ".join(f"{axis.name}={axis.size}" for axis in capture.arguments.axes)
    origin = f"{capture.mode}, traced at {example}" if example else str(capture.mode)
    origin += f", with {capture.rewritten}" if capture.rewritten else ""
    if isinstance(runner, OnnxRunner):
        served = OnnxMember(runner.path, tuple(runner.feeder.places.items()))
        return CoverMember(
            lambda *args, **kwargs: rebuild(served.run(*form.flat(args, kwargs))),
            option.conditions,
            origin,
            points,
            served,
        )
    return CoverMember(capture.unguarded, option.conditions, origin, points, capture.exported)
