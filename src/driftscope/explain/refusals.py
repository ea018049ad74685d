"""What a runtime's refusal means and what to do about it, read from its own words and nothing else."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from driftscope.errors import DriftscopeError, InputError, ProgramError, RuntimeCrashed, RuntimeRefused
from driftscope.programs.isolation.failures import ENDED_ITSELF, NOT_STARTED
from driftscope.records.finding import Finding, Where
from driftscope.records.first_line import place_of
from driftscope.records.user_code import innermost


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is known when a runtime uses certain words.

    Parameters
    ----------
    words : str
        A regular expression over the runtime's message.
    why, fix : str
        One sentence each.
    fault : str
        ``"program"`` when the program is unusable whatever the runtime's kernels, ``"inputs"`` when what it was
        given does not fit, ``"dtypes"`` when either may be at fault, ``""`` when the refusal is the runtime's own and
        worth a record.
    """

    words: str
    why: str
    fix: str
    fault: str = ""


# The first that matches decides: an element type is also called "an invalid model".
_MEANINGS = (
    Meaning(
        r"opset \d+ of|Opset \d+|IR version",
        "It was written for a newer ONNX than this runtime reads.",
        "Export with an older opset, convert it with onnx.version_converter, or install a newer runtime.",
        "program",
    ),
    Meaning(
        r"No Op registered|is not a registered function/op",
        "The runtime knows no operator of that name in that domain and opset.",
        "Check name, domain and opset, or give the operator as a local function of the model.",
        "program",
    ),
    Meaning(
        r"Could not find an implementation|No kernel|not implemented for|not supported on",
        "The runtime has no kernel for this operator with these element types.",
        "Convert the operator's inputs to a type the runtime has a kernel for, or use another provider.",
    ),
    Meaning(
        r"does not match expected type",
        "The file declares another element type for a value than the operator that makes it gives.",
        "Convert again and leave that operator in float32, or correct the declared type.",
        "program",
    ),
    Meaning(
        r"Type Error|Type '?tensor\(|type constraint",
        "The operator does not take that element type.",
        "Convert the operator's inputs to a type it takes.",
    ),
    Meaning(
        r"this build has no|could not be started",
        "The execution provider is not part of this installation, or its libraries did not load.",
        "Install the onnxruntime package that brings the provider, or choose one that is here.",
    ),
    Meaning(
        r"(?i)on device meta|meta tensors?\b",
        "Its weights are on the meta device, where tensors have a shape but no values.",
        "Load the weights, or move the module with .to_empty() and initialise it.",
        "program",
    ),
    Meaning(
        r"(?i)failed to allocate|bad_alloc|out of memory|can't allocate|not enough memory",
        "There was not enough memory.",
        "Compare on a smaller batch, or with fewer threads.",
    ),
    Meaning(
        r"(?i)invalid model|not acyclic|ShapeInferenceError|raw_data size|must not be recursive|INVALID_GRAPH"
        r"|buffer size mismatch|Protobuf parsing failed|No graph was found",
        "The file is not a valid ONNX model.",
        "Export it again, or mend what is named; onnx.checker.check_model looks at the whole file.",
        "program",
    ),
    Meaning(
        r"(?:must|to) have the same dtype|Input type \(.*\) and (?:weight|bias) type|expected scalar type|mixed dtype",
        "Values of two dtypes meet: as a rule the weights have one, and the inputs or what it makes itself another.",
        "Give inputs of the dtype of its weights, and make new tensors in it; to compare with the same model in"
        " float16, give ds.torch(model, dtype='float16'), which converts the inputs too.",
        "dtypes",
    ),
    Meaning(
        r"(?i)dimension mismatch|shapes? cannot be multiplied|must match the size|size mismatch|invalid dimensions"
        r"|shape mismatch|index out of range in self|indices element out of data bounds|Invalid input shape"
        r"|Got invalid dimensions for input|BroadcastIterator"
        r"|one of the following scalar types|must be Tensor, not",
        "The inputs do not fit the program: their shapes, their dtypes, or the indices in them.",
        "Give inputs of the shapes and dtypes the program was written for.",
        "inputs",
    ),
)
_UNKNOWN = Meaning("", "", "")


def meaning_of(refusal: RuntimeRefused) -> Meaning:
    """Return what a refusal means; a meaning without why when its words are not known."""
    return next((m for m in _MEANINGS if re.search(m.words, refusal.words)), _UNKNOWN)


