"""From what torch raised to a suspect: by the last call before it, by its words, and by the code around the place.

The words alone mislead (``math.sqrt(x)`` is called ``.item()``, an in-place write ``output with shape``), so the call
that was being made decides first, its place in the syntax tree second, the words last.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import torch

from driftscope.records.user_code import is_users
from driftscope.transforms.diagnose import syntax
from driftscope.transforms.examination import Examination, Question
from driftscope.transforms.subject import Suspicion
from driftscope.transforms.world.places import Place, place_of, raising_place
from driftscope.transforms.world.process_state import process_kept
from driftscope.transforms.world.trace import CONVERSIONS, Event

_DYNAMIC = frozenset(
    ("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount", "one_hot", "repeat_interleave")
)
_COMPARING = frozenset(("allclose", "equal", "is_nonzero"))
_TO_PYTHON = frozenset(
    ("item", "tolist", "numpy", "__array__", "__format__", "__repr__", "__str__", "tensor", "__dlpack__")
)
_AUTOGRAD = frozenset(("requires_grad_", "backward", "grad", "retain_grad", "register_hook", "data", "requires_grad"))
_IDENTITY = frozenset(("data_ptr", "untyped_storage", "storage", "__deepcopy__", "storage_offset", "__reduce_ex__"))
_CHOOSING = frozenset(("if", "while", "assert", "conditional", "for", "and", "comprehension", "range", "any", "all",
          "max",
                       "min", "sorted", "bool", "filter"))  # fmt: skip

# Words that settle the cause whatever was being called. In order.
_WORDS: tuple[tuple[str, str], ...] = (
    (r"randomness|called random operation", "T005"),
    (r"running_mean or running_var|Batch norm got a batched", "T024"),
    (
        r"returns no tensor to differentiate|return only tensors|to return Tensors, got|must only return",
        "T017",
    ),
    (r"tp_iternext", "T002"),
    (r"builtin operator `print`", "T003"),
    (r"mutate a captured Tensor|would mutate", "T007"),
    (r"boolean mask|dynamic shape|differently shaped|stack expects each tensor", "T011"),
    (r"fallback path doesn't work on out=|out=\.\.\. arguments", "T008"),
    (
        r"setup_context|generate_vmap_rule|vmap staticmethod|override the .* staticmethod|custom autograd\.Function",
        "T013",
    ),
    (r"no autograd formula|Trying to backward through|custom operator", "T014"),
)
_LATER_WORDS: tuple[tuple[str, str], ...] = (
    (r"requires_grad_\(\)|autograd\.functional|torch\.autograd\.grad|Tensor\.backward|\.grad_fn|does not require grad"
     r"|requires_grad_?\b.*intermediate|accessing `data`|backward\(\)|trace_autograd_ops", "T012"),
    (r"deepcopy|data pointer|storage|data_ptr|storage_offset", "T022"),
    (r"inplace arithmetic|in-place|inplace|doesn't match the broadcast shape|more elements than", "T006"),
    (r"forward AD|forward-mode|derivative (for|of).*not implemented|batching rule|vmap fallback|not implemented"
     r"|received complex|do not yet support|saved tensor hooks"
     r"|Could not run 'aten::|Expected FakeTensor|higher.order|HigherOrder",
     "T015"),
    (r"numpy|np\.random|random", "T004"),
    (r"data-dependent branching|data-dependent control flow", "T009"),
    (r"data-dependent|Data dependent|\.item\(\)", "T010"),
)  # fmt: skip


def suspect_of(question: Question, examination: Examination) -> Suspicion:
    """Name the cause and the place of a refusal."""
    error = question.lifted.error
    message = str(error)
    compiled = any(level.kind in ("compile", "export") for level in question.levels)
    place = question.lifted.place or _told_place(error) or _backward_place(question, examination)
    event = _raising_event(question.lifted.events)
    if event is not None and event.place is not None:
        place = event.place if place is None or not _inside(place, event.place) else place
    if event is None:
        event = _event_at(place, question.plain.events or examination.loop.events, message)
        if event is not None and event.place is not None and (place is None or event.place.line == place.line):
            place = event.place if place is None or place.column < 0 else place
    if place is None and compiled and (eager := _eagerly(question, examination)) is not None:
        return eager
    if place is None and re.search(r"only return|return only|return Tensors|returns no tensor", message):
        place = _return_place(examination)
    # Eager messages end in lists of dispatch keys, whose names would match anything.
    words = message if compiled else message[:400]
    cause = "T015" if _is_higher_order(place) else _cause(words, event, place, compiled=compiled)
    if cause in ("T099", "T022") and compiled and place is None:
        event = next((e for e in examination.loop.events if e.name == "Tensor.data.__get__"), None)
        cause, place = ("T012", event.place) if event is not None else (cause, None)
        if event is None and (kept := _kept(examination)) is not None:
            return dataclasses.replace(kept, transform=question.name, error=error)
    if compiled and (cause == "T099" or (cause == "T022" and place is None)):
        told, where = _by_the_plain_run(examination, place)
        cause, place = (told, where) if told != "T099" else (cause, place)
    place = _refined(place)
    named = Suspicion(cause, question.name, "refused", place, event.name if event else "", event=event, error=error)
    if cause in ("T006", "T007", "T008"):
        return _written(named, question, examination)
    return named


_HIGHER_ORDER = frozenset(("cond", "while_loop", "scan", "associative_scan", "flex_attention"))


def _is_higher_order(place: Place | None) -> bool:
    """Whether the place is a call of an operator that takes functions: no word of its errors names it."""
    node = syntax.node_at(place) if place is not None else None
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func).split(".")[-1] in _HIGHER_ORDER


def _kept(examination: Examination) -> Suspicion | None:
    """Suspect state that the function keeps a tensor in: a tracer finds its own tensors there and gives up."""
    from driftscope.transforms.diagnose.traces_left import state_drifts, write_place

    state = state_drifts(examination)
    held = next((d for d in state if "tensor" in d.plain + d.lifted or " of " in d.lifted), None)
    if held is None:
        return None
    return Suspicion("T001", "", "refused", write_place(examination, held.root), subject_name=held.root)


def _by_the_plain_run(examination: Examination, place: Place | None) -> tuple[str, Place | None]:
    """Judge a compiler's refusal whose words say nothing by what the plain program does that compilers refuse."""
    from driftscope.transforms.diagnose.traces_left import state_drifts

    state = state_drifts(examination)
    if examination.loop.moved - {"torch"} or any(d.plain.startswith("generator at") for d in state):
        return "T004", place
    if state:
        return "T002", place
    event = next((e for e in examination.loop.events if e.operation in CONVERSIONS), None)
    if event is None:
        return "T099", place
    return _by_call(event, event.operation, event.place) or "T010", event.place


