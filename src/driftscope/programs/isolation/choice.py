"""Whether a runtime works in a process of its own: asked for, or by default where it can take this one down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

#: Set in every worker, so that a script which starts workers at its top level is told, instead of starting more.
MARK = "DRIFTSCOPE_WORKER"
#: Set in a process that somebody watches: what happens in it is a finding already.
WATCHED = "DRIFTSCOPE_WATCHED"

_ASKED: ContextVar[bool | None] = ContextVar("driftscope_isolate", default=None)


@contextlib.contextmanager
def isolating(asked: bool | None) -> Iterator[None]:
    """Decide for the runs inside; None leaves it to the default."""
    token = _ASKED.set(_ASKED.get() if asked is None else asked)
    try:
        yield
    finally:
        _ASKED.reset(token)


def watched() -> bool:
    """Whether another process watches this one, whose end is then a finding."""
    return WATCHED in os.environ or MARK in os.environ


def isolates() -> bool:
    """Whether native runtimes run in a worker here."""
    if MARK in os.environ:
        return False
    asked = _ASKED.get()
    return WATCHED not in os.environ if asked is None else asked
