"""What a worker keeps for objects of this process, by number: forgotten with their holders, made again if lost."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any


class KeptThere:
    """The numbers of one worker's things."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._dropped: deque[int] = deque()

    def number_for(self, holder: object) -> int:
        """Return a new number, which is dropped when its holder goes."""
        number = next(self._numbers)
        weakref.finalize(holder, self.drop, number)
        return number

    def drop(self, number: int) -> None:
        """Let the worker forget what it keeps under a number, the next time it is asked."""
        self._dropped.append(number)

    def dropped(self) -> tuple[int, ...]:
        """Return the numbers that were dropped since the last call."""
        return tuple(self._dropped.popleft() for _ in range(len(self._dropped)))


def asked_again(ask: Callable[[], Any], make: Callable[[], object]) -> Any:
    """Ask a worker that answers None for what it does not keep, such as one that was started anew: then make it."""
    found = ask()
    if found is None:
        make()
        found = ask()
    return found
