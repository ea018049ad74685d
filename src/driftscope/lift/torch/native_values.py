"""The values that a torch program natively has between its operators, kept while its tape is recorded.

A recording is a native run. Inside :func:`keeping_natives` every recorder keeps copies of what the calls returned, so
nothing is run again and no setting that the program makes on the way is missed.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.errors import CannotLift

#: Bytes of values that may be kept.
HELD = 1 << 30


@dataclass(slots=True)
class Natives:
    """Native results by tape and value number.

    Parameters
    ----------
    held : int
        Bytes that may be kept.
    """

    held: int = HELD
    size: int = 0
    # With the tape itself: one that was given up must not leave its address to the next.
    _by_tape: dict[int, tuple[Any, dict[int, torch.Tensor]]] = field(default_factory=dict)

    def keep(self, tape: Any, numbers: Sequence[int | None], results: Sequence[torch.Tensor | None]) -> None:
        """Copy what a call returned or wrote: memory may be written again before anybody looks.

        Raises
        ------
        CannotLift
            If it is too much.
        """
        kept = self._by_tape.setdefault(id(tape), (tape, {}))[1]
        for number, result in zip(numbers, results, strict=False):
            if number is None or result is None or result.layout is not torch.strided:
                continue
            self.size += result.numel() * result.element_size()
            if self.size > self.held:
                raise CannotLift(f"its intermediate values are larger than {self.held >> 20} MiB together")
            kept[number] = result.detach().clone().cpu()

    def drop(self, tape: Any, numbers: Iterable[int]) -> None:
        """Forget results that are not the program's own."""
        for number in numbers:
            self._of(tape).pop(number, None)

    def named(self, tape: Any) -> dict[str, torch.Tensor]:
        """The native results of one tape by the names of its values."""
        return {tape.values[number].name: value for number, value in self._of(tape).items()}

    def _of(self, tape: Any) -> dict[int, torch.Tensor]:
        return self._by_tape.get(id(tape), (tape, {}))[1]


_LISTENER: contextvars.ContextVar[Natives | None] = contextvars.ContextVar("natives", default=None)


def listener() -> Natives | None:
    """Who keeps native results now; None outside :func:`keeping_natives`."""
    return _LISTENER.get()


@contextlib.contextmanager
def keeping_natives(held: int = HELD) -> Iterator[Natives]:
    """Keep the native results of every recording made inside the block."""
    natives = Natives(held)
    token = _LISTENER.set(natives)
    try:
        yield natives
    finally:
        _LISTENER.reset(token)
