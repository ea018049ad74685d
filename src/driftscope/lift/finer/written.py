"""Memory that a program writes into, in balls: whoever reads it later, by whatever name, reads what was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from driftscope.lift.finer.given import Balls
    from driftscope.lift.steps import Step


@dataclass(slots=True)
class Written:
    """The balls that were written, by memory and place; None where it is not known which."""

    # The memory itself is held: freed, another's could have its address.
    _held: dict[int, tuple[Any, dict[int, Any]]] = field(default_factory=dict)

    def write(self, step: Step, found: Balls | None = None) -> None:
        """Take over what a step writes into its operands; the balls, if there are any, are its first result."""
        for position, name in enumerate(step.output_names):
            target = step.inputs[step.input_names.index(name)] if name and name in step.input_names else None
            if target is None:
                continue
            memory = target.untyped_storage()
            balls = [None] * target.numel() if found is None or position else found.reshape(-1)
            _, held = self._held.setdefault(memory._cdata, (memory, {}))
            held.update(zip(_places(target), balls, strict=True))

    def knows(self, value: torch.Tensor) -> bool:
        """Whether anything was written into the memory of a value."""
        return value.untyped_storage()._cdata in self._held

    def read(self, value: torch.Tensor, found: Balls) -> Balls:
        """Give the balls that a value has now, of those that it had at first.

        Raises
        ------
        NoRule
            If what was written there is not known.
        """
        from driftscope.lift.finer.given import NoRule

        _, held = self._held[value.untyped_storage()._cdata]
        now = found.reshape(-1).copy()
        for k, place in enumerate(_places(value)):
            now[k] = held.get(place, now[k])
        if any(ball is None for ball in now):
            raise NoRule
        return now.reshape(found.shape)


def _places(value: torch.Tensor) -> list[int]:
    """The place of each element in its memory, in bytes."""
    size = value.element_size()
    whole = torch.arange(value.untyped_storage().nbytes() // size)
    places = whole.as_strided(value.shape, value.stride(), value.storage_offset())
    return [size * int(place) for place in places.reshape(-1).tolist()]
