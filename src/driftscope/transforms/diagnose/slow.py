"""Drift of speed: operators that vmap runs example by example, and compiled functions that stay eager."""

from __future__ import annotations

import re
from typing import Any

import torch

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.examination import Examination, Question
from driftscope.transforms.subject import Suspicion


def fallback_suspect(question: Question, examination: Examination) -> Suspicion | None:
    """Run ``vmap`` again with the fallback switched off: what is refused now ran as a loop inside one operator."""
    kept = internals.fallback_enabled()
    internals.set_fallback_enabled(False)
    try:
        run = examination.lifted_run(question.levels)
    finally:
        internals.set_fallback_enabled(kept)
    message = str(run.error) if run.error is not None else ""
    if "fallback" not in message:
        return None
    named = re.search(r"(aten::[\w.]+|\w+::[\w.]+)", message)
    event = next((e for e in reversed(run.events) if e.raised), None)
    operation = event.name if event is not None else named.group(1) if named else "an operator"
    place = run.place or (event.place if event is not None else None)
    what = f"{operation} runs example by example under {question.name}"
    return Suspicion("T016", question.name, question.name, place, operation, event=event, what=what)


def compiled_inside(function: Any) -> Any:
    """Return the function under ``torch.compile``, or None when it is not compiled."""
    return getattr(function, "_torchdynamo_orig_callable", None) or getattr(function, "_orig_mod", None)


def poisoned_suspect(question: Question, examination: Examination) -> Suspicion | None:
    """Suspect a compiled function that would stay eager after a first call under this transform.

    Counts how often a compiler backend is asked: by a plain call on its own, and by a plain call after the transform.
    """
    names = [level.name for level in question.levels]
    inner = compiled_inside(examination.subject.function)
    if inner is None and "compile" not in names[1:]:
        return None
    function = inner if inner is not None else examination.subject.function
    alone = _compilations(function, examination, question, transform_first=False)
    after = _compilations(function, examination, question, transform_first=True)
    if not alone or after:
        return None
    what = (
        f"called first under {question.name}, the compiled function is never compiled, not by later plain calls either"
    )
    return Suspicion(
        "T029", question.name, "", None, "torch.compile", what=what, evidence={"plain first": alone, "after": after}
    )


def _compilations(function: Any, examination: Examination, question: Question, *, transform_first: bool) -> int:
    """Count the graphs that a backend is given."""
    from driftscope.transforms.transforming import arguments_for, lift
    from driftscope.transforms.world.running import cloned

    counted = 0

    def backend(graph: Any, example_inputs: Any) -> Any:
        nonlocal counted
        counted += 1
        return graph.forward

    internals.forget_compiled()
    compiled: Any = torch.compile(function, backend=backend)
    levels = tuple(level for level in question.levels if level.name != "compile")
    subject = examination.subject
    subject.world.rewind()
    try:
        if transform_first and levels:
            for call in arguments_for(levels, subject.examples, examination.setting):
                lift(compiled, levels, examination.setting)(*cloned(call))
        compiled(*cloned(subject.slices[0]))
    except (RuntimeError, TypeError, ValueError):
        counted = counted or -1
    finally:
        subject.world.rewind()
        internals.forget_compiled()
    return counted
