"""The first operation whose derivative is wrong or cut, against finite differences of the same operation.

The function is run at ``x + h t`` and at ``x - h t``; the difference quotient of every operation's output is what its
tangent should be. Forward mode's tangents and reverse mode's ``requires_grad`` are read in two further runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from driftscope.lift.torch.entries import UNINITIALISED
from driftscope.transforms import derivatives
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.diagnose import syntax
from driftscope.transforms.examination import Examination, Question
from driftscope.transforms.subject import Suspicion
from driftscope.transforms.world.running import WatchedRun, cloned, run_once
from driftscope.transforms.world.trace import CONVERSIONS, Bounded, Event, Trace, peeled

# Steps of the difference quotient in float64. Two, because a quotient that depends on its step has met a kink, a jump
# or rounding, and then decides nothing.
STEPS = (1e-4, 1e-5)
# Relative disagreement of the two quotients up to which they are believed, and of a tangent from which it is wrong.
BELIEVED = 1e-3
WRONG = 1e-2


@dataclass(frozen=True)
class Slope:
    """What moves at one call.

    Parameters
    ----------
    quotients : tuple of tensor or None
        Per output, the derivative along the probe by finite differences; None where it is not believed.
    talks : bool
        The call's answer to Python (``item()``, ``float()``) changes with the input.
    """

    quotients: tuple[Any, ...]
    talks: bool

    @property
    def moves(self) -> bool:
        """Whether any output, or the answer to Python, depends on the input."""
        return self.talks or any(
            q is not None and float(q.abs().max()) > 1e-9 for q in self.quotients if q is None or q.numel()
        )


@dataclass
class Slopes:
    """Every call of one run with what moves there, and the same of the outputs."""

    events: list[Event]
    slopes: list[Slope]
    outputs: tuple[Any, ...]


def wide(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments in float64, where finite differences have digits."""

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
            return leaf.detach().double()
        return leaf

    found: tuple[Any, ...] = internals.tree_map(widened, arguments)
    return found


def slopes_of(examination: Examination) -> Slopes | None:
    """Run the function at four nearby points and difference every call; None where the runs do not match or fail."""
    arguments = wide(cloned(examination.subject.slices[0]))
    if not derivatives.float_leaves(arguments[:1]):
        return None
    runs = {}
    for step in STEPS:
        for sign in (1.0, -1.0):
            runs[step, sign] = _run_at(examination, arguments, sign * step)
    if any(run.error is not None for run in runs.values()):
        return None
    traces = [[e for e in run.events if not e.question] for run in runs.values()]
    if len({tuple((e.name, e.place) for e in trace) for trace in traces}) != 1:
        return None
    slopes = [_slope(row) for row in zip(*traces, strict=True)]
    outputs = _quotients([tuple(run.value[0]) for run in runs.values()])
    return Slopes(traces[0], slopes, outputs)


def _run_at(examination: Examination, arguments: tuple[Any, ...], distance: float) -> WatchedRun:
    first = internals.tree_map(lambda leaf: _moved(leaf, distance), arguments[0])
    moved = (first, *cloned(arguments[1:]))
    trace = Trace()
    function = derivatives.outputs_of(Bounded(examination.subject.function, trace))
    return run_once(examination.subject.world, [lambda: function(*moved)], trace, seconds=examination.seconds)


def _moved(leaf: Any, distance: float) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf.clone()
    return leaf.detach() + distance * derivatives.probe(leaf)


def _slope(row: tuple[Event, ...]) -> Slope:
    answers = {event.plain_result for event in row}
    talks = len(answers) > 1 and row[0].operation in CONVERSIONS and not row[0].outputs
    return Slope(_quotients([event.outputs for event in row]), talks)


