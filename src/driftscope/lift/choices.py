"""Choices made in float64: what a program picks, compares and rounds if nothing was rounded before.

An ordinary lifted run sees its values rounded to their native formats where it chooses, so that it takes the element
that the program takes. Two programs of one function may then choose otherwise, because one of them rounds more. Run
with their choices made in float64 they do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_EXACT: ContextVar[bool] = ContextVar("exact choices", default=False)


def choices_are_exact() -> bool:
    """Whether lifted runs choose by their float64 values."""
    return _EXACT.get()


@contextlib.contextmanager
def exact_choices(wanted: bool = True) -> Iterator[None]:
    """Let lifted runs inside the block choose by their float64 values, where that is wanted."""
    token = _EXACT.set(wanted or _EXACT.get())
    try:
        yield
    finally:
        _EXACT.reset(token)