def _eagerly(question: Question, examination: Examination) -> Suspicion | None:
    """Take the compiler out of a composition: what the rest refuses by itself is refused with a place."""
    levels = tuple(level for level in question.levels if level.kind not in ("compile", "export"))
    if not levels:
        return None
    bare = Question(question.name, levels, question.plain, examination.lifted_run(levels))
    return suspect_of(bare, examination) if bare.lifted.error is not None else None


def _inside(outer: Place, inner: Place) -> bool:
    return (outer.file, outer.line) == (inner.file, inner.line)


def _raising_event(events: Sequence[Event]) -> Event | None:
    return next((event for event in reversed(events[-3:]) if event.raised), None)


def _cause(message: str, event: Event | None, place: Place | None, *, compiled: bool) -> str:
    if event is not None and _is_custom(event.name):
        return "T014"
    by_call = _by_call(event, event.operation, place) if event is not None else ""
    # A compiler's words quote its own hints and the calls around; the call at the place says more.
    if compiled and by_call and not re.search(_WORDS[0][0], message):
        return by_call
    for words, code in _WORDS:
        if re.search(words, message):
            return code
    if by_call:
        return by_call
    context = syntax.context_of(place) if place is not None else ""
    if context in _CHOOSING and re.search(r"data.dependent|Could not guard", message, re.IGNORECASE):
        return "T009"
    for words, code in _LATER_WORDS:
        if re.search(words, message, re.IGNORECASE):
            return code
    return "T099"


def _by_call(event: Event, operation: str, place: Place | None) -> str:
    context = syntax.context_of(place) if place is not None else ""
    if operation in ("__get__", "__set__"):
        operation = event.name.split(".")[-2]
    if event.name.endswith("(out=)"):
        return "T008"
    if operation in ("__bool__", "__contains__") or operation in _COMPARING:
        return "T009"
    if operation in ("__int__", "__index__"):
        return "T011" if context == "slice" else "T009" if context in ("range", "for") else "T010"
    if operation == "__getitem__" and context == "slice":
        return "T011"
    if operation in ("__float__", "__complex__"):
        return "T010"
    if operation in _TO_PYTHON:
        return "T010"
    if operation in _AUTOGRAD or event.name.startswith("torch.autograd."):
        return "T012"
    if operation in _IDENTITY:
        return "T022"
    if operation in _DYNAMIC or (operation == "where" and len(event.inputs) == 1):
        return "T011"
    if event.in_place:
        return "T006"
    return ""


def _is_custom(name: str) -> bool:
    """Whether a call goes to an operator registered outside of torch."""
    space = name.split(".")[0]
    if space in ("torch", "Tensor", "aten", "prims", "autograd", "_set_grad_enabled") or "." not in name:
        return False
    return hasattr(torch.ops, space) and space not in ("higher_order", "nn", "linalg", "fft", "special", "functional")


def _written(suspect: Suspicion, question: Question, examination: Examination) -> Suspicion:
    """Tell a write to a tensor made inside the function from one to a tensor from outside, and find its birthplace."""
    event = suspect.event
    birth = birthplace(event, question.lifted.events) if event is not None else None
    name = syntax.written_name(suspect.place)
    cause = suspect.cause
    if _through_batch_norm(suspect.error):
        return dataclasses.replace(suspect, cause="T024")
    if cause == "T006" and birth is None:
        cause = "T007"
    made = birth.place if birth is not None else None
    return Suspicion(cause, suspect.transform, suspect.outcome, suspect.place, suspect.operation, name, made, event,
                   error=suspect.error)  # fmt: skip


