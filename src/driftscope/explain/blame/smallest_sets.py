"""Delta debugging: the smallest set that still explains what is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Counted(Generic[T]):
    """A predicate on sets that remembers what it answered, and gives up after ``most`` questions.

    Parameters
    ----------
    holds : callable
        Told a tuple of items, says whether they suffice.
    most : int
        Questions that may be asked; afterwards every new one is answered with False.
    """

    holds: Callable[[tuple[T, ...]], bool]
    most: int = 64
    asked: dict[tuple[T, ...], bool] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        """Whether a question had to go unasked, or the next one would."""
        return len(self.asked) >= self.most

    def __call__(self, items: Sequence[T]) -> bool:
        key = tuple(items)
        if key not in self.asked:
            if self.exhausted:
                return False
            self.asked[key] = self.holds(key)
        return self.asked[key]


def smallest_set(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Reduce ``items``, which suffice, to a part of which nothing more can be spared.

    Parameters
    ----------
    items : sequence
        ``holds(items)`` is true.
    holds : callable
        Whether a part, in the order of ``items``, suffices.

    Returns
    -------
    tuple
        1-minimal: without any one of its members it no longer suffices. Not always the smallest part of all, which
        would take exponentially many questions.

    References
    ----------
    Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002 (ddmin).
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        size = max(1, -(-len(kept) // parts))
        blocks = [kept[i : i + size] for i in range(0, len(kept), size)]
        for k, block in enumerate(blocks):
            rest = [item for j, other in enumerate(blocks) if j != k for item in other]
            if len(blocks) > 1 and holds(block):
                kept, parts = block, 2
                break
            if rest and holds(rest):
                kept, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(kept))
    return tuple(kept)
