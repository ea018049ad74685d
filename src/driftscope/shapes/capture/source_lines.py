"""Which line of Python made torch record a condition."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from driftscope.records.user_code import innermost
from driftscope.shapes.conditions.relations import SourceLine
from driftscope.shapes.private_torch import Moved, decomposed_stack, traced_stack, watched

_TORCH = str(Path(torch.__file__).parent)
_STANDARD = str(Path(contextlib.__file__).parent)
_OURS = str(Path(__file__).parents[1])
# Lines of ours that call torch's exporters: everything further out is not the model.
_EXPORTING = (
    str(Path(__file__).with_name("export.py")),
    str(Path(__file__).parents[1] / "probe" / "onnx_conversion.py"),
)
# Between a comparison of sizes in the model and its answer stands nothing but these.
_SYMBOLIC = (
    "torch/__init__.py",
    "torch/_compile.py",
    "torch/_guards.py",
    "torch/_ops.py",
    "torch/_dynamo/eval_frame.py",
    "torch/_library/utils.py",
    "torch/_logging/_internal.py",
    "torch/_prims_common/wrappers.py",
    "torch/_subclasses/fake_tensor.py",
    "torch/fx/experimental/_size_hinting.py",
    "torch/fx/experimental/proxy_tensor.py",
    "torch/fx/experimental/recording.py",
    "torch/fx/experimental/sym_node.py",
    "torch/fx/experimental/symbolic_shapes.py",
    "torch/utils/_python_dispatch.py",
    "torch/utils/_stats.py",
)
_LINE = re.compile(r"(?P<file>[^\s():\"]+\.py):(?P<line>\d+)(?: in (?P<function>\w+))?")
_TRACED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\w+)')


def parse_line(words: str) -> SourceLine | None:
    """Read ``file.py:12 in forward`` or the last frame of a traceback outside torch."""
    found = [SourceLine(m["file"], int(m["line"]), m["function"] or "") for m in _TRACED.finditer(words)]
    # Torch 2.15 writes the place of its own passes from the package on.
    outside = [line for line in found if not line.file.startswith((_TORCH, "torch/"))]
    if outside or found:
        last = (outside or found)[-1]
        return SourceLine(last.file, last.line, last.function, bool(outside))
    match = _LINE.search(words)
    return SourceLine(match["file"], int(match["line"]), match["function"] or "") if match else None


@dataclass(frozen=True, slots=True)
class RunningLines:
    """The line of torch and the line of the user that were running; either may be unknown."""

    torch: SourceLine | None = None
    user: SourceLine | None = None
    asked: bool = False

    @property
    def known(self) -> dict[str, SourceLine]:
        """As fields of a clause."""
        found = {"torch_line": self.torch, "user_line": self.user}
        return {name: line for name, line in found.items() if line is not None}


def running_lines(*, only_asked: bool = False) -> RunningLines:
    """The innermost lines of torch and of the model being exported.

    ``asked`` says that the model's own line compared the sizes: nothing but the arithmetic of symbolic sizes stands
    between it and us. With ``only_asked``, nothing is told where that is not so: torch decides thousands of conditions
    while it traces a model, and walking up its frames for each took a quarter of a check.
    """
    theirs: SourceLine | None = None
    users: SourceLine | None = None
    asked = False
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _EXPORTING:
        file = frame.f_code.co_filename
        if not _is_between(file):
            if only_asked and users is None and file.startswith(_TORCH):
                return RunningLines()
            line = SourceLine(file.removeprefix(_TORCH + "/"), frame.f_lineno, frame.f_code.co_name)
            if file.startswith(_TORCH):
                theirs = theirs or (line if users is None else None)
            elif users is None:
                users, asked = SourceLine(file, line.line, line.function, True), theirs is None
            if not file.startswith(_TORCH) and "site-packages" not in file:
                # A line of the user's own says more than one of an installed library that it called.
                return RunningLines(theirs, SourceLine(file, line.line, line.function, True), asked)
        frame = frame.f_back
    return RunningLines(theirs, users or _read_line() or _decomposed_line(), asked)


def raising_line(error: BaseException) -> SourceLine | None:
    """The model's line that an exception came through: the user's own, else one of a library outside torch."""
    frames = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(error.__traceback__)]
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH) and not _is_between(frame[0])]
    if not outside:
        return None
    own = innermost([file for file, _, _ in outside])
    return SourceLine(*outside[-1 if own is None else own], user=True)


def _read_line() -> SourceLine | None:
    """The model's line that the strict tracer is reading: it runs no frame of the model."""
    with contextlib.suppress(Moved):
        for file, line, function in reversed(traced_stack()):
            if not file.startswith(_TORCH):
                return SourceLine(file, line, function, True)
    return None


def _decomposed_line() -> SourceLine | None:
    """The model's line of the node that is being decomposed: a graph is walked, and no frame of the model runs."""
    with contextlib.suppress(Moved):
        line = parse_line(decomposed_stack())
        return line if line is not None and line.user else None
    return None


@functools.cache
def _is_between(file: str) -> bool:
    """Whether lines of a file say nothing: ours, Python's own, sympy's, torch's arithmetic of symbolic sizes."""
    standard = file.startswith(_STANDARD) and "site-packages" not in file
    library = standard or "/sympy/" in file or "/mpmath/" in file
    return library or file.startswith((_OURS, "<")) or file.endswith(_SYMBOLIC)


@dataclass(frozen=True, slots=True)
class Decision:
    """A condition on sizes that the model's own Python asked for, and the answer it got while tracing.

    Parameters
    ----------
    condition : sympy expression
    answer : bool or number
    line : SourceLine
    """

    condition: Any
    answer: Any
    line: SourceLine


@dataclass(frozen=True)
class TraceLog:
    """What was noted while one model was exported.

    Parameters
    ----------
    lines : dict of int to RunningLines
        Lines behind a guard, by the ``id`` of torch's own note of the place.
    decisions : list of Decision
        In order, repeats included.
    deferred : list of (sympy expression, Lines)
        Conditions that were left to run time where they could not be decided.
    """

    lines: dict[int, RunningLines] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    deferred: list[tuple[Any, RunningLines]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list, repr=False)

    def note_place(self, _: Any, place: Any) -> None:
        """Keep the lines for a place that torch wrote down."""
        self.kept.append(place)  # an id is only worth something while its object lives
        self.lines[id(place)] = running_lines()

    def note_decision(self, arguments: Any, answer: Any) -> None:
        """Keep a condition that the model's own Python asked for."""
        lines = running_lines(only_asked=True)
        if lines.asked and lines.user is not None:
            self.decisions.append(Decision(arguments[0].expr, answer, lines.user))

    def note_deferred(self, arguments: Any, _: Any) -> None:
        """Keep a condition that torch itself wants to hold."""
        self.deferred.append((arguments[0], running_lines()))


@contextlib.contextmanager
def traced() -> Iterator[TraceLog]:
    """While a model is exported, note the user's line for everything the shape environment decides."""
    log = TraceLog()
    with contextlib.ExitStack() as stack:
        # Without these notes the relations are still right; they only lack the user's lines.
        for name, note in (
            ("_get_sloc", log.note_place),
            ("evaluate_sym_node", log.note_decision),
            ("guard_or_defer_runtime_assert", log.note_deferred),
        ):
            with contextlib.suppress(Moved):
                stack.enter_context(watched(name, note))
        yield log
