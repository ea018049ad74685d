"""The outcome of one transform, from its run and the plain one. The words are those of ``records.transform_report``."""

from __future__ import annotations

import math
from typing import Any

import torch

from driftscope.comparison.agreement import agreement
from driftscope.lift.evidence import samples_at
from driftscope.lift.side_lift import SideLift
from driftscope.lift.torch.entries import UNINITIALISED
from driftscope.transforms import derivatives
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.agreement import differ
from driftscope.transforms.diagnose import tangents
from driftscope.transforms.diagnose.divergence import first_divergence
from driftscope.transforms.diagnose.drifts import RANDOM, clock_place, seeds_inside
from driftscope.transforms.examination import Examination, Question
from driftscope.transforms.world.running import WatchedRun


def judge(question: Question, examination: Examination) -> tuple[str, str]:
    """Return the outcome and one sentence of reason; ``question.difference`` is what it was judged by.

    A transform that answers where plain autograd refuses is held against finite differences.
    """
    plain, lifted = question.plain, question.lifted
    if lifted.error is not None:
        if plain.error is not None:
            return "plain-refuses", "the plain program refuses as well"
        return "refused", "the plain program runs, the transform does not"
    if plain.error is not None:
        return _without_reference(question, examination)
    derivative = any(level.kind == "derivative" for level in question.levels)
    difference = question.difference or differ(plain.result, lifted.result, any_float=derivative)
    if derivative and not difference.agrees and _leaves_its_domain(examination):
        difference = differ(*_where_finite(plain, lifted), any_float=True)
    question.difference = difference
    if not examination.reproducible and _uninitialised(examination):
        return "same", "uninitialised memory, whose values decide nothing"
    if not examination.reproducible or (examination.repeats == "rounding" and clock_place(examination)):
        # What a clock adds between two runs is little beside the time of day.
        return "not-reproducible", "two plain runs from the same start differ"
    if difference.kind == "same":
        return "same", "the same bits"
    if difference.agrees:
        signs = "the same values; zeros of another sign"
        return "rounding", f"rounding: at most {difference.max_abs:.3g} apart" if difference.max_abs else signs
    if _only_random(question, examination):
        return "random", "other random numbers, as was asked for"
    if coarse := _within_inner_format(question, examination):
        return "rounding", f"rounding: at most {difference.max_abs:.3g} apart, and the function computes in {coarse}"
    if why := _within_noise(question, examination):
        return "rounding", f"rounding: at most {difference.max_abs:.3g} apart, {why}"
    told = tangents.convention(question, examination) if derivative else ""
    return ("same", told) if told else ("wrong", difference.detail)


def _within_inner_format(question: Question, examination: Examination) -> str:
    """Return a coarser format that the function computes in, where the answers agree to it; "" where they do not."""
    difference = question.difference
    if difference is None or difference.kind != "value":
        return ""
    apart = _float_pairs(question.plain.result, question.lifted.result)
    made = [value for event in examination.loop.events for value in event.outputs if isinstance(value, torch.Tensor)]
    coarse = [value.dtype for value in made if value.dtype in (torch.float16, torch.bfloat16)]
    if apart is None or not coarse:
        return ""
    coarsest = max(coarse, key=lambda dtype: torch.finfo(dtype).eps)
    agreeing = all(agreement(one.to(coarsest), other.to(coarsest)).agrees for one, other in apart)
    return str(coarsest).removeprefix("torch.") if agreeing else ""


#: Times that the inputs are moved by one rounding to measure what it does to an answer.
_MOVES = 2
#: What may be left of a difference where both are run in float64: 2**-29 of float32's rounding, with much room.
_LEFT = 1e-4


def _within_noise(question: Question, examination: Examination) -> str:
    """Say by what rounding the answers are apart where a measurement shows it; "" where none does.

    Rounded inputs may move them as far: they are zero but for rounding. Or both are one function in float64.
    """
    difference, eager = question.difference, all(lv.kind not in ("compile", "export") for lv in question.levels)
    if difference is None or difference.kind != "value" or not eager:
        return ""
    apart = _float_pairs(question.plain.result, question.lifted.result)
    if apart is None:
        return ""
    noises: list[list[torch.Tensor]] = [[] for _ in apart]
    for which in range(_MOVES):
        for lifted in (False, True):
            run = examination.nearby_run(question.levels, which, lifted=lifted)
            still = (question.lifted if lifted else question.plain).result
            moved = _float_pairs(still, run.result) if run.error is None else None
            if moved is None or len(moved) != len(apart):
                return ""
            for noise, (one, other) in zip(noises, moved, strict=True):
                noise.append(other - one)
    if all(_small(one, other) for one, other in apart) and all(
        agreement(*pair, noises=noise).agrees for pair, noise in zip(apart, noises, strict=True)
    ):
        return "as far as a rounded input moves it"
    if _same_in_float64(question, examination, apart):
        return "as far as rounding at each step moves it"
    return "and one function in float64" if _meet_in_float64(question, examination, apart) else ""


def _meet_in_float64(
    question: Question, examination: Examination, apart: list[tuple[torch.Tensor, torch.Tensor]]
) -> bool:
    """Whether the same calls on arguments in float64 are apart by float64's rounding alone: what stays is no rounding.

    For what takes too many steps to be run in float64 step by step. A function that holds float32 by itself either
    refuses the arguments, or answers in float32 or as far apart as before: it is not called one function.
    """
    runs = [examination.wider_run(question.levels, lifted=lifted) for lifted in (False, True)]
    if any(run.error is not None for run in runs):
        return False
    leaves = [leaf for run in runs for leaf in internals.tree_leaves(run.result)]
    pairs = _float_pairs(*(run.result for run in runs))
    if pairs is None or len(pairs) != len(apart) or any(leaf.dtype != torch.float64 for leaf in leaves):
        return False
    return all(
        finer[0].shape == one.shape and _largest(finer[1] - finer[0]) <= _LEFT * _largest(other - one)
        for finer, (one, other) in zip(pairs, apart, strict=True)
    )


