"""Capture: one way of exporting a model with dynamic shapes, and what came of it."""

from __future__ import annotations

import contextlib
import io
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram

from driftscope.programs.state.garbage import spared
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.containers import register_containers
from driftscope.shapes.capture.reading import relations_of
from driftscope.shapes.capture.source_lines import raising_line, traced
from driftscope.shapes.capture.spelling import code_of, spec_of
from driftscope.shapes.conditions.relations import Relations, SourceLine
from driftscope.shapes.model_state import ModelState
from driftscope.shapes.private_torch import mark_unbacked, oblivious, transforms_left, unguarded, without_dispatch_cache
from driftscope.shapes.probe.axes import Arguments


@dataclass(frozen=True)
class Capture:
    """An exported program and how it was made.

    Parameters
    ----------
    attempt : Attempt
    arguments : Arguments
        The example it was traced with.
    exported : ExportedProgram
    relations : Relations
        What the trace assumed of sizes.
    seconds : mapping of str to float
        What exporting and reading the relations took.
    rewritten : str
        What was said differently in the model before it was exported; "" for the model as it is.
    """

    attempt: Attempt
    arguments: Arguments
    exported: ExportedProgram
    relations: Relations
    seconds: Mapping[str, float] = field(default_factory=dict)
    rewritten: str = ""

    @property
    def mode(self) -> Mode:
        """How sizes were declared."""
        return self.attempt.mode

    @property
    def spec(self) -> dict[str, Any]:
        """``dynamic_shapes`` for ``torch.export.export``, by parameter."""
        return spec_of(self.arguments, self.attempt)

    @property
    def spec_code(self) -> str:
        """Python to paste: the spec, and an ``export`` function that makes this very program."""
        return code_of(self.arguments, self.attempt, self.relations)

    @cached_property
    def module(self) -> Callable[..., Any]:
        """The program with every check that torch makes at run time."""
        return self.exported.module()

    @cached_property
    def unguarded(self) -> Callable[..., Any]:
        """The program without any check; its answers at sizes it was not traced for may be wrong."""
        return unguarded(self.exported)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An attempt that ``torch.export`` refused.

    Parameters
    ----------
    attempt : Attempt
    kind : str
        Class of the exception.
    words : str
        What torch said, without the trailer about logging.
    line : SourceLine or None
        The model's line that it was raised through.
    """

    attempt: Attempt
    kind: str
    words: str
    line: SourceLine | None = None

    @property
    def first_line(self) -> str:
        """The first line of what torch said."""
        return self.words.splitlines()[0] if self.words else self.kind

    @property
    def without_stack(self) -> str:
        """What torch said, less its advice on logging and its stack, which names the folders of this machine."""
        return _NOTED_BY.sub("", _LOGGING_AND_STACK.sub("", self.words)).strip()


# ... "Caused by: LINE  # FILE:LINE in FUNCTION (the wrapper of driftscope that torch was called through)"
_LOGGING_AND_STACK = re.compile(
    r"\s*^(For more information, run with|For extended logs|User Stack|C\+\+ stack trace|Traceback).*",
    re.DOTALL | re.MULTILINE,
)
_NOTED_BY = re.compile(r" \([^()\n]*driftscope/[^()\n]*:\d+ in \w+\)")


def module_of(model: Callable[..., Any]) -> torch.nn.Module:
    """Return a module that runs a callable; ``torch.export`` takes nothing else."""
    if isinstance(model, torch.nn.Module):
        return model
    made: torch.nn.Module = type("Function", (torch.nn.Module,), {"forward": staticmethod(model)})()
    return made


def capture(model: Callable[..., Any], arguments: Arguments, attempt: Attempt) -> Capture | Refusal:
    """Export a model one way.

    Parameters
    ----------
    model : torch.nn.Module or callable
    arguments : Arguments
        The example.
    attempt : Attempt

    Returns
    -------
    Capture or Refusal
        Whatever torch raises becomes a Refusal.
    """
    try:
        register_containers(arguments)
        started = time.perf_counter()
        # A trace leaves symbols in whatever the model assigns to itself.
        with (
            quietly(),
            spared(),
            transforms_left(),
            without_dispatch_cache(),
            traced() as log,
            ModelState(model).kept(),
        ):
            exported = _export(module_of(model), arguments, attempt)
        traced_at = time.perf_counter()
        relations = relations_of(exported, arguments, log)
        seconds = {"export": traced_at - started, "relations": time.perf_counter() - traced_at}
        return Capture(attempt, arguments, exported, relations, seconds)
    except Exception as error:
        # e.msg, not str(e): the latter carries a trailer about draft_export that is no part of the reason.
        words = getattr(error, "msg", None) or str(error)
        return Refusal(attempt, type(error).__name__, str(words).strip(), raising_line(error))


def _export(module: torch.nn.Module, arguments: Arguments, attempt: Attempt) -> ExportedProgram:
    args, kwargs = arguments.call()
    if attempt.mode is Mode.UNBACKED:
        leaves = [v.clone() if isinstance(v, torch.Tensor) else v for _, v in arguments.leaves]
        for axis, said in zip(arguments.axes, attempt.sizes, strict=True):
            if said is not None and axis.dim is not None:
                mark_unbacked(leaves[axis.leaf], axis.dim)
        args, kwargs = arguments.with_leaves(leaves)
        return torch.export.export(module, args, kwargs, strict=True)
    spec = spec_of(arguments, attempt)
    if attempt.mode is Mode.OBLIVIOUS:
        with oblivious():
            return torch.export.export(module, args, kwargs, dynamic_shapes=spec, strict=False)
    return torch.export.export(module, args, kwargs, dynamic_shapes=spec, strict=False)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep torch's tracebacks, logs and warnings about failed traces off the terminal."""
    import logging

    loggers = [logging.getLogger(name) for name in ("torch", "torch._dynamo", "torch.fx", "torch.export")]
    before = [(log, log.level) for log in loggers]
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for log in loggers:
            log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for log, level in before:
                log.setLevel(level)
