"""A side's graph with its native values in the place of exact ones, but for some that are exact again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.explain.locate.targets import as_double
from driftscope.lift.domains import AtEnds
from driftscope.lift.finer.ends import spread
from driftscope.lift.steps import Step


@dataclass(frozen=True, slots=True)
class RoundedStep:
    """What a step made of rounded operands, before and after its own rounding."""

    step: Step
    exact: torch.Tensor
    rounded: torch.Tensor
    format: torch.dtype


@dataclass(slots=True)
class FreedValues:
    """An observer that puts native values in the place of exact ones, but for some and what is computed of these.

    ``exact`` names those, and ``only`` marks elements: of a value that has marks the others are native still. Of what
    a kernel computes inside nothing is native: ``inner`` has what its format would make of it.
    """

    natives: Mapping[str, torch.Tensor]
    ends: AtEnds
    exact: set[str] = field(default_factory=set)
    only: Mapping[str, torch.Tensor] = field(default_factory=dict)
    made: dict[str, RoundedStep] = field(default_factory=dict)
    freed: dict[str, torch.Tensor] = field(default_factory=dict)
    inner: dict[str, RoundedStep] = field(default_factory=dict)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        if step.constant:
            return None
        if any(name in self.exact for name in (*step.input_names, *step.output_names) if name):
            first = not any(name in self.exact for name in step.input_names if name)
            self.exact.update(name for name in step.output_names if name)
            held = self._marked(step) if first and self.only else self.ends(step)
            made = zip(step.output_names, held or step.outputs, strict=False)
            self.freed.update((n, v) for n, v in made if v is not None)
            return held
        forced: list[torch.Tensor | None] = []
        for name, exact, fmt in zip(step.output_names, step.outputs, step.formats, strict=True):
            native = self.natives.get(name)
            if native is None or exact is None or native.shape != exact.shape:
                forced.append(exact)
                if exact is not None and fmt is not None and exact.is_floating_point() and fmt.is_floating_point:
                    self.inner[name] = RoundedStep(step, exact, exact.to(fmt).to(exact.dtype), fmt)
            elif exact.is_floating_point() and native.is_floating_point():
                forced.append(as_double(native).to(exact.device))
                self.made[name] = RoundedStep(step, exact, forced[-1], fmt or native.dtype)  # type: ignore[arg-type]
            else:
                forced.append(native.to(exact.dtype))
        return forced

    def _marked(self, step: Step) -> list[torch.Tensor | None]:
        marked = list(step.outputs)
        for k, (name, exact) in enumerate(zip(step.output_names, step.outputs, strict=True)):
            native, marks = self.natives.get(name), self.only.get(name)
            if exact is not None and native is not None and marks is not None:
                marked[k] = torch.where(marks.to(exact.device), exact, as_double(native).to(exact.device))
        return marked


def first_broken(
    made: Mapping[str, RoundedStep], name: str, mask: torch.Tensor
) -> tuple[RoundedStep, torch.Tensor] | None:
    """The step that natively makes these elements of a value NaN or infinite of finite operands, and where."""
    while (one := made.get(name)) is not None and mask.shape == one.rounded.shape:
        mask = mask & ~torch.isfinite(one.rounded.cpu())
        given = list(zip(one.step.input_names, one.step.inputs, strict=False))
        broken = [(n, spread(mask, v.shape) & ~torch.isfinite(v.cpu())) for n, v in given
                  if v is not None and v.is_floating_point()]  # fmt: skip
        further = next(((n, m) for n, m in broken if bool(m.any())), None)
        if further is None:
            return (one, mask) if bool(mask.any()) else None
        name, mask = further
    return None


def differing(
    made: Mapping[str, RoundedStep], first: RoundedStep, mask: torch.Tensor
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Values before a step whose native elements are not exact, the nearest first, with all that lie nearer."""
    waiting = deque((name, mask) for name in first.step.input_names)
    walked: list[str] = []
    while waiting:
        name, mask = waiting.popleft()
        one = made.get(name)
        if one is None or name in walked:
            continue
        walked.append(name)
        mask = spread(mask, one.exact.shape)
        moved = mask & (one.exact != one.rounded).cpu()
        if bool(moved.any()):
            yield list(walked), moved
        waiting.extend((each, mask) for each in one.step.input_names)
