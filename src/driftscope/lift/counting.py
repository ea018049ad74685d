"""How far a float64 run has come, for whoever shows it to a person."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Count = Callable[[int, int], object]

_COUNT: ContextVar[Count | None] = ContextVar("driftscope_count", default=None)


@contextlib.contextmanager
def counting(count: Count | None) -> Iterator[None]:
    """Have the float64 runs inside tell ``count(done, total)`` before each node."""
    token = _COUNT.set(count)
    try:
        yield
    finally:
        _COUNT.reset(token)


def counted(nodes: Sequence[T]) -> Iterable[T]:
    """Give the nodes of a run one by one, and tell how many are done."""
    count = _COUNT.get()
    return nodes if count is None else _told(nodes, count)


def _told(nodes: Sequence[T], count: Count) -> Iterator[T]:
    for done, node in enumerate(nodes):
        count(done, len(nodes))
        yield node
