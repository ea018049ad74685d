"""Whether a runtime works in a process of its own: asked for, or by default where it can take this one down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

#: Set in every worker, so that a script which starts workers at its top level is told, instead of starting more.
MARK = "DRIFTSCOPE_WORKER"
#: Set in a process that somebody watches: what happens in it is a finding already.
WATCHED = "DRIFTSCOPE_WATCHED"
#: How often threads of GNU's OpenMP, which is torch's, look for one another before they sleep: some microseconds.
_LOOKS = "3000"

_ASKED: ContextVar[bool | None] = ContextVar("driftscope_isolate", default=None)


def waiting(variables: Mapping[str, str]) -> dict[str, str]:
    """Say how threads wait for one another in a process of ours, where these variables do not say it.

    By default they look for as long as a millisecond. Where another process keeps a core busy they do so in vain, and
    take from it what it takes from them: an operation of microseconds then takes ten milliseconds.
    """
    told = not variables.keys().isdisjoint(("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"))
    return {} if told else {"GOMP_SPINCOUNT": _LOOKS}


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