def _same_in_float64(
    question: Question, examination: Examination, apart: list[tuple[torch.Tensor, torch.Tensor]]
) -> bool:
    """Whether both are the same function in float64, step by step, and apart by no more than their own floors."""
    sides = []
    for lifted in (False, True):
        run = examination.finer_run(question.levels, lifted=lifted)
        side = run.result if run.error is None else None
        if not isinstance(side, SideLift) or not side.noises or len(side.clean) != len(apart):
            return False
        sides.append(side)
    for k, (one, other) in enumerate(apart):
        finer = [side.clean[k].value for side in sides]
        if finer[0] is None or finer[1] is None or finer[0].shape != one.shape or finer[1].shape != one.shape:
            return False
        noises = [noise for side in sides for noise in samples_at(side.noises, k)]
        if not noises:
            return False
        left, gap, floor = (_largest(x) for x in (finer[1] - finer[0], other - one, torch.stack(noises)))
        # float64 rounds, too, by 2**-29 of what float32 does.
        if left > max(_LEFT * gap, _LEFT * _LEFT * floor):
            return False
        if not agreement(one, other, noises=noises).agrees:
            return False
    return True


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _float_pairs(plain: object, other: object) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return the leaves of two trees in float64, None where they are not all finite floats of equal shapes."""
    left, right = internals.tree_leaves(plain), internals.tree_leaves(other)
    pairs = []
    for a, b in zip(left, right, strict=False):
        both = (a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape else ()
        if not both or not all(x.is_floating_point() and bool(torch.isfinite(x).all()) for x in both):
            return None
        pairs.append((a.detach().double(), b.detach().double()))
    return pairs if len(left) == len(right) else None


def _small(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a difference is small enough to be asked: what jumps when an input is rounded is not rounding."""
    if not one.numel():
        return True
    scale = max(1.0, float(one.abs().max()))
    return float((other - one).abs().max()) <= scale * math.sqrt(torch.finfo(torch.float32).eps)


def _uninitialised(examination: Examination) -> bool:
    """Whether the function does nothing but allocate."""
    made = [event for event in examination.loop.events if not event.question]
    return bool(made) and all(event.operation in UNINITIALISED for event in made)


def _leaves_its_domain(examination: Examination) -> bool:
    """Whether the function itself is not finite at the examples: no derivative is defined there, and none is right."""
    leaves = derivatives.float_leaves(examination.loop.value[:1])
    return any(not bool(torch.isfinite(leaf.detach()).all()) for leaf in leaves)


def _where_finite(plain: WatchedRun, lifted: WatchedRun) -> tuple[list[Any], list[Any]]:
    """Return both results with zeros wherever either of them is not finite."""
    pairs = zip(internals.tree_leaves(plain.value), internals.tree_leaves(lifted.value), strict=False)
    left, right = [], []
    for a, b in pairs:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape:
            known = torch.isfinite(a.detach()) & torch.isfinite(b.detach())
            a, b = torch.where(known, a, 0), torch.where(known, b, 0)
        left.append(a)
        right.append(b)
    return left, right


def _without_reference(question: Question, examination: Examination) -> tuple[str, str]:
    told = question.plain.error
    words = f"plain autograd refuses ({type(told).__name__})"
    if not any(level.kind == "derivative" for level in question.levels):
        return "wrong", f"the plain program refuses ({type(told).__name__}), the transform answers"
    directional = _directional(question, examination)
    right = tangents.agrees_with_quotients(directional, examination) if directional is not None else None
    if right is None:
        return "plain-refuses", f"{words}; the transform answers, and nothing tells whether it is right"
    if right:
        return "same", f"{words}; the transform's answer agrees with finite differences"
    return "wrong", f"{words}; the transform's answer disagrees with finite differences"


def _directional(question: Question, examination: Examination) -> WatchedRun | None:
    """Return the transform's answer along the probe direction: itself for jvp, contracted for a Jacobian."""
    name = question.levels[-1].name
    if len(question.levels) > 1 or name not in ("jvp", "linearize", "jacfwd", "jacrev", "grad", "vjp"):
        return None
    if name in ("jvp", "linearize"):
        return question.lifted
    leaves = derivatives.float_leaves(examination.subject.slices[0][0])
    blocks = internals.tree_leaves(question.lifted.value[0])
    if name in ("grad", "vjp") or len(leaves) != 1:
        return None
    direction = derivatives.probe(leaves[0]).reshape(-1)
    width = leaves[0].dim()
    pushed = []
    for block in blocks:
        outer = block.shape[: block.dim() - width]
        pushed.append((block.reshape(-1, direction.numel()) @ direction.to(block.dtype)).reshape(outer))
    return WatchedRun(value=[tuple(pushed)])


def _only_random(question: Question, examination: Examination) -> bool:
    """Whether the values differ by random draws alone: nothing else parts before the first draw."""
    drawn = [event for event in examination.loop.events if event.operation in RANDOM]
    if not (drawn or "torch" in examination.loop.moved) or seeds_inside(examination):
        return False
    if question.difference is not None and question.difference.kind in ("shape", "dtype", "structure", "escaped"):
        return False
    if not drawn and examination.traceable:
        return "torch" in question.lifted.moved
    if question.levels[0].kind == "map" and len(question.levels) == 1 and question.lifted.events:
        found = first_divergence(examination.loop.parts, question.lifted.events)
        return found is None or any(e.operation in RANDOM for e in (*found.plain_events, found.event) if e is not None)
    return True
