"""Whether values decide, not sizes.

Masks that hide nothing are given in place of the example's where a target is wrong; masks that hide something are given
where the model runs: models drop a mask of ones, whatever its size, and fail on any other of that size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.shapes.check import Check
from driftscope.shapes.probe.domain import RIGHT, outcome
from driftscope.shapes.probe.judging_runs import Ran, silence
from driftscope.shapes.probe.original import Original, Point

_TRIED = 12


@dataclass(frozen=True, slots=True)
class UnmaskedOnly:
    """Where a model runs only because a mask hides nothing.

    Parameters
    ----------
    points : frozenset of Point
        With one element hidden the model refuses these.
    paths : tuple of str
        The masks.
    """

    points: frozenset[Point] = frozenset()
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        masks = f"{' and '.join(self.paths)} {'hides' if len(self.paths) == 1 else 'hide'} nothing"
        return f"the model runs there only while {masks}, and refuses when a 0 stands there"


def full_masks(original: Original) -> tuple[int, ...]:
    """Leaves of the example that hide nothing: of integers or booleans, all 1, and not needed to be.

    The model still runs, at the example's own sizes, when the last element of all of them is 0.
    """
    found = tuple(n for n, (_, example) in enumerate(original.builder.arguments.leaves) if _is_full_mask(example))
    return found if found and _runs_hiding(original, found, original.example) else ()


def unmasked_only(original: Original, points: Sequence[Point]) -> UnmaskedOnly:
    """Find the points at which the model runs only because masks of the example hide nothing.

    Parameters
    ----------
    original : Original
    points : sequence of Point
        Where the model runs.
    """
    masks = full_masks(original)
    with silence():
        refused = frozenset(p for p in points if masks and not _runs_hiding(original, masks, p))
    return UnmaskedOnly(refused, tuple(str(original.builder.arguments.leaves[n][0]) for n in masks))


def _is_full_mask(example: Any) -> bool:
    if not isinstance(example, torch.Tensor) or example.is_floating_point() or example.is_complex():
        return False
    return example.layout is torch.strided and example.numel() > 1 and bool((example == 1).all())


def _runs_hiding(original: Original, masks: tuple[int, ...], point: Point) -> bool:
    return isinstance(original.ask(original.model, *original.hiding(point, masks)), Ran)


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
    original.builder.leaves_of(args, kwargs)[number].fill_(neutral)
    return args, kwargs