def _quotients(ends: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Difference the outputs at (+a, -a, +b, -b); None where the two steps disagree."""
    found: list[torch.Tensor | None] = []
    for values in zip(*ends, strict=False):
        plain = all(isinstance(v, torch.Tensor) and v.is_floating_point() and v.layout == torch.strided for v in values)
        if not plain or len({v.shape for v in values}) > 1:
            found.append(None)
            continue
        plus, minus, nearer, other = (v.detach().double() for v in values)
        found.append(_believed((plus - minus) / (2 * STEPS[0]), (nearer - other) / (2 * STEPS[1])))
    return tuple(found)


def _believed(coarse: torch.Tensor, fine: torch.Tensor) -> torch.Tensor | None:
    if not coarse.numel():
        return coarse
    scale = float(fine.abs().max())
    if not (coarse - fine).abs().max().item() <= BELIEVED * max(scale, 1e-6):
        return None
    return fine


def _disagree(tangent: torch.Tensor, quotient: torch.Tensor) -> bool:
    if tangent.shape != quotient.shape or not quotient.numel():
        return False
    scale = max(float(quotient.abs().max()), float(tangent.abs().max()), 1e-6)
    return not float((tangent.double() - quotient).abs().max()) <= WRONG * scale


@contextlib.contextmanager
def _dual(first: Any) -> Iterator[Any]:
    with forward_ad.dual_level():

        def make(leaf: Any) -> Any:
            is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            return forward_ad.make_dual(leaf, derivatives.probe(leaf)) if is_float else leaf

        yield internals.tree_map(make, first)


def _tangent(tensor: torch.Tensor) -> tuple[Any, bool]:
    with internals.unseen():
        tangent = forward_ad.unpack_dual(tensor).tangent
        plain = torch.zeros_like(tensor.detach()) if tangent is None else tangent.detach().clone()
        return plain, tangent is not None


def _tracked(tensor: torch.Tensor) -> tuple[Any, bool]:
    return peeled(tensor)[0], tensor.requires_grad


def forward_events(examination: Examination) -> list[Event] | None:
    """Run in forward mode; the outputs of the events are tangents."""
    arguments = cloned(wide(examination.subject.slices[0]))
    trace = Trace(_tangent)

    def call() -> None:
        with _dual(arguments[0]) as first:
            Bounded(examination.subject.function, trace)(first, *arguments[1:])

    run = run_once(examination.subject.world, [call], trace, seconds=examination.seconds)
    return None if run.error is not None else [e for e in run.events if not e.question]


def reverse_events(examination: Examination) -> list[Event] | None:
    """Run with ``requires_grad``; ``mapped_outputs`` of the events says whether an output requires grad."""
    arguments = cloned(wide(examination.subject.slices[0]))
    first = derivatives.watched(arguments[0])[0]
    trace = Trace(_tracked)
    call: Callable[[], Any] = lambda: Bounded(examination.subject.function, trace)(first, *arguments[1:])  # noqa: E731
    run = run_once(examination.subject.world, [call], trace, seconds=examination.seconds)
    return None if run.error is not None else [e for e in run.events if not e.question]


def suspect_of(question: Question, examination: Examination) -> Suspicion | None:
    """Name the first operation whose forward derivative is wrong, or why the two modes differ."""
    dropped = _dropped_slope(question, examination) if examination.traceable else None
    if dropped is not None:
        return dropped
    slopes = slopes_of(examination) if examination.traceable else None
    if slopes is None:
        return _modes_differ(question, examination)
    forward = any(level.name in ("jvp", "jacfwd", "hessian", "linearize") for level in question.levels)
    event = _first_wrong(slopes, forward_events(examination)) if forward else None
    if event is None:
        return _modes_differ(question, examination, slopes)
    from driftscope.transforms.diagnose.refusals import _is_custom

    cause = "T014" if _is_custom(event.name) else "T013" if event.function_place is not None else "T028"
    place = event.function_place or event.place
    return Suspicion(cause, question.name, "wrong", place, event.name, event=event)


def _first_wrong(slopes: Slopes, events: list[Event] | None) -> Event | None:
    if events is None or [e.name for e in events] != [e.name for e in slopes.events]:
        return None
    for event, slope in zip(events, slopes.slopes, strict=True):
        if event.operation in UNINITIALISED or event.operation == "detach":
            continue
        for tangent, quotient in zip(event.outputs, slope.quotients, strict=False):
            if quotient is not None and isinstance(tangent, torch.Tensor) and _disagree(tangent, quotient):
                return event
    return None


# Operators whose derivative is a convention, so that two modes may differ and both be right.
CONVENTIONS = {
    "cholesky": "it reads one triangle of a matrix that it takes to be symmetric",
    "cholesky_ex": "it reads one triangle of a matrix that it takes to be symmetric",
    "eigh": "it reads one triangle of a matrix that it takes to be symmetric",
    "eigvalsh": "it reads one triangle of a matrix that it takes to be symmetric",
    "eig": "eigenvectors are defined up to a phase",
}


def convention(question: Question, examination: Examination) -> str:
    """Return why a difference of the two modes is a convention of an operator, "" when it is none."""
    if not any(event.operation in CONVENTIONS for event in examination.loop.events):
        return ""
    slopes = slopes_of(examination) if examination.traceable else None
    event = _first_wrong(slopes, forward_events(examination)) if slopes is not None else None
    if event is None or event.operation not in CONVENTIONS:
        return ""
    return f"the derivative of {event.name} is a convention: {CONVENTIONS[event.operation]}"


def _modes_differ(question: Question, examination: Examination, slopes: Slopes | None = None) -> Suspicion | None:
    """Forward mode is right where reverse mode is cut on purpose: no_grad, a branch on requires_grad, a hook."""
    plain = question.plain.events or examination.loop.events
    for event in plain:
        asks = "requires_grad" in event.name or "hook" in event.name or event.name == "Tensor.data.__get__"
        if asks and event.place is not None:
            cause = "T012" if event.name == "Tensor.data.__get__" else "T019"
            return Suspicion(cause, question.name, "wrong", event.place, event.name, event=event)
    for event in plain:
        if event.operation == "_set_grad_enabled" or event.place is None:
            continue
        if syntax.no_grad_above(event.place) is not None and not event.question:
            return Suspicion("T019", question.name, "wrong", event.place, event.name, event=event)
    applied = next((e for e in plain if e.function_place is not None), None)
    if applied is not None:
        return Suspicion("T013", question.name, "wrong", applied.function_place, "autograd.Function", event=applied)
    return None if slopes is None else _reverse_rule(question, slopes)


#: Operations that take some of their elements from one tensor and drop those of another.
CHOICES = frozenset({"where", "masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_", "nan_to_num"})


def _dropped_slope(question: Question, examination: Examination) -> Suspicion | None:
    """Suspect a choice that drops a slope which is not finite: reverse mode multiplies it by 0, which gives NaN."""
    if _finite((question.plain.result, question.lifted.result)):
        return None
    broken: dict[int, Event] = {}
    for event in forward_events(examination) or ():
        made = next((broken[i] for i in event.input_ids if i in broken), None)
        if not _finite(event.outputs):
            broken.update(dict.fromkeys(event.output_ids, made or event))
        elif made is not None and event.operation in CHOICES and event.place is not None:
            what = f"{question.name} and plain autograd give NaN at different places: `{event.place.expression}`"
            what += " drops values whose derivative is not finite"
            return Suspicion("T036", question.name, "wrong", event.place, made.name, what=what)
    return None


def _finite(tree: Any) -> bool:
    tensors = [leaf.detach() for leaf in internals.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _reverse_rule(question: Question, slopes: Slopes) -> Suspicion | None:
    """Suspect a rule of torch's reverse mode; its place is known when one operation alone moves."""
    moving = [event for event, slope in zip(slopes.events, slopes.slopes, strict=True) if slope.moves]
    event = moving[-1] if len({e.name for e in moving}) == 1 else None
    place = event.place if event is not None else None
    what = f"{question.name} and plain autograd differ, and the forward tangents agree with finite differences"
    if _finite(question.lifted.result) and not _finite(question.plain.result):
        what = f"plain autograd gives NaN or infinity where {question.name} gives finite values"
    return Suspicion("T028", question.name, "wrong", place, event.name if event else "", event=event, what=what)


def cut_of(examination: Examination, name: str) -> Suspicion | None:
    """Return where the derivative leaves the differentiated tensors though the value depends on the input.

    None when the plain derivative agrees with finite differences, or when these are not believed.
    """
    slopes = slopes_of(examination) if examination.traceable else None
    if slopes is None:
        return None
    events = reverse_events(examination)
    if events is None or [e.name for e in events] != [e.name for e in slopes.events]:
        return None
    pairs = list(zip(events, slopes.slopes, strict=True))
    outside = [(event, slope) for event, slope in pairs if event.function_place is None]
    for event, slope in outside:
        if not slope.moves or event.operation in ("_set_grad_enabled", *UNINITIALISED):
            continue
        cut = slope.talks or (event.outputs and not any(event.mapped_outputs) and _floating(event))
        if cut and not event.in_place:
            return Suspicion("T020", name, "same", event.place, event.name, event=event)
    return None


def _floating(event: Event) -> bool:
    return any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in event.outputs)


def agrees_with_quotients(run: WatchedRun, examination: Examination) -> bool | None:
    """Whether a directional derivative agrees with finite differences; None when these are not believed."""
    leaves = derivatives.float_leaves((examination.subject.slices[0][0], examination.loop.value))
    if any(leaf.is_complex() for leaf in leaves):
        return None
    slopes = slopes_of(examination)
    if slopes is None or not slopes.outputs or any(q is None for q in slopes.outputs):
        return None
    tangents = [x for x in internals.tree_leaves(run.value[0]) if isinstance(x, torch.Tensor)]
    if len(tangents) != len(slopes.outputs):
        return None
    return not any(_disagree(t, q) for t, q in zip(tangents, slopes.outputs, strict=True))
