"""What each node of B makes of A's values: every value that corresponds to one of A's is replaced by it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.explain.locate.fingerprints import Visited
from driftscope.lift.steps import Step


@dataclass(slots=True)
class Fed:
    """An observer that measures each value against A's and then puts A's in its place.

    Parameters
    ----------
    references : mapping of str to torch.Tensor
        A's float64 values by the names of the values of B that correspond to them.
    drift : dict of str to float or None
        What was measured, relative, by the same names: what the steps since the last replaced values have added.
    """

    references: Mapping[str, torch.Tensor]
    drift: dict[str, float | None] = field(default_factory=dict)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        replaced = list(step.outputs)
        for index, (name, value) in enumerate(zip(step.output_names, step.outputs, strict=True)):
            reference = self.references.get(name)
            if reference is None or value is None:
                continue
            self.drift[name] = relative(reference, value)
            if reference.shape == value.shape and value.is_floating_point() and not _rearranged(reference, value):
                replaced[index] = reference
        return replaced


def _rearranged(reference: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the elements are the same ones in another order: then A's value is not one that B's steps can read."""
    size, apart = rms(finite(reference)), rms(finite(value - reference))
    return apart > 1e-6 * size and (_sorted_apart(reference, value) or 0.0) < 1e-9 * size


def relative(mine: torch.Tensor | None, theirs: torch.Tensor | None) -> float | None:
    """Measure rms(theirs - mine) / rms(mine); None when one is missing or they cannot be values of one thing.

    Where the shapes differ, elements are compared in order of size: in another layout the same ones stand at the same
    places then.
    """
    if mine is None or theirs is None or mine.numel() != theirs.numel() or not mine.is_floating_point():
        return None
    one, other = mine.detach(), theirs.detach()
    size = rms(finite(one))
    drift = rms(finite(other - one)) if one.shape == other.shape else _sorted_apart(one, other)
    return drift / size if size else (0.0 if drift == 0.0 else None)


def _sorted_apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return rms(finite(other.flatten().sort().values - one.flatten().sort().values))


def ancestors(steps: Sequence[Visited], shown: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each shown step the shown steps that it reads from, through those that are not shown."""
    behind: dict[str, tuple[str, ...]] = {}  # value -> nearest shown steps
    found: dict[str, tuple[str, ...]] = {}
    for step in steps:
        if step.inside:
            continue
        reads = tuple(dict.fromkeys(name for value in step.inputs for name in behind.get(value, ())))
        if step.name in shown:
            found[step.name] = reads
        for value in step.outputs:
            behind[value] = (step.name,) if step.name in shown else reads
    return found
