"""Whether values, not sizes, make a target wrong: masks that hide nothing are given in place of the example's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from driftscope.programs.value_trees import flatten
from driftscope.shapes.check import Check
from driftscope.shapes.probe.axes import Arguments
from driftscope.shapes.probe.domain import RIGHT, outcome
from driftscope.shapes.probe.judging_runs import silence
from driftscope.shapes.probe.original import Point

_TRIED = 12


def deciding_mask(check: Check, target: str, points: Sequence[Point]) -> str:
    """Say which input makes a target wrong by its values: with nothing masked there it is right at these points.

    Parameters
    ----------
    check : Check
    target : str
        Wrong at all of the points.
    points : sequence of Point

    Returns
    -------
    str
        "" where no input alone is seen to decide, or where the target cannot be asked again.
    """
    original, runner = check.original, check.runners.get(target)
    if original is None or runner is None or original.random:
        return ""
    tried = list(points[:_TRIED])
    for number, (path, example) in enumerate(original.builder.arguments.leaves):
        neutral = _hides_nothing(example)
        if neutral is None:
            continue
        calls, references = [], []
        with silence():
            for point in tried:
                references.append(original.ask(original.model, *_with(check, number, neutral, point)))
                calls.append(_with(check, number, neutral, point))
            answers = runner.answers(calls)
        if all(outcome(a, b).outcome == RIGHT for a, b in zip(references, answers, strict=True)):
            return f"the values of {path} decide, not the sizes: with {neutral} everywhere it is right at " + (
                f"all {len(tried)} of these that were tried" if len(tried) > 1 else "this shape"
            )
    return ""


def _hides_nothing(example: Any) -> int | None:
    """What a mask holds where it hides nothing: 1 among zeros and ones, 0 among what is added to scores."""
    if not isinstance(example, torch.Tensor) or example.is_complex() or not example.numel():
        return None
    if bool(((example == 0) | (example == 1)).all()):
        return None if bool((example == 1).all()) else 1
    hides = example.is_floating_point() and bool((example <= 0).all())
    return 0 if hides and bool((example == 0).any()) and float(example.min()) <= -1e4 else None


def _with(check: Check, number: int, neutral: int, point: Point) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Build the inputs at a point, one of them filled with one value."""
    original = check.original
    assert original is not None
    args, kwargs = original.inputs(point)
    leaves = _leaves(original.builder.arguments, args, kwargs)
    leaves[number].fill_(neutral)
    return args, kwargs


def _leaves(arguments: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    named = [*args, *(kwargs.get(name) for name in arguments.names[arguments.positional :])]
    return [leaf for value in named for _, leaf in flatten(value)[0]]
