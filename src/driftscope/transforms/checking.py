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
from driftscope.records.kinds.transform_report import TransformFinding, TransformReport
from driftscope.records.user_code import is_users
from driftscope.transforms.diagnose.wording import finding_of
from driftscope.transforms.examination import Examination, subject_of
from driftscope.transforms.investigation import SECONDS, Investigation, investigated
from driftscope.transforms.naming import levels_of
from driftscope.transforms.repairs.propose import propose
from driftscope.transforms.repairs.trial import PlainAnswers
from driftscope.transforms.subject import Proposal, Suspicion
from driftscope.transforms.transforming import DEFAULT_TRANSFORMS
from driftscope.transforms.world.places import Place, place_of
from driftscope.transforms.world.process_state import process_kept
from driftscope.transforms.world.reach import unwrapped
from driftscope.transforms.world.running import logs_silenced


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
    found = investigated(subject_of(fn, examples, in_dims, randomness), wanted, time_limit)
    return _record(found, fn, time.perf_counter() - start)


def _record(found: Investigation, fn: Any, seconds: float) -> TransformReport:
    subject = found.examination.subject
    answers = PlainAnswers(subject)
    proposed = [(suspect, _proposal(suspect, found.examination, answers)) for suspect in found.suspects]
    findings = _ordered([finding_of(suspect, found.examination, edit) for suspect, edit in proposed])
    return TransformReport(
        function=_title(fn),
        outcomes={run.transform: run.outcome for run in found.runs},
        findings=tuple(findings),
        runs=tuple(found.runs),
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


def _proposal(suspect: Suspicion, examination: Examination, answers: PlainAnswers) -> Proposal | None:
    """Ask the room of repairs to try an edit."""
    if suspect.cause == "T031" and examination.runs_unmapped:
        return Proposal(_STACK)
    if suspect.outcome not in ("refused", "wrong") and suspect.cause != "T001":  # an escape is found at an answer
        return None
    examination.subject.world.rewind()
    with process_kept(), logs_silenced():
        found = propose(examination.subject, suspect, answers)
    examination.subject.world.rewind()
    return found


_STACK = (
    "examples carry the axis that vmap maps (in_dims=0: the first one of each argument): stack several, or give"
    " x.unsqueeze(0) for one example, and in_dims=None for an argument that all share"
)


def _ordered(findings: list[TransformFinding]) -> list[TransformFinding]:
    """Sort by weight and tell each finding which transforms show the same at the same place."""
    sharing: dict[Any, list[str]] = {}
    for finding in findings:
        sharing.setdefault(_shared_by(finding), []).append(finding.transform)

    def shared(finding: TransformFinding) -> tuple[str, ...]:
        all_of = sharing[_shared_by(finding)]
        return (finding.transform, *(t for t in dict.fromkeys(all_of) if t != finding.transform))

    full = [dataclasses.replace(finding, transforms=shared(finding)) for finding in findings]
    full = [f for i, f in enumerate(full) if not _told_better(f, full[:i], full[i + 1 :])]
    return sorted(full, key=lambda f: (f.note, f.what.find("refuses") >= 0))


def _shared_by(finding: TransformFinding) -> tuple[Any, ...]:
    return finding.cause, finding.note, finding.where.line, finding.where.column


def _told_better(finding: TransformFinding, earlier: list[TransformFinding], later: list[TransformFinding]) -> bool:
    """Whether another finding says it: once for each kind of tensor that a name still holds, for a function that raises
    by itself, and for autograd inside.

    The place is the same under every transform; an edit may have been tried with success under one of them alone.
    """
    if finding.cause == "T031":
        return any(f.cause == "T031" for f in earlier)
    if finding.cause == "T001":
        return any(_same_escape(finding, f) for f in earlier)
    if finding.cause != "T012":
        return False
    before = [f for f in earlier if (f.cause, f.where) == (finding.cause, finding.where)]
    after = [f for f in later if (f.cause, f.where) == (finding.cause, finding.where)]
    if finding.verified:
        return any(f.verified for f in before)
    return bool(before) or any(f.verified for f in after)


def _same_escape(one: TransformFinding, other: TransformFinding) -> bool:
    """Whether two findings tell of one name that holds one kind of tensor: the transform's name is all that differs."""
    tails = [finding.what.partition(finding.transform)[2] for finding in (one, other)]
    return (one.cause, one.where) == (other.cause, other.where) and tails[0] == tails[1]


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