def unusable(side: str, name: str, refusal: RuntimeRefused) -> DriftscopeError | None:
    """Return the error that a refusal amounts to, or None when it is a finding.

    A model that is invalid, or newer than the runtime, is nobody's finding: it cannot be used; nor can one in which
    dtypes meet that do not go together. Inputs are judged by the reference: what A does not take does not fit, but what
    only B does not take is news about B.
    """
    if isinstance(refusal, RuntimeCrashed):
        return None
    meaning = meaning_of(refusal)
    if meaning.fault == "program":
        return ProgramError(f"{name} cannot be used: {_first_sentence(refusal)}. {meaning.fix}")
    if meaning.fault == "dtypes" and refusal.stage == "run":
        place = place_of(_raised_at(refusal))
        at = f", at {place}" if place else ""
        return InputError(f"{name} does not run on these inputs: {_first_sentence(refusal)}{at}. {meaning.fix}")
    if meaning.fault == "inputs" and refusal.stage == "run" and side == "A":
        return InputError(f"{name} does not take these inputs: {_first_sentence(refusal)}. {meaning.fix}")
    return None


def _first_sentence(refusal: RuntimeRefused) -> str:
    # The file is named already, and the advice in brackets at the end is repeated by the meaning.
    words = re.sub(r"^Load model from .*?\.onnx (?:failed:)?\s*", "", refusal.words)
    return f"{refusal.runtime} says: {re.sub(r' [(]convert it with .*[)]$', '', words).rstrip('. ')}"


def refusal_finding(side: str, refusal: RuntimeRefused) -> Finding:
    """What a runtime said when it would not load or run a program, in its own words."""
    if isinstance(refusal, RuntimeCrashed):
        return _crash_finding(side, refusal)
    code, verb = ("R001", "load") if refusal.stage == "load" else ("R002", "run")
    meaning = meaning_of(refusal)
    return Finding(
        code,
        f"{refusal.runtime} refused to {verb} {side}: {refusal.words}",
        why=meaning.why,
        fix=meaning.fix,
        where=_raised_at(refusal),
        evidence={"side": side, "runtime": refusal.runtime, "stage": refusal.stage, "words": refusal.words},
    )


def _raised_at(refusal: RuntimeRefused) -> Where:
    """The user's own line at which a Python program raised; empty where what ran has no lines of its own."""
    error = refusal.__cause__
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    at = innermost([frame.filename for frame in frames])
    if at is None:
        return Where()
    return Where(file=frames[at].filename, line=frames[at].lineno, expression=frames[at].line or None)


def _crash_finding(side: str, crash: RuntimeCrashed) -> Finding:
    facts = {"side": side, "stage": crash.stage, "runtime": crash.runtime}
    found = death_finding(crash.code, crash.words, facts)
    if not crash.operator:
        return found
    return replace(
        found,
        why="The node named crashes when it is run alone on the values it has there.",
        where=Where(node=crash.node or None, operator=crash.operator),
    )


def death_finding(code: str, words: str, facts: Mapping[str, Any]) -> Finding:
    """What took a process down, or had to be stopped.

    Parameters
    ----------
    code : str
        R006 to R009.
    words : str
        How the process ended.
    facts : mapping
        What it told last: ``stage``, ``side``, ``program``, ``runtime``, as far as they are known.
    """
    side, stage = str(facts.get("side", "")), str(facts.get("stage", ""))
    step = f"this step: {facts['step']}" if facts.get("step") else ""
    doing = {"load": f"loading {side}", "run": f"running {side}"}.get(stage) or _BY_STAGE.get(stage, step or "the work")
    who = str(facts.get("program") or facts.get("runtime") or "the process")
    return Finding(
        code,
        f"{who if side else 'the process'} did not survive {doing}: {words}",
        fix=_fix_of_death(code, words),
        evidence={"words": words} | {k: v for k, v in facts.items() if k in ("side", "stage", "runtime", "program")},
    )


def _fix_of_death(code: str, words: str) -> str:
    if ENDED_ITSELF in words:
        return "Take out what ends the process: os._exit in the program, or exit in native code that it calls."
    if NOT_STARTED in words:
        return "Find out why python with the same environment does not start there: `import driftscope` shows it."
    return _CRASH_FIXES[code]


_BY_STAGE = {
    "bind": "the fitting of inputs to the programs",
    "lift": "the evaluation in float64",
    "sums": "the question in which order sums are added",
    "explain": "the search for the place",
    "reproduce": "the writing of a reproducer",
    "nodes": "the measuring of every value",
}

_CRASH_FIXES = {
    "R006": "Native code failed, of the runtime or of an extension. Until it is mended there, try inputs of other "
    "sizes and fewer optimisations (level disable); a report needs the model and these inputs.",
    "R007": "Something outside ended the process; run it again.",
    "R008": "Compare on a smaller batch, or allow more memory (--max-memory).",
    "R009": "Compare on smaller inputs, or allow more time (--max-seconds).",
}