def _through_batch_norm(error: BaseException | None) -> bool:
    """Whether an error came out of torch's batch normalisation, which writes its own statistics."""
    traceback = error.__traceback__ if error is not None else None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.endswith("batchnorm.py"):
            return True
        traceback = traceback.tb_next
    return False


def birthplace(event: Event, events: Sequence[Event]) -> Event | None:
    """Return the call that made the memory an in-place call (or ``out=``) writes to; None when it came from outside."""
    if not event.input_ids:
        return None
    wanted = event.input_ids[-1] if event.name.endswith("(out=)") else event.input_ids[0]
    first = None
    for other in events:
        if other is event:
            break
        if wanted in other.output_ids and wanted not in other.input_ids and first is None:
            first = other
        elif wanted in other.input_ids and first is None:
            return None
    return first


def _refined(place: Place | None) -> Place | None:
    """Narrow an ``assert`` to its test: that is the expression that could not be decided."""
    node = syntax.node_at(place) if place is not None else None
    if place is not None and isinstance(node, ast.Assert):
        return syntax.place_of_node(place, node.test)
    return place


def _told_place(error: BaseException | None) -> Place | None:
    """Return the user place that a compiler or exporter tells in its message or keeps in its own stack."""
    stack = getattr(error, "real_stack", None)
    for frame in reversed(list(stack or ())):
        if is_users(frame.filename):
            return _stack_place(frame)
    found = re.findall(r'File "([^"]+)", line (\d+), in', str(error))
    users = [(file, int(line)) for file, line in found if is_users(file)]
    if users:
        return Place(users[-1][0], users[-1][1])
    for linked in (getattr(error, "__cause__", None), getattr(error, "__context__", None)):
        place = raising_place(linked.__traceback__) if linked is not None else None
        if place is not None:
            return place
    return None


def _stack_place(frame: Any) -> Place:
    column = getattr(frame, "colno", None)
    end = getattr(frame, "end_colno", None)
    if column is None or end is None:
        return Place(frame.filename, frame.lineno)
    return Place(frame.filename, frame.lineno, column, frame.end_lineno or frame.lineno, end)


def _event_at(place: Place | None, events: Sequence[Event], message: str) -> Event | None:
    """Return the plain run's call at a place: the conversion or write among several on its line."""
    if place is None:
        return None
    here = [e for e in events if e.place is not None and (e.place.file, e.place.line) == (place.file, place.line)]
    exact = [e for e in here if place.column >= 0 and e.place == place]
    for candidates in (exact, here):
        for event in candidates:
            if _by_call(event, event.operation, event.place) not in ("", "T006") or _is_custom(event.name):
                return event
    return exact[-1] if exact else None


def _backward_place(question: Question, examination: Examination) -> Place | None:
    """Run again in anomaly mode: its warning carries the place of the forward call whose backward failed."""
    if question.lifted.error is None or any(level.kind in ("compile", "export") for level in question.levels):
        return None
    place: Place | None = None

    def listen(message: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal place
        for file, line in re.findall(r'File "([^"]+)", line (\d+), in', str(message)):
            if is_users(file):
                place = Place(file, int(line))

    with process_kept():
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        examination.lifted_run(question.levels, listen=listen)
    return _last_call_at(place, question.lifted.events) if place is not None else _last_place(question)


def _last_call_at(place: Place, events: Sequence[Event]) -> Place:
    here = [e for e in events if e.place and (e.place.file, e.place.line) == (place.file, place.line)]
    # A tensor that could not be read is of a layout without rules: the likeliest of several calls on a line.
    odd = [e for e in here if any(value is None for value in e.outputs)]
    for candidates in (odd, here):
        if len({e.place for e in candidates}) == 1:
            return candidates[0].place or place
    return place


def _last_place(question: Question) -> Place | None:
    """Return the last call of the operator that the error names."""
    named = re.search(r"derivative for '(?:aten::)?_?(\w+?)\d?'|through (?:\w+\.)?(\w+)", str(question.lifted.error))
    wanted = next((group for group in named.groups() if group), "") if named else ""
    matches = [e.place for e in question.lifted.events if wanted and wanted in e.name and e.place is not None]
    return matches[-1] if matches else None


def _return_place(examination: Examination) -> Place | None:
    """Return the last ``return`` of the function: where what vmap cannot batch leaves it."""
    from driftscope.transforms.world.reach import unwrapped

    function = unwrapped(examination.subject.function)
    code = getattr(function, "__code__", None)
    if code is None or not is_users(code.co_filename):
        return None
    near = place_of(code, 0)
    returned = syntax.returned_by(code)
    return syntax.place_of_node(near, returned[-1]) if returned else None
