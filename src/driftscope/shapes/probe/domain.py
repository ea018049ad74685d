"""The domain of a program: what it does at every point that was tried, next to what the original does there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from driftscope.shapes.probe.exploration import spread
from driftscope.shapes.probe.judging_runs import (
    Answer,
    Crashed,
    NotAsked,
    Ran,
    Refused,
    difference,
    difference_in_form,
    silence,
)
from driftscope.shapes.probe.original import Original, Point
from driftscope.shapes.probe.runners import ExportTarget

RIGHT, LOST, WRONG, CRASH = "right", "lost", "wrong", "crash"
#: The original refuses and the target answers; both refuse; nobody asked.
MORE, INVALID, UNASKED = "accepts-more", "invalid", "not asked"

_CHUNK = 32
#: Targets that draw the same random numbers as the original when its generator is seeded.
_SAME_GENERATOR = ("export", "unguarded", "tried")
#: What one target may take for all points together, in seconds of the original's own time.
_SECONDS = 2.0
_FEWEST = 24


@dataclass(frozen=True, slots=True)
class PointRun:
    """What one target did at one point.

    Parameters
    ----------
    outcome : str
        ``"right"``, ``"lost"`` (the original runs, the target refuses), ``"wrong"`` (it answers something else),
        ``"crash"``, ``"accepts-more"`` (only the target answers), ``"invalid"`` (both refuse) or ``"not asked"``.
    words : str
        What differs, or what was said.
    """

    outcome: str
    words: str = ""


@dataclass
class Domain:
    """Points, and what every target does there.

    Parameters
    ----------
    points : list of Point
        Those at which the original runs come first.
    valid : dict of Point to bool
    refusals : dict of Point to str
        What the original said where it refuses.
    seen : dict of str to dict of Point to PointRun
        By target.
    """

    points: list[Point] = field(default_factory=list)
    valid: dict[Point, bool] = field(default_factory=dict)
    refusals: dict[Point, str] = field(default_factory=dict)
    seen: dict[str, dict[Point, PointRun]] = field(default_factory=dict)

    def of(self, target: str, *outcomes: str) -> list[Point]:
        """Points at which a target did one of these."""
        return [p for p in self.points if self.seen.get(target, {}).get(p, _NOTHING).outcome in outcomes]

    def count(self, target: str, *outcomes: str) -> int:
        """Number of points at which a target did one of these."""
        return len(self.of(target, *outcomes))

    @property
    def running(self) -> list[Point]:
        """Points at which the original runs."""
        return [point for point in self.points if self.valid[point]]


_NOTHING = PointRun(UNASKED)


def choose(original: Original, valid: int, invalid: int) -> tuple[list[Point], list[Point]]:
    """Choose points that differ in kind among all that the original was asked at.

    Returns
    -------
    running, refused : lists of Point
        At most so many, fewer for a slow model, where the original runs, the example first, and where it refuses.
    """
    known = original.known
    example = original.example
    affordable = max(_FEWEST, int(_SECONDS / original.cost))
    valid, invalid = min(valid, affordable), min(invalid, affordable)
    running = spread([p for p, runs in known.items() if runs], valid, example)
    refused = spread([p for p, runs in known.items() if not runs], invalid, example)
    return list(dict.fromkeys([example, *running])), refused


def probe(original: Original, runners: Sequence[ExportTarget], points: Iterable[Point], domain: Domain) -> Domain:
    """Ask every target at every point and note the outcomes in ``domain``.

    Points that a target was asked at already are not asked again.
    """
    wanted = list(dict.fromkeys(points))
    with silence():
        for start in range(0, len(wanted), _CHUNK):
            _probe_chunk(original, runners, wanted[start : start + _CHUNK], domain)
    return domain


def _probe_chunk(original: Original, runners: Sequence[ExportTarget], chunk: list[Point], domain: Domain) -> None:
    references = {point: original.answer(point) for point in chunk}
    for point, answer in references.items():
        if point not in domain.valid:
            domain.points.append(point)
        domain.valid[point] = isinstance(answer, Ran)
        if isinstance(answer, Refused):
            domain.refusals[point] = answer.words
    for runner in runners:
        seen = domain.seen.setdefault(runner.name, {})
        asked = [p for p in chunk if p not in seen]
        answers = runner.answers([original.inputs(point) for point in asked]) if asked else []
        for point, answer in zip(asked, answers, strict=True):
            compare = difference_in_form if original.random and runner.name not in _SAME_GENERATOR else difference
            found = outcome(references[point], answer, compare)
            if found.outcome == WRONG and compare is difference and isinstance(answer, Ran):
                found = PointRun(RIGHT) if original.rounds_as_far(point, answer) else found
            seen[point] = found
        if original.masks and not original.random:
            _ask_hidden(original, runner, [point for point in asked if seen[point].outcome == RIGHT], seen)
    _leave_out_what_does_not_repeat(original, references, domain)


def _ask_hidden(original: Original, runner: ExportTarget, points: Sequence[Point], seen: dict[Point, PointRun]) -> None:
    """Ask again with masks that hide something: a target that reads no mask is right while there is nothing to hide."""
    answers = runner.answers([original.hiding(point, original.masks) for point in points]) if points else []
    for point, answer in zip(points, answers, strict=True):
        reference = original.ask(original.model, *original.hiding(point, original.masks))
        found = outcome(reference, answer)
        if isinstance(reference, Ran) and found.outcome in (WRONG, LOST, CRASH):
            seen[point] = found


def _leave_out_what_does_not_repeat(original: Original, references: dict[Point, Answer], domain: Domain) -> None:
    """Where a target differs, run the original again: some kernels read beyond their inputs instead of refusing."""
    for point, reference in references.items():
        wrong = any(seen.get(point, _NOTHING).outcome == WRONG for seen in domain.seen.values())
        if not wrong or not isinstance(reference, Ran):
            continue
        again = original.answer(point, again=True)
        if not isinstance(again, Ran) or difference(reference.value, again):
            domain.valid[point] = False
            domain.refusals[point] = "the model does not repeat itself at these sizes"
            for seen in domain.seen.values():
                if point in seen:
                    seen[point] = PointRun(INVALID)


def outcome(reference: Answer, other: Answer, compare: Callable[[Any, Ran], str] = difference) -> PointRun:
    """Name what a target did, given what the original did.

    Parameters
    ----------
    reference, other : Answer
    compare : callable
        Says how two answers differ; "" if they do not.
    """
    if isinstance(other, NotAsked):
        return PointRun(UNASKED, "the runtime crashed twice at sizes like these")
    if isinstance(other, Crashed):
        return PointRun(CRASH, other.words)
    if isinstance(reference, Ran):
        if isinstance(other, Refused):
            return PointRun(LOST, other.words)
        words = compare(reference.value, other)
        return PointRun(WRONG, words) if words else PointRun(RIGHT)
    return PointRun(MORE) if isinstance(other, Ran) else PointRun(INVALID)
